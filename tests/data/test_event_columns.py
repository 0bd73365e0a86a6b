"""Each column becomes what its role asks for."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.event_columns import read_lists
from recollect.data.schema import TableSchema
from recollect.errors import DataError
from tests.data.made_events import made


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([5, 4, None], ["5", "4", None]),
        ([5.0, 4.5, float("nan")], ["5", "4.5", None]),
        (["5.0", "v2.0", ""], ["5", "v2.0", None]),
        ([True, False, None], ["true", "false", None]),
        (["True", "FALSE", "true", "Truest"], ["true", "false", "true", "Truest"]),
        (pl.Series(["a", "5.0", None], dtype=pl.Categorical), ["a", "5", None]),
    ],
    ids=["whole", "fractions", "texts", "truth", "truth as texts", "categorical"],
)
def test_names_are_the_same_however_they_are_stored(values: Any, names: list[str | None]) -> None:
    events, bad = made(TableSchema(categorical=("c",)), c=values)
    assert events.columns["c"].to_list() == names
    assert not bad


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, None, 5, 3], pl.Int64),
        ([-128, None, 127], pl.Int8),
        ([0, 2**64 - 1, 2**64 - 2], pl.UInt64),
        ([2**64 - 1, 2**64 - 2], pl.UInt64),
        ([-(2**63), 2**63 - 1], pl.Int64),
        ([2**63 - 1, 2**63 - 2], pl.Int64),
        ([None], pl.Int64),
    ],
)
def test_many_whole_numbers_have_the_names_that_few_have(values: list[int | None], dtype: Any) -> None:
    many = pl.Series(values * 1000, dtype=dtype)
    events, _ = made(TableSchema(categorical=("c",)), c=many)
    assert events.columns["c"].to_list() == [None if value is None else str(value) for value in many]


def test_numbers_whose_sum_is_infinite_are_finite_and_nan_is_missing() -> None:
    events, bad = made(TableSchema(numeric=("x",)), x=[1e308, 1e308, float("nan"), None, float("-inf")])
    assert events.columns["x"].to_list() == [1e308, 1e308, None, None]
    assert [each.kind for each in bad] == ["infinite: x"]
    events, bad = made(TableSchema(numeric=("x",)), x=[1e308, 1e308])
    assert (events.columns["x"].to_list(), bad) == ([1e308, 1e308], [])


def test_a_column_of_a_type_without_a_place_is_an_error() -> None:
    with pytest.raises(DataError, match="which can't be text: convert it"):
        made(TableSchema(text=("t",)), t=[{"a": 1}])


def test_lists_from_texts_and_lists() -> None:
    expected = [[0.5, 1.0], None, [None]]
    assert read_lists(pl.Series(["[0.5, 1]", "no list", "[x]"])).to_list() == expected
    assert read_lists(pl.Series([[0.5, 1.0], None, [None]])).to_list() == expected


odd = st.none() | st.sampled_from(["", "a", "5.0", "5", "True", "true", "FALSE", "v2.0", "-3.00", "ü"])


@given(st.lists(odd), st.sampled_from([1, 400]))
def test_categories_have_the_names_that_texts_have(texts: list[str | None], times: int) -> None:
    columns = {
        kind: made(TableSchema(categorical=("c",)), c=pl.Series(texts * times, dtype=kind))[0].columns["c"]
        for kind in (pl.String, pl.Categorical)
        if texts
    }
    assert [(values.dtype, values.to_list()) for values in columns.values()] == [
        (kind, columns[pl.String].to_list()) for kind in columns
    ]
