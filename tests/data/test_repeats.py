"""Rows whose id came before: bad rows, or a column that was none of ids."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from recollect.data.reading import read_all, read_events
from recollect.data.schema import TableSchema
from recollect.errors import BadRowError, DataError


def test_of_rows_with_one_id_the_first_of_the_table_stays(tmp_path: Path) -> None:
    """Whichever happened first; a row after one of several lines is named by its own."""
    schema = TableSchema(time="t", time_unit="number", label="y", id="id", text=("x",))
    table = tmp_path / "t.csv"
    table.write_text('t,y,id,x\n3,a,p,"two\nlines"\n1,b,q,\n2,c,p,\n0,d,p,late\n')
    with pytest.raises(BadRowError, match=r"^t.csv:5: its id 'p' is that of t.csv:2, .*\(1 more bad row.*--bad-rows"):
        read_all(table, schema, repeated_ids="bad")
    for bad_rows in ("skip", "file"):
        file = tmp_path / "bad.jsonl"
        events, reading = read_all(table, schema, bad_rows=bad_rows, bad_rows_file=file, repeated_ids="bad")
        assert (events.id.to_list(), events.time.tolist()) == (["q", "p"], [1.0, 3.0])
        assert (reading.summary.events, reading.summary.bad) == (2, {"id met before": 2})
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["place"] for each in written] == ["t.csv:5", "t.csv:6"]
    assert written[1]["row"] == {"t": "0", "y": "d", "id": "p", "x": "late"}
    assert read_all(table, schema)[0].id.to_list() == ["p", "q", "p", "p"]


def test_ids_are_met_again_in_later_chunks_and_not_in_another_reading() -> None:
    frame = pl.DataFrame({"t": [3, 1, 2, 0], "y": list("abcd"), "id": list("pqpr"), "x": list("abcd")})
    schema = TableSchema(time="t", time_unit="number", label="y", id="id", text=("x",))
    reading = read_events(frame, schema, chunk_rows=1, bad_rows="skip", repeated_ids="bad")
    for _ in range(2):
        assert [events.id.to_list() for events in reading if len(events)] == [["p"], ["q"], ["r"]]
        assert reading.summary.bad == {"id met before": 1}


@pytest.mark.parametrize("bad_rows", ["fail", "skip", "file"])
def test_a_column_that_only_looked_like_ids_is_told_whatever_is_done_with_bad_rows(bad_rows: Any) -> None:
    frame = pl.DataFrame({"t": [3, 1, 2], "y": list("abc"), "customer": list("pqp")})
    schema = TableSchema(time="t", time_unit="number", label="y", id="customer")
    told = r"^table:row 2: the column customer looks like ids .* that of table:row 0.*--ignore customer.*--id customer"
    with pytest.raises(DataError, match=told):
        read_all(frame, schema, bad_rows=bad_rows, bad_rows_file="never.jsonl", repeated_ids="refuse")
