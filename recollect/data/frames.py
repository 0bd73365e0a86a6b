"""Rows that a program hands over, and their times: whatever arrays or frames they come in, as tables are read.

Knows columns and moments; neither labels nor histories.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.events import make_events
from recollect.data.schema import TableSchema
from recollect.data.tables.sources import PolarsTable, open_table
from recollect.data.tables.times import read_times
from recollect.errors import DataError


def is_frame(rows: Any) -> bool:
    """Whether rows have columns with types of their own: a pandas or polars DataFrame."""
    return isinstance(rows, pl.DataFrame) or (_of_pandas(rows) and hasattr(rows, "columns"))


def polars_frame(rows: Any, names: Sequence[str] | None = None) -> pl.DataFrame:
    """A frame, or an array of two dimensions, as a polars DataFrame with these column names."""
    if is_frame(rows):
        frame = open_table(rows).first_rows(len(rows))
        return frame if names is None else frame.rename(dict(zip(frame.columns, names, strict=True)))
    if names is None:
        names = [f"x{column}" for column in range(rows.shape[1])]
    return pl.DataFrame(
        [pl.Series(name, rows[:, column], strict=False) for column, name in enumerate(names)], strict=False
    )


def read_columns(frame: pl.DataFrame, schema: TableSchema) -> pl.DataFrame:
    """The features of a frame as those of a file are read; raises if a value can't be."""
    table = PolarsTable(frame)
    chunk = next(table.chunks(schema.hopes(), frame.height))
    events, bad = make_events(chunk, schema, table)
    if bad:
        raise DataError(f"row {bad[0].row}: {bad[0].message}")
    return events.columns


def stored_times(values: Any, name: str) -> NDArray[Any]:
    """Times of any kind as they are stored: moments as int64 nanoseconds, numbers as float64."""
    series = _series(values)
    moments = series.dtype.is_temporal() or series.dtype == pl.String
    if not moments and not series.dtype.is_numeric():
        raise DataError(f"{name} holds {series.dtype}: give numbers, datetimes or ISO 8601 texts")
    times = read_times(series, "datetime" if moments else "number")
    if times.null_count():
        row = int(times.is_null().arg_max() or 0)
        raise DataError(f"{name} {series[row]!r} of row {row} is not a time: give one for every row")
    return times.to_numpy().astype(np.int64 if moments else np.float64)


def _series(values: Any) -> pl.Series:
    if isinstance(values, pl.Series):
        return values
    if _of_pandas(values) and hasattr(values, "to_frame"):
        frame = values.to_frame()
        return polars_frame(frame, ["time"])["time"]
    if not isinstance(values, np.ndarray) and hasattr(values, "__len__") and not isinstance(values, str):
        return pl.Series("time", list(values), strict=False)
    array = np.atleast_1d(np.asarray(values))
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]")
    return pl.Series("time", array.tolist() if array.dtype == object else array, strict=False)


def _of_pandas(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pandas"
