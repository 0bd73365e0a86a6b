"""Every format gives the same events; bad rows are named, counted or written out, never dropped in silence."""

import datetime
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recollect.data.events import Events
from recollect.data.inference import infer_schema
from recollect.data.reading import first_rows, read_all, read_events
from recollect.data.schema import TableSchema
from recollect.data.tables import blocks
from recollect.errors import BadRowError, DataError, OutputExistsError, SettingError
from tests.shared_data import shared

SCHEMA = TableSchema(
    time="time",
    time_unit="datetime",
    known_at="known_at",
    known_at_unit="datetime",
    label="label",
    id="id",
    text=("text",),
    numeric=("price",),
    categorical=("shop",),
    embedding={"vector": 2},
)
WRITTEN = TableSchema(time="at", time_unit="seconds", label="y", numeric=("x",))


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def joined(source: Any, schema: TableSchema | None = None, chunk_rows: int = 10**6) -> Events:
    return Events.concat(list(read_events(source, schema, chunk_rows=chunk_rows)))


def plain(events: Events) -> dict[str, Any]:
    """To be compared with ==."""
    return {
        "time": events.time.tolist(),
        "known_at": events.known_at.tolist(),
        "label": None if events.label is None else events.label.to_list(),
        "id": events.id.to_list(),
        "rows": events.rows.tolist(),
        **events.columns.to_dict(as_series=False),
    }


# The same events from every format

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), max_size=8)
number = st.floats(allow_nan=False, allow_infinity=False, width=32)
tables = st.lists(
    st.fixed_dictionaries(
        {
            "time": st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)),
            "delay": st.timedeltas(datetime.timedelta(0), datetime.timedelta(99)),
            "label": st.sampled_from(["yes", "no", "5", "maybe, or not"]),
            "text": st.none() | text,
            "price": st.none() | number,
            "shop": st.sampled_from([None, "a", 'the "b"', "c\nd", "ü"]),
            "vector": st.none() | st.lists(number, min_size=2, max_size=2),
        }
    ),
    min_size=1,
    max_size=12,
)


def made(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": [f"n{number}" for number in range(len(rows))],
            "time": pl.Series([row["time"] for row in rows], dtype=pl.Datetime("us", "UTC")),
            "known_at": pl.Series([row["time"] + row["delay"] for row in rows], dtype=pl.Datetime("us", "UTC")),
            **{name: pl.Series([row[name] for row in rows], dtype=pl.String) for name in ("label", "text", "shop")},
            "price": pl.Series([row["price"] for row in rows], dtype=pl.Float64),
            "vector": pl.Series([row["vector"] for row in rows], dtype=pl.List(pl.Float64)),
        }
    )


def as_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Times and lists as they are written in files of text."""
    return frame.with_columns(pl.col("time", "known_at").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"))


def jsonl(frame: pl.DataFrame) -> bytes:
    return lines(*as_texts(frame).to_dicts())


def csv_text(frame: pl.DataFrame) -> bytes:
    lists = [None if row is None else json.dumps(row) for row in frame["vector"].to_list()]
    return as_texts(frame).with_columns(pl.Series("vector", lists, pl.String)).write_csv().encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


WRITERS: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "t.jsonl": lambda frame, path: path.write_bytes(jsonl(frame)),
    "t.jsonl.gz": lambda frame, path: path.write_bytes(gzip.compress(jsonl(frame))),
    "t.jsonl.zst": lambda frame, path: path.write_bytes(zstd(jsonl(frame))),
    "t.csv": lambda frame, path: path.write_bytes(csv_text(frame)),
    "t.csv.gz": lambda frame, path: path.write_bytes(gzip.compress(csv_text(frame))),
    "t.parquet": lambda frame, path: frame.write_parquet(path),
}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables)
def test_every_format_gives_the_same_events(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    frame = made(rows)
    events = plain(joined(frame, SCHEMA))
    epoch = datetime.datetime(1970, 1, 1)
    micro = datetime.timedelta(microseconds=1)
    assert events["time"] == [(row["time"] - epoch) // micro * 1000 for row in rows]
    assert events["known_at"] == [(row["time"] + row["delay"] - epoch) // micro * 1000 for row in rows]
    assert events["label"] == [row["label"] for row in rows]
    assert events["text"] == [row["text"] or None for row in rows]
    assert events["shop"] == [row["shop"] for row in rows]
    assert events["price"] == [row["price"] for row in rows]
    assert events["vector"] == [row["vector"] for row in rows]
    for table in (frame.to_arrow(), frame.to_pandas()):
        assert plain(joined(table, SCHEMA)) == events, type(table)
    for name, write in WRITERS.items():
        write(frame, tmp_path / name)
        assert plain(joined(tmp_path / name, SCHEMA)) == events, name


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables, st.integers(1, 5), st.integers(100, 600))
def test_chunks_of_any_size_give_the_same_events(
    tmp_path: Path, rows: list[dict[str, Any]], chunk_rows: int, block_bytes: int
) -> None:
    frame = made(rows)
    events = plain(joined(frame, SCHEMA))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        for name in ("t.jsonl", "t.csv.gz", "t.parquet"):
            WRITERS[name](frame, tmp_path / name)
            chunks = list(read_events(tmp_path / name, SCHEMA, chunk_rows=chunk_rows))
            assert max(map(len, chunks)) <= chunk_rows
            assert plain(Events.concat(chunks)) == events, name


def test_types_may_change_from_chunk_to_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(
        lines({"at": 1, "y": 1, "x": 1}, {"at": 2.5, "y": "b", "x": "2.5"}, {"at": "3", "y": True, "x": None})
    )
    for block_bytes in (10, 10**6):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        events = joined(path, WRITTEN)
        assert events.time.tolist() == [10**9, 2_500_000_000, 3 * 10**9]
        assert events.label is not None
        assert events.label.to_list() == ["1", "b", "true"]
        assert events.columns["x"].to_list() == [1.0, 2.5, None]


def test_labels_that_are_whole_numbers_have_no_point(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\n5.0,1\n4,2\nv2.0,3\n")
    (tmp_path / "t.jsonl").write_bytes(lines({"y": 5.0}, {"y": 4}, {"y": "v2.0"}))
    for name in ("t.csv", "t.jsonl"):
        events = joined(tmp_path / name, TableSchema(label="y"))
        assert events.label is not None
        assert events.label.to_list() == ["5", "4", "v2.0"]


@pytest.mark.parametrize("mark", ["NA", "N/A", "null", "None", "?", "-", ""])
def test_a_column_of_numbers_may_say_that_one_is_missing(tmp_path: Path, mark: str) -> None:
    numbers = [number + 0.5 for number in range(30)]
    (tmp_path / "t.csv").write_text("x,n,y\n" + "".join(f"{x},{int(x)},a\n" for x in numbers) + f"{mark},{mark},b\n")
    (tmp_path / "t.jsonl").write_bytes(
        lines(*({"x": x, "n": int(x), "y": "a"} for x in numbers), {"x": mark, "n": mark, "y": "b"})
    )
    for name in ("t.csv", "t.jsonl"):
        schema = infer_schema(first_rows(tmp_path / name))
        assert schema.numeric == ("x", "n"), name
        assert joined(tmp_path / name, schema).columns["x"].to_list() == [*numbers, None]


def test_numbers_too_large_are_names_in_every_format(tmp_path: Path) -> None:
    """A float would round them, and two ids would be one."""
    ids = [2**63 + number for number in range(30)]
    (tmp_path / "t.csv").write_text("id,code,y\n" + "".join(f"{id},{id % 3 + 2**64},a\n" for id in ids))
    (tmp_path / "t.jsonl").write_bytes(lines(*({"id": id, "code": id % 3 + 2**64, "y": "a"} for id in ids)))
    for name in ("t.csv", "t.jsonl"):
        schema = infer_schema(first_rows(tmp_path / name))
        assert (schema.id, schema.numeric) == ("id", ()), name
        events = joined(tmp_path / name, schema)
        assert events.id.to_list() == [str(id) for id in ids]


def test_truth_has_one_name_in_every_format(tmp_path: Path) -> None:
    frame = pl.DataFrame({"label": [True, False, True] * 10, "c": [False, True, None] * 10, "x": range(30)})
    frame.to_pandas().to_csv(tmp_path / "t.csv", index=False)  # which writes True
    frame.write_ndjson(tmp_path / "t.jsonl")
    frame.write_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        schema = infer_schema(first_rows(tmp_path / name))
        assert schema.categorical == ("c",)
        events = joined(tmp_path / name, schema)
        assert events.label is not None
        assert events.label.to_list() == ["true", "false", "true"] * 10
        assert events.columns["c"].to_list() == ["false", "true", None] * 10


def test_missing_values_are_not_bad(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at,y,x,c\n1,a,NA,\n2,b, nan ,NA\n3,c,,x\n4,d,true,\n")
    schema = TableSchema(time="at", time_unit="number", label="y", numeric=("x",), categorical=("c",))
    events = joined(tmp_path / "t.csv", schema)
    assert events.columns.to_dict(as_series=False) == {"x": [None, None, None, 1.0], "c": [None, "NA", "x", None]}


def test_a_field_that_comes_late_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"at": row, "y": "a", "x": 1, "other": 2} for row in range(1500)]
    path.write_bytes(lines(*rows, {**rows[0], "late": 5}, "no object", {"late": 1, "later": 1, "y": "late"}))
    for block_bytes in (10**3, 10**7):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        reading = read_events(path, WRITTEN, bad_rows="skip")
        assert sum(map(len, reading)) == 1501
        assert reading.summary.late_fields == {"late": 1501, "later": 1503}
    assert "; field late first seen at line 1501 was not read: have a row with it among the first 1000" in str(
        reading.summary
    )


# Order and ids


def test_a_feature_that_no_row_has_is_told(tmp_path: Path) -> None:
    """Perhaps its field was renamed: of JSON a line may lack any."""
    (tmp_path / "t.jsonl").write_bytes(lines({"amt": 1, "y": "a"}, {"amt": 2, "y": "b"}))
    events, reading = read_all(tmp_path / "t.jsonl", TableSchema(numeric=("amount",), label="y"))
    assert events.columns["amount"].to_list() == [None, None]
    assert reading.summary.has_gaps
    assert "missing in every row: amount" in str(reading.summary)
    assert reading.summary.to_json()["empty_columns"] == ["amount"]
    _, reading = read_all(tmp_path / "t.jsonl", TableSchema(numeric=("amt",), label="y"))
    assert not reading.summary.has_gaps


def test_spaces_around_a_name_are_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at, y\n1, a\n2,a\n3, \n")
    events, reading = read_all(tmp_path / "t.csv", TableSchema(label="y"), bad_rows="skip")
    assert events.label is not None
    assert (events.label.to_list(), reading.summary.bad) == (["a", "a"], {"no label": 1})


def test_row_order_is_the_time_and_the_place_the_id(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"y": 1}\n\n{"y": 2}\n')
    events = joined(tmp_path / "t.jsonl", TableSchema(label="y"))
    assert events.time.dtype == np.float64
    assert events.time.tolist() == events.known_at.tolist() == [0.0, 1.0]
    assert events.id.to_list() == ["t.jsonl:1", "t.jsonl:3"]
    assert joined(pl.DataFrame({"y": [1]}), TableSchema(label="y")).id.to_list() == ["table:row 0"]


def test_skipping_a_row_moves_no_time(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"y": 1}\nnonsense\n{"z": 2}\n{"y": 2}\n')
    (chunk,) = read_events(tmp_path / "t.jsonl", TableSchema(label="y"), bad_rows="skip")
    assert chunk.time.tolist() == [0.0, 3.0]


def test_read_all_sorts_by_known_at_and_keeps_ties() -> None:
    frame = pl.DataFrame({"at": [1, 2, 3, 1], "known": [9, 5, 5, 1], "y": ["a", "b", "c", "d"]})
    schema = TableSchema(time="at", time_unit="number", known_at="known", known_at_unit="number", label="y")
    events, reading = read_all(frame, schema)
    assert events.label is not None
    assert events.label.to_list() == ["d", "b", "c", "a"]
    assert events.rows.tolist() == [3, 1, 2, 0]
    assert reading.summary.events == 4


def test_a_table_without_a_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at,y,x\n")
    assert list(read_events(tmp_path / "t.csv", WRITTEN)) == []
    with pytest.raises(DataError, match=r"t\.csv has no row that can be used"):
        read_all(tmp_path / "t.csv", WRITTEN)
    for name in ("t.csv", "e.csv", "e.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match="give a table with rows"):
            read_events(tmp_path / name)


# Bad rows

GOOD = {"id": "a", "time": "2024-05-01", "known_at": "2024-05-02", "label": "x", "price": 1, "vector": [1, 2]}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (b"{broken", "broken line", "is not JSON"),
        (b"[1, 2]", "broken line", "is not a JSON object but list"),
        (b'{"id": "\xff"}', "broken line", "is not UTF-8"),
        (b'{"id": "a", "price": 1e400}', "broken line", "too large"),
        (b'{"id": "a", "price": NaN}', "broken line", "NaN is no JSON"),
        ({"time": "yesterday"}, "not a time", "the time 'yesterday' is not a time I know: give ISO 8601"),
        ({"time": "202-05-01"}, "not a time", "the time '202-05-01' is not a time I know: give ISO 8601"),
        ({"time": None}, "no time", "the time is missing"),
        ({"known_at": "soon"}, "not a known_at", "the known_at 'soon' is not a time I know"),
        ({"known_at": "2024-04-30"}, "known before it happened", "known_at 2024-04-30 is before the time 2024-05-01"),
        ({"label": None}, "no label", "the label is missing"),
        ({"label": ""}, "no label", "the label is missing"),
        ({"id": None}, "no id", "the id is missing"),
        ({"price": "cheap"}, "not a number: price", "price is 'cheap', not a number"),
        ({"price": {"a": 1}}, "not a number: price", "not a number"),
        ({"price": "inf"}, "infinite: price", "price is infinite"),
        ({"vector": [1, 2, 3]}, "wrong width: vector", "vector has 3 numbers where 2 are read: mend it"),
        ({"vector": [1, "x"]}, "not finite: vector", "not a finite number"),
        ({"vector": [1, None]}, "not finite: vector", "not a finite number"),
        ({"vector": [1, 1e60]}, "not finite: vector", "not a finite number"),
        ({"vector": 5}, "not a list: vector", "vector is not a list of numbers"),
    ],
    ids=str,
)
def test_each_kind_of_bad_row_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, kind: str, message: str
) -> None:
    good = lines(GOOD)
    bad = change + b"\n" if isinstance(change, bytes) else lines(GOOD | change)
    path = tmp_path / "t.jsonl"
    path.write_bytes(good * 3 + b"\n" + bad + good + bad + good)
    reading = read_events(path, SCHEMA)
    with pytest.raises(BadRowError) as caught:
        list(reading)
    assert str(caught.value).startswith("t.jsonl:5: ")
    assert message in str(caught.value)
    assert "(1 more bad row among the 7 rows read with it: " in str(caught.value)
    assert "--bad-rows skip" in str(caught.value)
    for block_bytes in (10, 250, 10**6):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        reading = read_events(path, SCHEMA, bad_rows="skip")
        events = Events.concat(list(reading))
        assert events.rows.tolist() == [0, 1, 2, 4, 6]
        assert reading.summary.bad == {kind: 2}
        assert reading.summary.events == 5
        assert f"2 bad rows left out ({kind} 2)" in str(reading.summary)


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ("1,b", "wrong number of values", "the row has 2 values, there are 4 columns"),
        ("1,b,2,c,5", "wrong number of values", "the row has 5 values, there are 4 columns"),
        ('1,"b,2,c', "broken line", "can't be taken apart"),
        ("1,b,cheap,c", "not a number: x", "x is 'cheap'"),
        ("1,b,inf,c", "infinite: x", "x is infinite"),
        ("later,b,2,c", "not a time", "the time 'later' is not a time I know: it is read as seconds since 1970"),
        (",b,2,c", "no time", "the time is missing"),
        ("1,,2,c", "no label", "the label is missing"),
        ("1,b,2,\udcff", "broken line", "is not UTF-8"),
    ],
)
def test_bad_rows_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, kind: str, message: str) -> None:
    path = tmp_path / "t.csv"
    text = f'at,y,x,note\n1,a,1,"two\nlines, ""quoted"""\n2,a,,\n\n{row}\n3,a,1,\n4,a,1,n\n'
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadRowError) as caught:
        list(read_events(path, WRITTEN))
    assert str(caught.value).startswith("t.csv:6: ")
    assert message in str(caught.value)
    for block_bytes in (10**6,) if "can't" in message else (10, 60, 10**6):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        reading = read_events(path, WRITTEN, bad_rows="skip")
        events = Events.concat(list(reading))
        assert events.time.tolist() == [10**9, 2 * 10**9, 3 * 10**9, 4 * 10**9]
        assert events.id.to_list() == [f"t.csv:{line}" for line in (2, 4, 7, 8)]
        assert reading.summary.bad == {kind: 1}


def test_a_time_in_another_unit_is_a_bad_row() -> None:
    frame = pl.DataFrame({"at": [1_714_564_800_000, 1_714_564_801, 1_714_564_802_000], "y": list("abc")})
    schema = TableSchema(time="at", time_unit="milliseconds", label="y")
    with pytest.raises(BadRowError, match="row 1: the time 1714564801 is not in milliseconds, as the others"):
        list(read_events(frame, schema))
    reading = read_events(frame, schema, bad_rows="skip")
    assert sum(map(len, reading)) == 2
    assert reading.summary.bad == {"another unit of time": 1}


def test_a_file_that_is_all_in_another_unit_is_told_by_the_first_rows_of_the_one_before() -> None:
    frame = pl.DataFrame(
        {"time": [1_714_564_800_000 + 1000 * row for row in range(20)], "x": 1.5, "y": list("ab") * 10}
    )
    schema = infer_schema(frame, label="y")
    assert schema.time_unit == "milliseconds"
    again = TableSchema.from_json(json.loads(json.dumps(schema.to_json())))
    later = frame.with_columns(pl.col("time") // 1000)
    with pytest.raises(BadRowError, match="row 0: the time 1714564800 is not in milliseconds, as the others"):
        list(read_events(later, again))
    for chunk_rows in (7, 20, 100):  # whatever else is in a chunk
        reading = read_events(pl.concat([frame, later]), again, bad_rows="skip", chunk_rows=chunk_rows)
        assert sum(map(len, reading)) == 20
        assert reading.summary.bad == {"another unit of time": 20}


def test_columns_that_only_a_later_file_has_are_told() -> None:
    frame = pl.DataFrame({"x": [1.5, 2.5], "y": list("ab"), "new": [1, 2], "old": [3, 4]})
    schema = TableSchema(label="y", numeric=("x",), ignored={"old": "declared"})
    events, reading = read_all(frame, schema, every_column=True)
    assert (len(events), reading.summary.unknown, reading.summary.has_gaps) == (2, ("new",), True)
    assert "not read, for the schema knows no such column: new" in str(reading.summary)
    assert reading.summary.to_json()["unknown_columns"] == ["new"]
    assert read_all(frame, schema)[1].summary.unknown == ()


def test_a_row_of_a_frame_is_named_by_its_number() -> None:
    frame = pl.DataFrame({"at": [1, 2], "y": ["a", None], "x": [1.0, 2.0]})
    with pytest.raises(BadRowError, match=r"^table:row 1: the label is missing"):
        list(read_events(frame, WRITTEN))


def test_a_value_in_a_column_of_several_types_is_judged_for_itself() -> None:
    frame = made(
        [{"time": datetime.datetime(2024, 1, 1), "delay": datetime.timedelta(0), **GOOD_VALUES}] * 3
    ).to_pandas()
    frame["price"] = [1, "cheap", None]
    reading = read_events(frame, SCHEMA, bad_rows="skip")
    assert Events.concat(list(reading)).columns["price"].to_list() == [1.0, None]
    assert reading.summary.bad == {"not a number: price": 1}


GOOD_VALUES = {"label": "x", "text": None, "price": 1.0, "shop": None, "vector": None}


def test_bad_rows_are_written_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines({"at": 1, "y": "a"}) + b"{broken\n" + lines({"at": 2, "y": None, "other": 7}))
    reading = read_events(path, WRITTEN, bad_rows="file")
    assert len(Events.concat(list(reading))) == 1
    written = [json.loads(line) for line in (tmp_path / "t.jsonl.bad.jsonl").read_text().splitlines()]
    assert [(row["place"], row["kind"]) for row in written] == [("t.jsonl:2", "broken line"), ("t.jsonl:3", "no label")]
    assert written[0]["row"] == "{broken"
    assert json.loads(written[1]["row"]) == {"at": 2, "y": None, "other": 7}
    assert written[1]["reason"] == "the label is missing"
    assert "they are in" in str(reading.summary)
    list(read_events(path, WRITTEN, bad_rows="file", bad_rows_file=tmp_path / "other.jsonl"))
    assert (tmp_path / "other.jsonl").exists()
    with pytest.raises(OutputExistsError, match=r"other\.jsonl is there already: remove it, or name another file"):
        read_events(path, WRITTEN, bad_rows="file", bad_rows_file=tmp_path / "other.jsonl")


def test_reading_again_keeps_the_bad_rows_of_the_first_time(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(lines({"at": 1, "y": "a", "x": 1}) + b"{broken\n")
    for name in ("t.jsonl.bad.jsonl", "t.jsonl.bad-2.jsonl", "t.jsonl.bad-3.jsonl"):
        assert not (tmp_path / name).exists()
        reading = read_events(path, WRITTEN, bad_rows="file")
        list(reading)
        assert str(reading.summary).endswith(f"they are in {tmp_path / name}")
        assert len((tmp_path / name).read_text().splitlines()) == 1


def test_no_bad_row_no_file(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(lines({"at": 1, "y": "a"}))
    list(read_events(tmp_path / "t.jsonl", WRITTEN, bad_rows="file"))
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_settings_that_can_not_be() -> None:
    frame = pl.DataFrame({"y": [1]})
    with pytest.raises(SettingError, match="give bad_rows_file"):
        read_events(frame, TableSchema(label="y"), bad_rows="file")
    with pytest.raises(SettingError, match="at least 1"):
        read_events(frame, TableSchema(label="y"), chunk_rows=0)


# Real data


def test_reviews(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    with gzip.open(shared("amazon_electronics_reviews.jsonl.gz"), "rt", encoding="utf-8") as file:
        path.write_text("".join(next(file) for _ in range(5000)), encoding="utf-8")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    schema = infer_schema(first_rows(path), label="rating")
    assert (schema.time, schema.time_unit, schema.id) == ("timestamp", "milliseconds", "review_id")
    assert schema.text == ("title", "text")
    assert schema.categorical == ("asin", "category")
    events = joined(path, schema, chunk_rows=700)
    assert events.time.tolist() == [row["timestamp"] * 10**6 for row in rows]
    assert events.label is not None
    assert events.label.to_list() == [str(int(row["rating"])) for row in rows]
    assert events.columns["text"].to_list() == [row["text"] or None for row in rows]
    assert events.id.to_list() == [row["review_id"] for row in rows]


def test_accidents() -> None:
    path = shared("us_accidents.csv.gz")
    rows = first_rows(path)
    for name, message in (("year_acc", "holds years"), ("season_acc", "does not hold times")):
        with pytest.raises(DataError, match=message):
            infer_schema(rows, time=name, label="target")
    schema = infer_schema(rows, label="target")
    assert schema.time is None
    assert schema.text == ("Description",)
    assert "is it known before the label?" in schema.why["target_multi"]
    events, reading = read_all(path, schema)
    assert len(events) == 50_000
    assert not reading.summary.bad
    assert events.columns["Humidity(%)"].dtype == pl.Float64


def test_electricity() -> None:
    events, reading = read_all(shared("electricity.csv.gz"))
    assert len(events) == 45_312
    assert reading.schema.numeric == tuple(f"feat_{number}" for number in range(1, 7))
    assert events.label is not None
    assert sorted(events.label.unique()) == ["0", "1"]
    assert events.time.tolist() == list(range(45_312))


# Names that polars would take for patterns

PATTERNS = {
    "when": ["2024-05-01", "2024-05-02", "2024-05-03"] * 20,
    "^x.*$": [1.5, None, 3.0] * 20,
    "xx": [1, 2, 3] * 20,
    "*": ["a", "b", "b"] * 20,
    "^v$": [[1.0, 2.0], None, [0.5, 0.5]] * 20,
    "^y.*$": ["no", "yes", "no"] * 20,
    "^known.*$": ["2024-05-01", "2024-05-02", "2024-05-04"] * 20,
}


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_name_is_not_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    frame, path = pl.DataFrame(PATTERNS), tmp_path / name
    if name == "t.parquet":
        frame.write_parquet(path)
    elif name == "t.jsonl":
        path.write_bytes(lines(*frame.to_dicts()) + b'{"xx": 1e400}\n')
    else:
        lists = [None if row is None else json.dumps(row) for row in frame["^v$"].to_list()]
        columns = [pl.Series("^v$", lists) if each.name == "^v$" else each for each in frame.get_columns()]
        path.write_bytes(pl.DataFrame(columns).write_csv().encode() + b'2024-05-03,1,1,"a\nb",,no,2024-05-04\n1,2\n')
    schema = infer_schema(first_rows(path, 60), label="^y.*$", known_at="^known.*$")
    assert (schema.time, schema.numeric, schema.categorical) == ("when", ("^x.*$", "xx"), ("*",))
    assert schema.embedding == {"^v$": 2}
    for block_bytes in (200, 10**6):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        reading = read_events(path, schema, bad_rows="skip")
        events = Events.concat(list(reading)).part(0, 60)
        assert events.columns.to_dict(as_series=False) == {each: PATTERNS[each] for each in schema.features}
        assert events.label is not None
        assert events.label.to_list() == PATTERNS["^y.*$"]


def test_a_pattern_that_is_known_before_it_happened_is_named() -> None:
    frame = pl.DataFrame({"^t.*$": [5], "^k.*$": [1], "t": [0], "y": ["a"]})
    schema = infer_schema(frame, time="^t.*$", known_at="^k.*$", ignore=["t"])
    with pytest.raises(BadRowError, match="known_at 1 is before the time 5"):
        list(read_events(frame, schema))


def test_categories_of_pandas_are_names_also_where_they_are_numbers() -> None:
    frame = pl.DataFrame({"when": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]}).to_pandas()
    frame["zone"] = pd.Categorical([30, None, 4])
    schema = infer_schema(first_rows(frame), time="when", label="y")
    assert schema.categorical == ("zone",)
    events, _ = read_all(frame, schema)
    assert events.columns["zone"].to_list() == ["30", None, "4"]


def test_a_column_of_a_type_that_no_table_has_is_refused_or_read_as_text() -> None:
    frame = pl.DataFrame({"when": [1.0, 2.0], "y": ["a", "b"]}).to_pandas()
    frame["z"] = [1 + 2j, 3j]
    assert first_rows(frame)["z"].dtype == pl.String
