"""A column of a table as an array of numbers, texts or embeddings, and which of its rows have none."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.tables.raw import column_of
from recollect.errors import DataError

MISSING = "\x00missing"
"""What no cell can hold; a missing cell is a category like the others."""


def floats_of(table: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as floats, NaN where it is missing. Not to be written to: it may be the table's own memory."""
    column = needed_column(table, name)
    # A cast of what is a float already would cost one row of a request more than all else.
    column = column if column.dtype == pl.Float64 else column.cast(pl.Float64)
    # numpy is asked for what has no null: making NaN of them on the way takes three times as long.
    return (column.fill_null(np.nan) if column.null_count() else column).to_numpy()


def texts_of(values: pl.Series) -> pl.Series:
    texts = values.cast(pl.String)
    return texts.fill_null(MISSING) if texts.null_count() else texts


def embedding_of(table: pl.DataFrame, embeddings: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """One row for each of the table's; NaN throughout where the table has none."""
    if name in embeddings:
        values = np.asarray(embeddings[name], dtype=np.float32)
    elif name in table.columns and table.schema[name] != pl.String:
        values = _stacked(needed_column(table, name))
    else:
        raise DataError(f"the text column {name} came without its embedding: embed it, and hand the array in")
    if len(values) != table.height:
        raise DataError(f"the embedding {name} has {len(values)} rows, the table {table.height}: give one for each row")
    return values


def _stacked(lists: pl.Series) -> NDArray[np.float32]:
    """Lists of one length below each other; a missing one is NaN throughout."""
    rows = lists.to_list()
    widths = {len(row) for row in rows if row is not None}
    if len(widths) > 1:
        raise DataError(f"the embedding {lists.name} is {min(widths)} to {max(widths)} wide: give lists of one length")
    if not widths:
        widths = {lists.dtype.size if isinstance(lists.dtype, pl.Array) else 0}
    (width,) = widths
    absent = [np.nan] * width
    values = np.array([absent if row is None else row for row in rows], dtype=np.float32)
    return values.reshape(len(rows), width)


def missing_rows(table: pl.DataFrame, name: str, values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Rows without an embedding, whose first number tells, and rows without a text, which was embedded all the same."""
    if not values.shape[1]:
        return np.ones(len(values), np.bool_)
    without = absent(needed_column(table, name)).to_numpy() if name in table.columns else False
    missing: NDArray[np.bool_] = np.isnan(values[:, 0]) | without
    return missing


def absent(values: pl.Series) -> pl.Series:
    """Cells that hold nothing; a text of spaces is none."""
    if values.dtype != pl.String:
        return values.is_null()
    return ~values.str.contains(r"\S").fill_null(False)


def needed_column(table: pl.DataFrame, name: str) -> pl.Series:
    try:
        return column_of(table, name)
    except pl.exceptions.ColumnNotFoundError:  # to ask before would list all columns for each of them
        came = ", ".join(table.columns[:8])
        raise DataError(
            f"the column {name} is missing, {came} came: give every column that the features were made of"
        ) from None
