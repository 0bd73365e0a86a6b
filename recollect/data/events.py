"""Events: labelled rows with their times and features, each column of the type its role asks for.

Makes them from raw rows and says which rows can't be events and why; what then happens to those is up to `reading`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.names import Coded, folded, of_whole_numbers
from recollect.data.schema import TableSchema
from recollect.data.tables.numbers import says_missing
from recollect.data.tables.raw import BadRow, RawChunk, Table, column_of
from recollect.data.tables.times import LARGEST, TimeUnit, in_another_unit, read_times
from recollect.errors import DataError, SettingError


@dataclass(frozen=True)
class Events:
    """Rows of a table that can be used, in the order they came in.

    Times are int64 nanoseconds since 1970 in UTC, or float64 plain numbers. Labels, ids and categories are texts, and a
    whole number among them is written without a point. `columns` holds the features: numbers as Float64, texts and
    categories as String, or categories as Categorical where the table had numbers for them, embeddings as Array of
    Float32; null is a missing value. `rows` counts the table's rows from 0.
    """

    time: NDArray[Any]
    known_at: NDArray[Any]
    label: pl.Series | None
    id: pl.Series
    columns: pl.DataFrame
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: NDArray[np.int64]) -> "Events":
        """Some of them, in any order."""
        return Events(
            self.time[index],
            self.known_at[index],
            None if self.label is None else self.label.gather(index),
            self.id.gather(index),
            self.columns[index] if self.columns.width else self.columns,
            self.rows[index],
        )

    def part(self, start: int, stop: int) -> "Events":
        """A run of them; nothing is copied."""
        run = slice(start, stop)
        label = None if self.label is None else self.label[run]
        return Events(self.time[run], self.known_at[run], label, self.id[run], self.columns[run], self.rows[run])

    def delayed(self, delay: int | float) -> "Events":
        """With labels known so much later than their rows happened, where no column says when."""
        if delay == 0 or not len(self):
            return self
        if self.time.dtype == np.int64 and int(self.time.max()) + int(delay) > LARGEST:
            raise SettingError("with this --label-delay labels would be known after the year 2262: give a shorter one")
        return replace(self, known_at=self.time + delay)

    @staticmethod
    def concat(chunks: Sequence["Events"]) -> "Events":
        """One after the other; there must be at least one."""
        labels = [chunk.label for chunk in chunks if chunk.label is not None]
        return Events(
            np.concatenate([chunk.time for chunk in chunks]),
            np.concatenate([chunk.known_at for chunk in chunks]),
            pl.concat(labels) if labels else None,
            pl.concat([chunk.id for chunk in chunks]),
            pl.concat([chunk.columns for chunk in chunks]),
            np.concatenate([chunk.rows for chunk in chunks]),
        )


class Faults:
    """The rows of a chunk that can't be used, each with the first reason found."""

    def __init__(self, chunk: RawChunk, table: Table) -> None:
        self.chunk, self.table = chunk, table
        self.found: dict[int, BadRow] = {}

    def add(self, wrong: pl.Series, kind: str, message: Callable[[int], str]) -> None:
        if not wrong.any():
            return  # quicker than to look for them
        for index in wrong.arg_true().to_list():
            if index not in self.found:
                place = f"{self.table.place}{self.chunk.numbers[index]}"
                row = int(self.chunk.rows[index])
                self.found[index] = BadRow(row, place, kind, message(index), self.chunk.raw_row(index))


def make_events(
    chunk: RawChunk, schema: TableSchema, table: Table, labels: tuple[float, float] | None = None
) -> tuple[Events, list[BadRow]]:
    """The rows of a chunk that are events under a schema, and those that aren't, in order.

    With `labels`, a label has to be a number from the first to the second.
    """
    faults = Faults(chunk, table)
    frame = chunk.frame
    if schema.time is None:
        time = pl.Series("time", chunk.rows, pl.Float64)
    else:
        assert schema.time_unit is not None
        time = _times(column_of(frame, schema.time), schema.time_unit, faults, "time", schema.time_seen)
    known_at = time
    if schema.known_at is not None:
        assert schema.known_at_unit is not None
        assert schema.time is not None
        known_at = _times(column_of(frame, schema.known_at), schema.known_at_unit, faults, "known_at", schema.time_seen)
        happened, known = column_of(frame, schema.time), column_of(frame, schema.known_at)
        faults.add(
            (known_at < time).fill_null(False),
            "known before it happened",
            lambda index: (
                f"known_at {known[index]} is before the time {happened[index]}: "
                "a label can't be known before the row happened"
            ),
        )
    label = None
    if schema.label is not None:
        label = _required(column_of(frame, schema.label), faults, "label")
        if labels is not None:
            _check_within(label, labels, faults, schema.label)
    if schema.id is None:
        id = table.place + pl.Series("id", chunk.numbers).cast(pl.String)
    else:
        id = _required(column_of(frame, schema.id), faults, "id")
    features = {name: _numbers(column_of(frame, name), faults) for name in schema.numeric}
    features |= {name: _categories(column_of(frame, name)) for name in schema.categorical}
    features |= {name: _texts(column_of(frame, name)) for name in schema.text}
    features |= {name: _embedding(column_of(frame, name), width, faults) for name, width in schema.embedding.items()}
    dtype = np.float64 if schema.plain_times else np.int64
    happened_at = _array(time, dtype)
    events = Events(
        happened_at,
        happened_at if known_at is time else _array(known_at, dtype),
        label,
        id,
        pl.DataFrame(features),
        chunk.rows,
    )
    if faults.found:
        keep = np.ones(frame.height, np.bool_)
        keep[list(faults.found)] = False
        events = events.take(keep.nonzero()[0])
    if schema.embedding:
        # A fixed width can only be had now that the rows of another are gone.
        columns = {name: column_of(events.columns, name) for name in schema.features}
        for name, width in schema.embedding.items():
            columns[name] = columns[name].cast(pl.Array(pl.Float32, width))
        events = replace(events, columns=pl.DataFrame(columns))
    return events, sorted([*chunk.broken, *faults.found.values()], key=lambda each: each.row)


# One column at a time


def _times(values: pl.Series, unit: TimeUnit, faults: Faults, role: str, seen: int | None) -> pl.Series:
    values = _plain(values, role)
    times = read_times(values, unit)
    faults.add(
        in_another_unit(times, unit, seen),
        f"another unit of {role}",
        lambda index: f"the {role} {values[index]} is not in {unit} like the others: write all in one unit",
    )
    if not times.null_count():
        return times
    wrong = times.is_null()
    empty = values.is_null() if values.dtype != pl.String else values.is_null() | (values.str.strip_chars() == "")
    faults.add(wrong & empty, f"no {role}", lambda index: f"the {role} is missing")
    remedy = {
        "datetime": "give ISO 8601 such as 2024-05-01 or 2024-05-01T12:00:00+02:00, in the years 1678 to 2261",
        "day-first": "write it like 31/12/2024, or as ISO 8601",
        "month-first": "write it like 12/31/2024, or as ISO 8601",
        "number": "in the first rows it was a number",
    }.get(unit, f"in the first rows it was {unit} since 1970, and only the years 1678 to 2261 can be stored")
    faults.add(
        wrong & ~empty, f"not a {role}", lambda index: f"the {role} {values[index]!r} is not a time I know: {remedy}"
    )
    return times


def _array(times: pl.Series, dtype: type[np.float64] | type[np.int64]) -> NDArray[Any]:
    there = times.fill_null(0) if times.null_count() else times
    return there.to_numpy().astype(dtype, copy=False)


def _required(values: pl.Series, faults: Faults, role: str) -> pl.Series:
    names = _names(values).alias(role)
    if names.null_count():
        faults.add(names.is_null(), f"no {role}", lambda index: f"the {role} is missing")
    return names


def _check_within(values: pl.Series, ends: tuple[float, float], faults: Faults, name: str) -> None:
    inside = values.cast(pl.Float64, strict=False).is_between(*ends).fill_null(False)
    faults.add(
        ~inside,
        f"out of range: {name}",
        lambda index: f"{name} is {values[index]!r}, not a number from {ends[0]:g} to {ends[1]:g}",
    )


def _texts(values: pl.Series) -> pl.Series:
    """Texts as they are; an empty one is missing."""
    values = _plain(values, "text")
    if values.dtype != pl.String:
        return values.cast(pl.String)  # nothing else is written as an empty text
    empty = values == ""
    return values.set(empty, None) if empty.any() else values


def _names(values: pl.Series) -> pl.Series:
    """Texts that are compared: 5, 5.0 and "5.0" are the same, and so are true and "True"."""
    if values.dtype.is_integer():
        return of_whole_numbers(values)
    if values.dtype.is_float():
        values = values.fill_nan(None)
    return folded(_plain(values, "text").cast(pl.String))


def _categories(values: pl.Series) -> pl.Series:
    """Names, too. A table's own numbers for them stay, and only the different names are looked at."""
    if values.dtype != pl.Categorical:
        return _names(values)
    names = Coded(values).names
    return values if folded(names).equals(names) else _names(values).cast(values.dtype)


def _numbers(values: pl.Series, faults: Faults) -> pl.Series:
    values = _plain(values, "numeric")
    if values.dtype.is_temporal():
        raise DataError(f"the column {values.name} holds {values.dtype}, the schema says numbers: change one of them")
    numbers = values.cast(pl.Float64, strict=False)
    if numbers.null_count() > values.null_count():
        unread = numbers.is_null() & values.is_not_null()
        numbers = numbers.zip_with(~unread, _odd_numbers(values))
        wrong = numbers.is_null() & ~says_missing(values)
        faults.add(
            (wrong & values.is_not_null()).fill_null(False),
            f"not a number: {values.name}",
            lambda index: (
                f"{values.name} is {values[index]!r}, not a number: mend it, or declare the column categorical"
            ),
        )
    # A sum takes a fifth of the time of looking at each, and is not finite if one of those that are there isn't.
    if isfinite(numbers.sum()) or numbers.is_finite().all():
        return numbers
    faults.add(
        numbers.is_infinite().fill_null(False),
        f"infinite: {values.name}",
        lambda index: f"{values.name} is infinite: give a number, or leave it empty if it is not known",
    )
    return numbers.fill_nan(None)


def _odd_numbers(texts: pl.Series) -> pl.Series:
    """With spaces around them; true and false are 1 and 0."""
    stripped = texts.str.strip_chars().str.to_lowercase()
    stripped = stripped.replace({"true": "1", "false": "0"})
    return stripped.cast(pl.Float64, strict=False)


def _embedding(values: pl.Series, width: int, faults: Faults) -> pl.Series:
    values = _plain(values, "embedding", lists=True)
    if values.dtype == pl.String:
        values = values.set(values == "", None)
    lists = read_lists(values)
    name = values.name
    faults.add(
        lists.is_null() & values.is_not_null(), f"not a list: {name}", lambda index: f"{name} is not a list of numbers"
    )
    lengths = lists.list.len()
    faults.add(
        (lengths != width).fill_null(False),
        f"wrong width: {name}",
        lambda index: f"{name} has {lengths[index]} numbers, the first rows have {width}",
    )
    finite = lists.list.eval(pl.element().is_finite().fill_null(False)).list.all()
    faults.add(
        (~finite).fill_null(False),
        f"not finite: {name}",
        lambda index: f"{name} holds something that is not a finite number: mend it, or leave the whole list out",
    )
    return lists


def read_lists(values: pl.Series) -> pl.Series:
    """Lists of Float32, from lists or from texts such as [0.5, 1]; null where there is none, or a text is not a list.

    What is no number inside a list is null there.
    """
    wanted = pl.List(pl.Float32)
    if isinstance(values.dtype, (pl.List, pl.Array)):
        inner = values.dtype.inner
        if not inner.is_numeric() and inner != pl.Null:
            return pl.Series(values.name, [None], wanted).new_from_index(0, len(values))
        return values.cast(wanted)
    texts = values.cast(pl.String).str.strip_chars()
    texts = texts.set(~(texts.str.starts_with("[") & texts.str.ends_with("]")), None)
    parts = texts.str.strip_chars("[]").str.split(",")
    return parts.list.eval(pl.element().str.strip_chars().cast(pl.Float32, strict=False))


def _plain(values: pl.Series, role: str, *, lists: bool = False) -> pl.Series:
    """Of a type that has a place here; kinds of texts as texts."""
    kind = values.dtype
    if kind in (pl.Categorical, pl.Enum, pl.Null):
        return values.cast(pl.String)
    if isinstance(kind, (pl.List, pl.Array)) and lists:
        return values
    if kind.is_nested() or kind in (pl.Object, pl.Binary, pl.Time, pl.Duration):
        raise DataError(
            f"the column {values.name} holds {kind}, which can't be {role}: convert it, or ignore the column"
        )
    return values
