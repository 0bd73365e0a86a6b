"""One column of raw rows as its role asks for: times, names, texts, numbers or lists of them.

What a cell can't be read as is a fault of its row; a column of a type that has no place is an error.
"""

from collections.abc import Callable
from math import isfinite

import polars as pl

from recollect.data.names import Coded, folded, of_whole_numbers
from recollect.data.tables.numbers import says_missing
from recollect.data.tables.raw import BadRow, RawChunk, Table
from recollect.data.tables.times import TimeUnit, in_another_unit, read_times
from recollect.errors import DataError


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


def event_times(values: pl.Series, unit: TimeUnit, faults: Faults, role: str, seen: int | None) -> pl.Series:
    values = _plain(values, role)
    times = read_times(values, unit)
    faults.add(
        in_another_unit(times, unit, seen),
        f"another unit of {role}",
        lambda index: f"the {role} {values[index]} is not in {unit}, as the others are or should be: write all so",
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
        "number": "it is read as a plain number, so write one",
    }.get(unit, f"it is read as {unit} since 1970, so write a number of these, in the years 1678 to 2261")
    faults.add(
        wrong & ~empty, f"not a {role}", lambda index: f"the {role} {values[index]!r} is not a time I know: {remedy}"
    )
    return times


def required_names(values: pl.Series, faults: Faults, role: str) -> pl.Series:
    names = _names(values).alias(role)
    if names.null_count():
        faults.add(names.is_null(), f"no {role}", lambda index: f"the {role} is missing")
    return names


def check_within(values: pl.Series, ends: tuple[float, float], faults: Faults, name: str) -> None:
    inside = values.cast(pl.Float64, strict=False).is_between(*ends).fill_null(False)
    faults.add(
        ~inside,
        f"out of range: {name}",
        lambda index: f"{name} is {values[index]!r}, not a number from {ends[0]:g} to {ends[1]:g}",
    )


def event_texts(values: pl.Series) -> pl.Series:
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


def event_categories(values: pl.Series) -> pl.Series:
    """Names, too. A table's own numbers for them stay, and only the different names are looked at."""
    if values.dtype != pl.Categorical:
        return _names(values)
    names = Coded(values).names
    return values if folded(names).equals(names) else _names(values).cast(values.dtype)


def event_numbers(values: pl.Series, faults: Faults) -> pl.Series:
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
                f"{values.name} is {values[index]!r}, not a number: mend it, or have the column read as categories"
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


def event_embedding(values: pl.Series, width: int, faults: Faults) -> pl.Series:
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
        lambda index: f"{name} has {lengths[index]} numbers where {width} are read: mend it, or leave it out",
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
