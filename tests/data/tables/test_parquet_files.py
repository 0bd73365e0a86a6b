"""Names that a file has numbers for come as Categorical, and are the names that reading texts gives."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recollect.data.tables import parquet_files
from recollect.data.tables.parquet_files import ParquetTable
from recollect.data.tables.raw import Columns
from recollect.errors import DataError

NAMES: Columns = {"a": "name", "b": "name", "x": "number"}
cells = st.none() | st.sampled_from(["", "red", "a name of more than twelve bytes", "ü", "5.0", "\n"])
rows = st.lists(st.tuples(cells, cells, st.none() | st.integers(0, 3)), max_size=12)


@pytest.fixture(autouse=True)
def few_rows_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "FEW_BYTES", 10**6)


def written(path: Path, frame: pl.DataFrame, **options: Any) -> Path:
    """By Arrow, which makes a dictionary of any text."""
    types = {name: pa.int64() if kind == pl.Int64 else pa.string() for name, kind in frame.schema.items()}
    pq.write_table(frame.to_arrow().cast(pa.schema(types)), path, **options)
    return path


def read(path: Path, columns: Columns, chunk_rows: int = 100) -> pl.DataFrame:
    chunks = list(ParquetTable(path).chunks(columns, chunk_rows))
    assert [row for chunk in chunks for row in chunk.rows.tolist()] == list(range(sum(len(c.rows) for c in chunks)))
    return pl.concat([chunk.frame for chunk in chunks]) if chunks else pl.DataFrame()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, st.integers(1, 5), st.integers(1, 6))
def test_names_are_those_of_the_texts(
    tmp_path: Path, rows: list[tuple[Any, Any, Any]], group: int, chunk_rows: int
) -> None:
    frame = pl.DataFrame(rows, {"a": pl.String, "b": pl.String, "x": pl.Int64}, orient="row")
    path = written(tmp_path / "t.parquet", frame, row_group_size=group)
    texts = read(path, dict.fromkeys(frame.columns, "text"), chunk_rows)
    names = read(path, NAMES, chunk_rows)
    assert names.rows() == texts.rows() == frame.rows()
    assert names.columns == texts.columns
    if rows and group <= 2 * chunk_rows:
        assert names.dtypes == [pl.Categorical, pl.Categorical, pl.Int64]


def test_without_a_dictionary_they_are_texts(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": ["u", None] * 20, "b": ["v", "w"] * 20, "x": range(40)})
    path = written(tmp_path / "t.parquet", frame, use_dictionary=["a"])
    assert read(path, NAMES).dtypes == [pl.Categorical, pl.String, pl.Int64]
    assert read(path, NAMES).rows() == frame.rows()
    # Row groups too long to be read at once are cut, for which texts are read.
    assert read(path, NAMES, 10).dtypes == [pl.String, pl.String, pl.Int64]
    assert read(path, NAMES, 10).rows() == frame.rows()


def test_nothing_but_names(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": ["u", None, "v"], "b": [None] * 3}, {"a": pl.String, "b": pl.String})
    path = written(tmp_path / "t.parquet", frame)
    assert read(path, {"b": "name", "a": "name"}).rows() == [(None, "u"), (None, None), (None, "v")]


@pytest.mark.parametrize("name", ["*", "^a$", "^.*$", "a.b", "a.b.c", "", "ä"])
def test_a_column_of_any_name(tmp_path: Path, name: str) -> None:
    frame = pl.DataFrame({name: ["u", "v", "u"], "other": ["p", "q", None]})
    path = written(tmp_path / "t.parquet", frame)
    found = read(path, {name: "name", "other": "name"})
    assert found.columns == frame.columns
    assert found.rows() == frame.rows()


def test_numbers_and_categories_stay_what_they_are(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": [1, 2, 1], "c": pl.Series(["u", None, "v"], dtype=pl.Categorical)})
    frame.write_parquet(tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet", {"n": "name", "c": "name"}).equals(frame)


def test_names_that_are_not_utf_8_are_refused(tmp_path: Path) -> None:
    """By polars where it reads texts, and no less where Arrow reads names."""
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"], pa.binary()).buffers())
    pq.write_table(pa.table({"a": broken, "b": ["u", "v"], "x": [1, 2]}), tmp_path / "t.parquet")
    for columns in (NAMES, dict.fromkeys(NAMES, "text")):
        with pytest.raises(DataError, match="can't be read as Parquet"):
            read(tmp_path / "t.parquet", columns)  # type: ignore[arg-type]


def test_a_file_that_breaks_off_within_the_names_is_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": ["u", "v"] * 50, "b": ["w"] * 100, "x": range(100)})
    path = written(tmp_path / "t.parquet", frame, compression="none")
    whole = bytearray(path.read_bytes())
    whole[4:40] = b"\xff" * 36  # the first page of the first column
    path.write_bytes(whole)
    with pytest.raises(DataError, match="can't be read as Parquet"):
        read(path, NAMES)


def test_texts_of_which_most_differ_are_read_as_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    frame = pl.DataFrame({"a": [f"name {row}" for row in range(3000)], "b": ["u", "v", None] * 1000, "x": range(3000)})
    path = written(tmp_path / "t.parquet", frame)
    assert read(path, NAMES, 3000).dtypes == [pl.String, pl.Categorical, pl.Int64]
    assert read(path, NAMES, 3000).rows() == frame.rows()
