"""Files that are not what they seem are refused by name; compressed ones are read to their end."""

import datetime
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recollect.data.reading import first_rows, read_all, read_events
from recollect.data.schema import TableSchema
from recollect.data.tables.sources import open_table
from recollect.errors import DataError

SCHEMA = TableSchema(label="y")


def labels(source: Any) -> list[str]:
    chunks = list(read_events(source, SCHEMA))
    return [label for chunk in chunks if chunk.label is not None for label in chunk.label.to_list()]


@pytest.mark.parametrize(
    "source",
    [pl.DataFrame({"z": [1]}), pa.table({"z": [1]}), pd.DataFrame({"z": [1]}), "t.csv", "t.parquet"],
    ids=["polars", "arrow", "pandas", "csv", "parquet"],
)
def test_a_column_that_is_not_there_is_named(tmp_path: Path, source: Any) -> None:
    pl.DataFrame({"z": [1]}).write_csv(tmp_path / "t.csv")
    pl.DataFrame({"z": [1]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has no column y; its columns are z"):
        labels(tmp_path / source if isinstance(source, str) else source)


def test_files_in_several_compressed_parts_are_read_to_their_end(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"y\na\n") + gzip.compress(b"b\n"))
    assert labels(tmp_path / "t.csv.gz") == ["a", "b"]


def test_a_file_is_what_it_begins_with_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(b'{"y": "a"}\n'))
    (tmp_path / "plain.csv.gz").write_bytes(b"y\na\n")
    assert labels(tmp_path / "packed.jsonl") == labels(tmp_path / "plain.csv.gz") == ["a"]


def packed(text: bytes) -> bytes:
    return pa.Codec("zstd").compress(text, asbytes=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", [b"\x50", b"\x5f"])
def test_zstd_may_begin_with_a_frame_to_be_skipped(tmp_path: Path, first: bytes) -> None:
    """As pzstd writes one before each of its parts."""
    skipped = first + b"\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    (tmp_path / "t.jsonl").write_bytes(skipped + packed(b'{"y": "a"}\n') + skipped + packed(b'{"y": "b"}\n'))
    assert labels(tmp_path / "t.jsonl") == ["a", "b"]


def test_zstd_that_needs_much_memory_is_told_from_a_file_cut_short(tmp_path: Path) -> None:
    whole = bytearray(packed(b"y\na\n" * 100_000))
    (tmp_path / "t.csv").write_bytes(whole[:-10])
    with pytest.raises(DataError, match=r"copy it again$"):
        labels(tmp_path / "t.csv")
    # A frame that says how much has to be remembered, which is 2 GB, instead of how long it is.
    (tmp_path / "t.csv").write_bytes(b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x09\x00\x00a")
    with pytest.raises(
        DataError, match=r"too much memory.*: pack it again without --long, or unpack it first with zstd -d --long=31$"
    ):
        labels(tmp_path / "t.csv")


@pytest.mark.parametrize("kind", ["polars", "arrow", "pandas", "parquet", "csv", "jsonl"])
def test_a_table_without_rows_is_told_as_one(tmp_path: Path, kind: str) -> None:
    frame = pl.DataFrame({"time": [], "y": []}, {"time": pl.Datetime, "y": pl.String})
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_csv(tmp_path / "t.csv")
    (tmp_path / "t.jsonl").touch()
    sources = {"polars": frame, "arrow": frame.to_arrow(), "pandas": frame.to_pandas()}
    source = sources.get(kind, tmp_path / f"t.{kind}")
    for read in (first_rows, read_all):
        with pytest.raises(DataError, match=r"has no (rows|row below|line that).*: give a table with rows"):
            read(source)


def test_lines_that_are_all_no_json_are_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"y": "caf\xe9"}\n' * 3)
    with pytest.raises(DataError, match=r"no line that is a JSON object, the first one is not UTF-8 \(.* at byte 10\)"):
        first_rows(tmp_path / "t.jsonl")


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"y": "a"}\n' * 1000)
    (tmp_path / "t.jsonl.gz").write_bytes(whole[:-10])
    with pytest.raises(DataError, match="can't be unpacked to its end"):
        labels(tmp_path / "t.jsonl.gz")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="can't be read as Parquet"):
        labels(tmp_path / "t.parquet")


def test_a_byte_order_mark_and_other_separators(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfy;x\r\na;1,5\r\nb;2\r\n")
    assert labels(tmp_path / "t.csv") == ["a", "b"]
    (tmp_path / "t.jsonl").write_bytes(b'\xef\xbb\xbf{"y": "a"}\r\n{"y": "b"}')
    assert labels(tmp_path / "t.jsonl") == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "message"),
    [("absent.csv", "is not there: give the path"), ("t.xlsx", "unknown ending"), ([1], "a table came as list")],
    ids=["absent", "ending", "list"],
)
def test_what_is_no_table(tmp_path: Path, source: Any, message: str) -> None:
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(DataError, match=message):
        read_events(tmp_path / source if isinstance(source, str) else source)


def test_columns_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,y\n1,2\n")
    frame = pd.DataFrame([[1, 2]], columns=["y", "y"])
    arrow = pa.table([pa.array([1]), pa.array([2])], names=["y", "y"])
    for source in (tmp_path / "t.csv", frame, arrow):
        with pytest.raises(DataError, match="two columns"):
            labels(source)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, "x", pd.NA], ["1", "x", None]),
        ([2**70, 1, None], [str(2**70), "1", None]),
        (["a\ud800", "b"], ["a?", "b"]),
        (
            [datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 2, 12), pd.NaT],
            ["2024-01-01", "2024-01-02 12:00:00", None],
        ),
    ],
    ids=["several types", "large", "half a character", "dates and moments"],
)
def test_objects_of_pandas_are_told_apart(values: list[Any], texts: list[str | None]) -> None:
    frame = pd.DataFrame({"y": pd.Series(values, dtype=object)})
    assert open_table(frame).first_rows(3)["y"].to_list() == texts


def test_sparse_columns_of_pandas_are_read_as_others() -> None:
    frame = pd.DataFrame({"y": pd.arrays.SparseArray([0.0, 0.0, 1.5])})
    assert open_table(frame).first_rows(3)["y"].to_list() == [0.0, 0.0, 1.5]


ODD = {
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["a", "b"])),
    "month_day_nano_interval": pa.array([pa.MonthDayNano([1, 2, 3])] * 2),
    "decimal256": pa.array([Decimal("1.5")] * 2, pa.decimal256(50, 2)),
    "dictionary<.*decimal256": pa.DictionaryArray.from_arrays(
        pa.array([0, 0], pa.int32()), pa.array([Decimal("1.5")], pa.decimal256(50, 2))
    ),
    "list<.*decimal256": pa.array([[Decimal("1.5")]] * 2, pa.list_(pa.decimal256(50, 2))),
    "list_view": pa.array([[1], [2]], pa.list_view(pa.int64())),
    "sparse_union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_column_of_a_type_that_nobody_reads_is_named_and_stands_in_no_other_s_way(kind: str) -> None:
    table = pa.table({"y": ["a", "b"], "odd": ODD[kind]})
    with pytest.raises(DataError, match=f"column odd of {kind}.*: cast it to another type"):
        first_rows(table)
    with pytest.raises(DataError, match=f"column odd of {kind}.*: cast it to another type"):
        list(read_events(table, TableSchema(label="y", numeric=("odd",))))
    assert labels(table) == labels(table.slice(0, 1)) + labels(table.slice(1)) == ["a", "b"]


def test_decimals_of_many_digits_are_told_from_a_broken_file_and_stand_in_no_other_s_way(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": ["a", "b"], "odd": ODD["decimal256"]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t.parquet has a column odd of decimal256.*: cast it to another type"):
        first_rows(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t.parquet has a column odd of decimal256.*: cast it to another type"):
        list(read_events(tmp_path / "t.parquet", TableSchema(label="y", numeric=("odd",))))
    assert labels(tmp_path / "t.parquet") == ["a", "b"]
    objects = pd.DataFrame({"y": ["a", "b"], "x": pd.Series([Decimal(10**45), Decimal("2.5")], dtype=object)})
    assert first_rows(objects)["x"].to_list() == [str(10**45), "2.5"]


def test_the_name_of_a_file_is_not_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "day=1" / "part[1]*.parquet"
    path.parent.mkdir()
    pl.DataFrame({"y": ["a", "b"]}).write_parquet(path)
    assert labels(path) == ["a", "b"]


def test_row_groups_and_chunks_need_not_agree(tmp_path: Path) -> None:
    names = [str(number) for number in range(23)]
    pl.DataFrame({"y": names}).write_parquet(tmp_path / "t.parquet", row_group_size=5)
    for chunk_rows in (1, 4, 5, 7, 100):
        chunks = list(read_events(tmp_path / "t.parquet", SCHEMA, chunk_rows=chunk_rows))
        assert max(map(len, chunks)) <= chunk_rows
        assert [label for chunk in chunks if chunk.label is not None for label in chunk.label] == names
        assert [row for chunk in chunks for row in chunk.rows.tolist()] == list(range(23))


@pytest.mark.parametrize(("chunk_rows", "rows"), [(2, [2, 3] * 4 + [3]), (3, [5] * 4 + [3]), (14, [10, 13])])
def test_row_groups_are_read_whole_unless_they_are_long(tmp_path: Path, chunk_rows: int, rows: list[int]) -> None:
    pl.DataFrame({"y": range(23)}).write_parquet(tmp_path / "t.parquet", row_group_size=5)
    chunks = list(open_table(tmp_path / "t.parquet").chunks(SCHEMA.hopes(), chunk_rows))
    assert [chunk.frame.height for chunk in chunks] == rows
    assert [row for chunk in chunks for row in chunk.rows.tolist()] == list(range(23))
