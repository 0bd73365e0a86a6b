"""Rows as they were found, before anyone asked what they mean: what every kind of table is taken apart into."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from recollect.errors import DataError

Columns = Mapping[str, Literal["text", "name", "number", "list"]]
"""Columns to be read, and what is hoped to be in them. Files of texts give numbers or lists of them if all values are
that, texts otherwise; other tables give what they have. Names are texts of which few differ: where a table has numbers
for them, they come as Categorical."""


@dataclass(frozen=True)
class BadRow:
    """A row that can't be used: the `row` it is of its table, where that is, what kind of fault, and all of it."""

    row: int
    place: str
    kind: str
    message: str
    raw: Any


@dataclass(frozen=True)
class RawChunk:
    """Some rows of a table in their order.

    `rows` counts all records of the table from 0, broken ones too. `numbers` are what people are told: lines of a file
    from 1, or rows again. `raw_row` gives a row, by its index here, as it was found. `unread` names fields that came up
    here for the first time though nobody asked for them, with the number of a row that has each.
    """

    frame: pl.DataFrame
    rows: NDArray[np.int64]
    numbers: NDArray[np.int64]
    raw_row: Callable[[int], Any]
    broken: Sequence[BadRow] = field(default_factory=list)
    unread: Mapping[str, int] = field(default_factory=dict)


@runtime_checkable  # so that the type checks of the tests can tell one
class Table(Protocol):
    """A file or a frame that is read in chunks."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def place(self) -> str:
        """What the number of a row is appended to, to say where it is: `reviews.jsonl:`."""

    def first_rows(self, count: int) -> pl.DataFrame:
        """Some of the first rows that can be read, with the types they seem to have."""

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        """All rows with these columns, of any type."""


class NumberedRows:
    """Rows that have a number, from 0, but no line."""

    @property
    def name(self) -> str:
        return "table"

    @property
    def place(self) -> str:
        return f"{self.name}:row "


def numbered(frame: pl.DataFrame, row: int) -> RawChunk:
    """Some rows of such a table, from this one on."""
    rows = np.arange(row, row + frame.height)
    return RawChunk(frame, rows, rows, lambda index: frame.row(index, named=True))


def column_of(frame: pl.DataFrame, name: str) -> pl.Series:
    """A column by its name, whatever it is called.

    polars takes *, and all from a ^ to a $, for patterns, even in the methods of a series of such a name: it comes with
    its name in quotes, and who makes a frame of it names it again.
    """
    values = frame.get_column(name)
    is_pattern = name == "*" or (name.startswith("^") and name.endswith("$"))
    return values.alias(repr(name)) if is_pattern else values


def check_columns(name: str, wanted: Iterable[str], there: Sequence[str]) -> None:
    missing = [column for column in wanted if column not in there]
    if missing:
        raise DataError(
            f"{name} has no column {', '.join(missing)}; its columns are {', '.join(there)}: "
            "name those that are there, or read another table"
        )


UNREADABLE = (
    pa.types.is_decimal256,
    pa.types.is_interval,
    pa.types.is_large_list_view,
    pa.types.is_list_view,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
)
"""Types of Arrow that polars has nothing for: it refuses some, and crashes at others."""


def is_unreadable(kind: pa.DataType) -> bool:
    """Whether it is one of these, or has one inside."""
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        inner.append(kind.value_type)
    return any(is_one(kind) for is_one in UNREADABLE) or any(map(is_unreadable, inner))


def check_types(name: str, schema: pa.Schema, wanted: Container[str]) -> None:
    for each in schema:
        if each.name in wanted and is_unreadable(each.type):
            raise DataError(
                f"{name} has a column {each.name} of {each.type}, which can't be read: cast it to another type, "
                "such as float64 or string, or leave it out of the table"
            )
