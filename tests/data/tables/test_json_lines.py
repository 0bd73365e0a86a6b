"""JSON lines keep the line of every row, and name those that are no objects."""

import json
from pathlib import Path

import polars as pl
import pytest

from recollect.data.tables import blocks, json_lines
from recollect.data.tables.json_lines import JsonLines
from recollect.data.tables.raw import Columns

COLUMNS: Columns = {"a": "number", "b": "text"}


@pytest.mark.parametrize("block_bytes", [5, 30, 10**6])
def test_lines_are_counted_with_empty_and_broken_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "t.jsonl").write_bytes(b'{"a": 1, "b": "x"}\n\n{"a": 2}\nnonsense\n{"b": "y\\nz"}\n')
    chunks = list(JsonLines(tmp_path / "t.jsonl").chunks(COLUMNS, 100))
    assert [number for chunk in chunks for number in chunk.numbers.tolist()] == [1, 3, 5]
    assert [row for chunk in chunks for row in chunk.rows.tolist()] == [0, 1, 3]
    assert [(bad.row, bad.place, bad.raw) for chunk in chunks for bad in chunk.broken] == [(2, "t.jsonl:4", "nonsense")]
    assert pl.concat([chunk.frame.cast(pl.String) for chunk in chunks])["b"].to_list() == ["x", None, "y\nz"]


def test_a_row_is_given_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"a": 1}\r\n{"a":  2.50, "other": [1]}\r\n')
    (chunk,) = JsonLines(tmp_path / "t.jsonl").chunks(COLUMNS, 100)
    assert chunk.frame["a"].dtype == pl.Float64
    assert chunk.raw_row(1) == '{"a":  2.50, "other": [1]}'


def test_new_fields_are_met_though_few_lines_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "LOOKED_AT", 10)
    monkeypatch.setattr(json_lines, "FEW_LINES", 10)
    rows = [{"a": row} if row < 150 else {"a": row, "b": 1} for row in range(400)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (chunk,) = JsonLines(tmp_path / "t.jsonl").chunks({"a": "number"}, 100)
    assert chunk.unread == {"b": 151}
