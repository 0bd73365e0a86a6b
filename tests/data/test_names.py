"""Names come out the same whether few are looked at or many."""

from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.names import FEW, Coded, folded, name_of

WRITTEN = st.none() | st.sampled_from(
    ["5", "5.0", "5.00", "5.000", "0.50", "-7.0", "x.0", ".0", "", " ", " a", "5.0 ", "True", "FALSE", "true", "5.0\n"]
)


@given(st.lists(WRITTEN | st.text(max_size=4), max_size=5))
def test_few_texts_are_folded_as_many_are(texts: list[str | None]) -> None:
    few = folded(pl.Series("x", texts, pl.String))
    many = folded(pl.Series("x", texts + ["plain"] * FEW, pl.String))
    assert (few.to_list(), few.name, few.dtype) == (many.to_list()[: len(texts)], "x", pl.String)


def test_fractions_stay_as_they_are_written() -> None:
    """They may be versions."""
    versions = ["3.1", "3.10", "3.100", "-1.50"]
    assert folded(pl.Series(versions)).to_list() == [name_of(each) for each in versions] == versions


def test_whole_numbers_and_truths() -> None:
    assert folded(pl.Series(["5.0", "1.000", "0.50", None, "TRUE", "x"])).to_list() == [
        "5",
        "1",
        "0.50",
        None,
        "true",
        "x",
    ]


@given(
    st.lists(
        st.none() | st.sampled_from(["5", "5.00", "5.000", "1.05", " a", "a ", "b", " ", "True", "x.00"]), max_size=4
    )
)
def test_a_name_does_not_depend_on_its_company(texts: list[str | None]) -> None:
    alone = [folded(pl.Series([text], dtype=pl.String))[0] for text in texts]
    assert folded(pl.Series("x", texts + ["plain"] * FEW, pl.String)).to_list()[: len(texts)] == alone
    assert [None if text is None else name_of(text) or None for text in texts] == alone


@given(st.lists(st.none() | st.sampled_from(["a", "", "b", "a name of more than twelve bytes"])))
def test_a_categorical_column_by_its_numbers(texts: list[str | None]) -> None:
    pl.Series(["other", "names", "before"], dtype=pl.Categorical)  # which share the numbers
    coded = Coded(pl.Series("x", texts, pl.Categorical))
    names = coded.names.to_list()
    assert dict(zip(names, coded.rows.tolist(), strict=True)) == Counter(texts)
    assert [names[place] for place in coded.each(np.arange(len(names))).tolist()] == texts
