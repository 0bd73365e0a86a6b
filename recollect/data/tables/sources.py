"""Whatever a user calls a table, as something to read in chunks: files by their ending, frames by their library.

Frames and Parquet files keep the types of their columns. pandas is never imported: a frame of it brings it along.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from recollect.data.tables.csv_files import Csv
from recollect.data.tables.json_lines import JsonLines
from recollect.data.tables.parquet_files import ParquetTable
from recollect.data.tables.raw import (
    Columns,
    NumberedRows,
    RawChunk,
    Table,
    check_columns,
    check_types,
    is_unreadable,
    numbered,
)
from recollect.errors import DataError

JSON_ENDINGS = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.zst", ".ndjson.zst")
CSV_ENDINGS = (".csv", ".csv.gz", ".csv.zst", ".tsv", ".tsv.gz", ".tsv.zst")


def open_table(source: Any) -> Table:
    """A path to a .jsonl, .csv (.gz, .zst) or .parquet file, or a pandas, polars or Arrow table."""
    if isinstance(source, (str, Path)):
        return _file(Path(source))
    if isinstance(source, pl.DataFrame):
        return PolarsTable(source)
    if isinstance(source, (pa.Table, pa.RecordBatch)):
        return ArrowTable(pa.Table.from_batches([source]) if isinstance(source, pa.RecordBatch) else source)
    if type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns"):
        return PandasTable(source)
    raise DataError(
        f"a table came as {type(source).__name__}: give the path of a .jsonl, .csv or .parquet file, "
        "a pandas or polars DataFrame, or a pyarrow Table"
    )


def _file(path: Path) -> Table:
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "is not there"
        raise DataError(f"{path} {what}: give the path of a file")
    name = path.name.lower()
    if name.endswith(JSON_ENDINGS):
        return JsonLines(path)
    if name.endswith(CSV_ENDINGS):
        return Csv(path)
    if name.endswith(".parquet"):
        return ParquetTable(path)
    raise DataError(f"{path} has an unknown ending: name it .jsonl, .csv (perhaps with .gz or .zst) or .parquet")


@dataclass(frozen=True)
class PolarsTable(NumberedRows):
    frame: pl.DataFrame

    def first_rows(self, count: int) -> pl.DataFrame:
        return self.frame.head(count)

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        check_columns(self.name, columns, self.frame.columns)
        for row in range(0, self.frame.height, chunk_rows):
            yield numbered(self.frame[row : row + chunk_rows], row)


@dataclass(frozen=True)
class ArrowTable(NumberedRows):
    table: pa.Table

    def __post_init__(self) -> None:
        names = self.table.column_names
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise _two_of_a_name(twice[0])

    def first_rows(self, count: int) -> pl.DataFrame:
        return self._read(self.table.slice(0, count), self.table.column_names)

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        check_columns(self.name, columns, self.table.column_names)
        for row in range(0, self.table.num_rows, chunk_rows):
            yield numbered(self._read(self.table.slice(row, chunk_rows), columns), row)

    def _read(self, rows: pa.Table, wanted: Container[str]) -> pl.DataFrame:
        check_types(self.name, rows.schema, wanted)
        frame = pl.from_arrow(rows.drop_columns([each.name for each in rows.schema if is_unreadable(each.type)]))
        assert isinstance(frame, pl.DataFrame)
        return frame


@dataclass(frozen=True)
class PandasTable(NumberedRows):
    """The index is not read; reset_index makes a column of it."""

    frame: Any

    def first_rows(self, count: int) -> pl.DataFrame:
        return _of_pandas(self.frame.iloc[:count])

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        check_columns(self.name, columns, [str(name) for name in self.frame.columns])
        for row in range(0, len(self.frame), chunk_rows):
            yield numbered(_of_pandas(self.frame.iloc[row : row + chunk_rows]), row)


def _of_pandas(frame: Any) -> pl.DataFrame:
    columns = {}
    for position, name in enumerate(frame.columns):
        if str(name) in columns:
            raise _two_of_a_name(name)
        columns[str(name)] = _of_pandas_column(frame.iloc[:, position])
    return pl.DataFrame(columns)


def _two_of_a_name(name: Any) -> DataError:
    return DataError(f"the table has two columns called {name}: give each a name of its own")


def is_missing(value: Any) -> bool:
    """One of the ways in which Python's objects say that there is nothing."""
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(value != value)


def _of_pandas_column(values: Any) -> pl.Series:
    if str(values.dtype) == "category":
        # Names, also where they are numbers.
        names = pl.Series([str(each) for each in values.cat.categories], dtype=pl.String)
        codes = pl.Series(values.cat.codes.to_numpy())
        return names.gather(codes.set(codes < 0, None)).cast(pl.Categorical)
    if str(values.dtype).startswith("Sparse"):
        values = values.sparse.to_dense()
    try:
        array = pa.Array.from_pandas(values)
        # Of dates and datetimes Arrow makes dates.
        as_texts = pa.types.is_date(array.type) and any(isinstance(value, datetime) for value in values)
        as_texts |= is_unreadable(array.type)  # such as decimals with many digits
    except (pa.ArrowException, OverflowError, UnicodeError):
        as_texts = True
    if as_texts:
        # Values of several types, or of one that can't be read: as texts, so that each can be judged for itself.
        array = pa.array([None if is_missing(value) else _text(value) for value in values], pa.string())
    column = pl.from_arrow(array)
    assert isinstance(column, pl.Series)
    return column


def _text(value: Any) -> str:
    """What can't be written as UTF-8 is replaced: half of a character that was cut in two."""
    return str(value).encode("utf-8", "replace").decode()
