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
from recollect.data.tables.sources import PolarsTable, is_missing, open_table
from recollect.data.tables.times import read_times
from recollect.errors import DataError

REMEDY = "give numbers, datetimes or ISO 8601 texts"


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
        [pl.Series(name, _column(rows[:, place]), strict=False) for place, name in enumerate(names)], strict=False
    )


def _column(values: NDArray[Any]) -> NDArray[Any] | list[Any]:
    """Of an array whose columns have types of their own: as a list, so that this one's is found."""
    if values.dtype != object:
        return values
    return [None if is_missing(value) else value for value in values.tolist()]


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
    series = _series(values, name)
    moments = isinstance(series.dtype, pl.Datetime) or series.dtype in (pl.Date, pl.String)
    if not moments and not series.dtype.is_numeric() and series.dtype != pl.Null:
        raise DataError(f"{name} holds {series.dtype}: {REMEDY}")
    times = read_times(series, "datetime" if moments else "number")
    if times.null_count():
        row = int(times.is_null().arg_max() or 0)
        raise DataError(f"{name} {series[row]!r} of row {row} is not a time: {REMEDY}, one for every row")
    return times.to_numpy().astype(np.int64 if moments else np.float64)


def _series(values: Any, name: str) -> pl.Series:
    if isinstance(values, pl.Series):
        return values
    if _of_pandas(values) and hasattr(values, "to_frame"):
        values = values.to_frame()
    if is_frame(values):
        if len(values.columns) != 1:
            raise DataError(f"{name} has {len(values.columns)} columns: give the one that holds the times")
        return polars_frame(values).to_series()
    if not isinstance(values, np.ndarray) and hasattr(values, "__len__") and not isinstance(values, str):
        return _of_values(list(values), name)
    array = np.atleast_1d(np.asarray(values))
    if array.dtype == object:
        return _of_values(array.tolist(), name)
    if array.dtype.kind in "mM":
        # Years that nanoseconds can't hold would wrap around: as microseconds they are found out.
        array = array.astype(f"{array.dtype.kind}8[{'ns' if np.datetime_data(array.dtype)[0] == 'ns' else 'us'}]")
    return pl.Series("time", array, strict=False)


def _of_values(values: list[Any], name: str) -> pl.Series:
    """Of Python's objects, among which polars does not take what pandas has for a missing one."""
    try:
        return pl.Series("time", [None if is_missing(value) else value for value in values], strict=False)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} can't be read as times ({error}): {REMEDY}") from error


def _of_pandas(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pandas"
