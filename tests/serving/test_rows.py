"""Rows of requests: what a table's rows are, the same numbers come of; what can't be is named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.client import Client, NewItem
from recollect.data.schema import TableSchema
from recollect.serving.problems import Problem
from recollect.serving.rows import FEW_ROWS, Given, Rows
from recollect.serving.schemas import MOMENT_PATTERN, LabelIn, example_row, moment_schema, row_schema
from tests.serving.server import served

SCHEMA = TableSchema(
    time="when",
    time_unit="seconds",
    label="y",
    numeric=("a",),
    categorical=("c",),
    text=("t",),
    embedding={"e": 2},
    ignored={"secret": "constant"},
)
ROWS = Rows(SCHEMA, longest=10)
PLAIN = Rows(TableSchema(label="y", numeric=("a",)), longest=10)


def fault(row: dict[str, Any]) -> str:
    with pytest.raises(Problem) as found:
        ROWS.inputs([Given({}), Given(row)], "#/inputs")
    assert found.value.status == 422
    return found.value.detail


def test_columns_have_the_types_of_a_table() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "c": 5.0, "t": "x", "e": [1, 2.5]},
        {"a": None, "c": True, "t": "", "secret": {"any": "thing"}},
        {},
    ]
    frame = ROWS.inputs([Given(row) for row in rows], "#/inputs")
    assert frame.to_dict(as_series=False) == {
        "a": [1.0, None, None],
        "c": ["5", "true", None],
        "t": ["x", None, None],
        "e": [[1.0, 2.5], None, None],
    }


@given(st.lists(st.none() | st.floats(-1e300, 1e300) | st.integers(-(2**53), 2**53), min_size=1, max_size=3))
def test_numbers_of_few_rows_are_those_of_many(values: list[float | None]) -> None:
    few = ROWS.inputs([Given({"a": value}) for value in values], "#/inputs")["a"]
    many = ROWS.inputs([Given({"a": value}) for value in values + [0.5] * FEW_ROWS], "#/inputs")["a"]
    assert few.dtype == many.dtype
    assert few.equals(many[: len(values)], null_equal=True)


def test_a_truth_value_is_the_same_as_one_and_as_a_text() -> None:
    frame = ROWS.inputs([Given({"c": value}) for value in (True, "True", "true", False, "False")], "#/inputs")
    assert frame["c"].to_list() == ["true", "true", "true", "false", "false"]
    labels = [LabelIn(id="x", label=value).label for value in (True, "True", "TRUE", 5.0, "5.0")]
    assert labels == ["true", "true", "true", "5", "5"]


def test_what_is_wrong_is_named() -> None:
    assert fault({"b": 1}).startswith("#/inputs/1/row/b: is no feature of this model: its features are a, c, t, e")
    assert "give time beside the row" in fault({"when": 1})
    assert "give label beside the row" in fault({"y": 1})
    assert "must be a number" in fault({"a": "1"})
    assert "must be a number" in fault({"a": 10**400})
    assert "must be a number" in fault({"a": float("inf")})
    assert "11 characters, 10 are allowed" in fault({"t": "x" * 11})
    assert "surrogate" in fault({"c": "\ud800"})
    assert "must be a text" in fault({"c": []})
    assert "too large" in fault({"c": 10**400})
    assert "list of 2 numbers" in fault({"e": [1]})
    assert "list of 2 numbers" in fault({"e": [1, None]})
    assert "beyond 3e+38" in fault({"e": [1, 3.1e38]})


def test_items_and_their_times() -> None:
    events, time, known_at = ROWS.items([Given({"a": 1}, "x", "1.0", "2024-05-01"), Given({}, "y", "b")], "#/items")
    assert events.id.to_list() == ["x", "y"]
    assert events.label is not None
    assert events.label.to_list() == ["1", "b"]
    assert time.values.tolist() == [np.datetime64("2024-05-01", "ns").astype(int), 0]
    assert (time.given.tolist(), known_at.given.tolist()) == ([True, False], [False, False])
    for wrong in (17.0, "soon", "1500-01-01", "\ud800"):
        with pytest.raises(Problem, match="ISO 8601"):
            ROWS.moment(wrong, "#/as_of")
    for wrong in ("2024-05-01", float("nan"), 2.0**53, -1.797e308):
        with pytest.raises(Problem, match="plain numbers"):
            PLAIN.moment(wrong, "#/as_of")


@given(st.integers(-(2**63) + 2**55, 2**63 - 2**55))
def test_moments_come_back_exactly(moment: int) -> None:
    shown = ROWS.shown(moment)
    assert ROWS.moment(shown, "#") == moment
    year = int(str(shown)[:4]) if not str(shown).startswith("-") else 0
    if 1700 <= year < 2200 and int(str(shown)[8:10]) <= 28:
        assert re.fullmatch(MOMENT_PATTERN, str(shown))


@given(st.floats(-(2.0**53), 2.0**53, exclude_min=True, exclude_max=True))
def test_plain_numbers_come_back_exactly(moment: float) -> None:
    assert PLAIN.moment(PLAIN.shown(moment), "#") == moment


def test_the_contract_of_a_row() -> None:
    schema = row_schema(SCHEMA, 10)
    assert set(schema["properties"]) == {"a", "c", "t", "e", "secret"}
    assert ROWS.inputs([Given(example_row(SCHEMA))], "#").height == 1
    assert moment_schema(SCHEMA)["type"] == "string"
    assert moment_schema(PLAIN.schema)["type"] == "number"


def test_a_place_far_from_all_others_leaves_answers_whole(tickets: Path) -> None:
    with served(tickets) as (url, _), Client(url) as client:
        client.add([NewItem("far", {"place": [3e38, -3e38]}, "sorry")])
        (answer,) = client.predict([{"place": [-3e38, 3e38]}], precedents=64)
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert all(np.isfinite(each.weight) for each in answer.precedents)
