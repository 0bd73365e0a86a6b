"""A schema survives JSON, refuses what contradicts itself, and shows itself."""

import io
import json

import polars as pl
import pytest
from rich.console import Console

from recollect.data.schema import TableSchema, schema_table
from recollect.errors import DataError

FULL = TableSchema(
    time="at",
    time_unit="milliseconds",
    known_at="known",
    known_at_unit="datetime",
    label="label",
    id="id",
    text=("title", "body"),
    numeric=("price",),
    categorical=("shop",),
    embedding={"vector": 3},
    ignored={"junk": "no value in the first rows"},
)


def test_json_round_trip() -> None:
    assert TableSchema.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    assert TableSchema.from_json({"label": "y"}) == TableSchema(label="y")


def test_unknown_entries_of_json_are_named() -> None:
    with pytest.raises(DataError, match=r"no colour"):
        TableSchema.from_json({"label": "y", "colour": "red"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(label="y", numeric=("y",)), "declared twice"),
        (dict(), "no column"),
        (dict(time="at", label="y"), "has the unit None"),
        (dict(known_at="k", known_at_unit="datetime", label="y"), "another kind"),
        (dict(time="t", time_unit="number", known_at="k", known_at_unit="seconds"), "another kind"),
    ],
    ids=["twice", "nothing", "unit", "known_at alone", "two kinds"],
)
def test_contradictions_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TableSchema(**wrong)  # type: ignore[arg-type]


def test_every_column_is_shown_with_an_example_and_the_reason() -> None:
    rows = pl.DataFrame(
        {"at": [None, 5], "title": ["[bold]a\nb", "c"], "vector": [[0.5] * 30, None], "junk": [None, None]}
    )
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(schema_table(FULL, rows))
    shown = console.export_text()
    for name in FULL.columns:
        assert name in shown
    for text in (
        "time (milliseconds)",
        "embedding (3 wide)",
        "[bold]a b",
        "no value in the first rows",
        "declared",
        "...",
    ):
        assert text in shown
    console.print(schema_table(TableSchema(label="y"), pl.DataFrame({"y": [1]})))
    assert "the order of the rows" in console.export_text()


def test_a_label_that_was_not_found_is_told() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(schema_table(TableSchema(numeric=("x",)), pl.DataFrame({"x": [1]})))
    assert "none found: name it with --label" in console.export_text()
