"""Columns as arrays: what is missing stays missing."""

import numpy as np
import polars as pl
import pytest

from recollect.data.columns import MISSING, embedding_of, floats_of, missing_rows, needed_column, texts_of
from recollect.errors import DataError

TABLE = pl.DataFrame({"whole": [1, None, 3], "said": ["so", None, " \n"], "place": [[1.0, 2.0], None, [3.0, 4.0]]})


def test_numbers_and_texts() -> None:
    assert np.array_equal(floats_of(TABLE, "whole"), [1.0, np.nan, 3.0], equal_nan=True)
    assert texts_of(TABLE["said"]).to_list() == ["so", MISSING, " \n"]


def test_embeddings_and_which_rows_have_none() -> None:
    place = embedding_of(TABLE, {}, "place")
    assert np.array_equal(place, [[1, 2], [np.nan, np.nan], [3, 4]], equal_nan=True)
    said = embedding_of(TABLE, {"said": np.ones((3, 4))}, "said")
    assert missing_rows(TABLE, "place", place).tolist() == [False, True, False]
    assert missing_rows(TABLE, "said", said).tolist() == [False, True, True]
    assert missing_rows(TABLE.drop("said"), "said", said).tolist() == [False] * 3
    assert missing_rows(TABLE, "place", np.ones((3, 0), np.float32)).all()


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match="the column b is missing, whole, said, place came"):
        needed_column(TABLE, "b")
    with pytest.raises(DataError, match="the text column said came without its embedding"):
        embedding_of(TABLE, {}, "said")
