"""Raw rows of requests into inputs and items, by the very path of training; what can't be used is named.

Rows are JSON objects by column name. Knows the schema of a model's table; nothing of HTTP but where a fault is.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.events import Events, make_events
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import RawChunk
from recollect.data.tables.sources import PolarsTable
from recollect.data.tables.times import read_times
from recollect.errors import DataError
from recollect.serving.problems import Fault, invalid, pointer
from recollect.serving.schemas import LARGEST

ID, LABEL = "(id)", "(label)"
"""Columns of these where the table had none."""

Moment = str | float | int

LATEST = 2.0**53
"""Of plain numbers: beyond it one more makes no difference, and no later moment could be told from this one."""

FEW_ROWS = 16


@dataclass(frozen=True)
class Given:
    """One row of a request: its features, and beside them what else is known of it."""

    row: Mapping[str, Any]
    id: str | None = None
    label: str | None = None
    time: Moment | None = None
    known_at: Moment | None = None


@dataclass(frozen=True)
class Times:
    """Times of rows as the history stores them; what nobody gave is 0 and `given` says so."""

    values: NDArray[Any]
    given: NDArray[np.bool_]


class Rows:
    """Reads the rows of requests under one schema. Texts longer than `longest` are refused."""

    def __init__(self, schema: TableSchema, *, longest: int) -> None:
        self.schema, self.longest = schema, longest
        # Numbers need no reading: they were checked one by one, and there may be many columns of them.
        plain: dict[str, Any] = dict(time=None, time_unit=None, known_at=None, known_at_unit=None, numeric=())
        self._others = replace(schema, **plain, label=schema.label or LABEL, id=schema.id or ID, ignored={})

    def inputs(self, given: Sequence[Given], place: str) -> pl.DataFrame:
        """The features of rows to be answered. `place` is where they stand in the body, for messages."""
        return self._events([replace(each, id="-", label="-") for each in given], place).columns

    def read(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What the model reads of a row: nothing else was checked, so nothing else may be kept."""
        return {name: row[name] for name in self.schema.features if name in row}

    def items(self, given: Sequence[Given], place: str) -> tuple[Events, Times, Times]:
        """Labelled rows, their times, and when their labels were known."""
        events = self._events(given, place)
        return events, self._times(given, "time", place), self._times(given, "known_at", place)

    def moment(self, value: Moment, place: str) -> int | float:
        """One moment as the history stores it."""
        plain = self.schema.plain_times
        found = None
        if isinstance(value, str) and not plain:
            found = read_times(pl.Series([value if _is_unicode(value) else ""]), "datetime")[0]
        elif plain and _is_number(value) and abs(float(value)) < LATEST:
            found = value
        if found is None:
            detail = (
                "is not a number below 2^53, and times of this model are plain numbers: give one in the table's unit"
                if plain
                else "is not a time: give ISO 8601 such as 2024-05-01T12:00:00Z, in the years 1678 to 2261"
            )
            raise invalid([{"pointer": place, "detail": detail}])
        return float(found) if plain else int(found)

    def shown(self, moment: int | float) -> str | float:
        """A stored moment as JSON; `moment` reads it back exactly. Plain numbers are floats, and only they are."""
        return moment if isinstance(moment, float) else f"{np.datetime64(moment, 'ns')}Z"

    def _times(self, given: Sequence[Given], role: str, place: str) -> Times:
        values = np.zeros(len(given), np.float64 if self.schema.plain_times else np.int64)
        there = np.zeros(len(given), bool)
        for index, each in enumerate(given):
            if (value := getattr(each, role)) is not None:
                values[index], there[index] = self.moment(value, f"{place}/{index}/{role}"), True
        return Times(values, there)

    def _events(self, given: Sequence[Given], place: str) -> Events:
        faults = [fault for index, each in enumerate(given) for fault in self._faults(each.row, f"{place}/{index}/row")]
        if faults:
            raise invalid(faults)
        schema, numeric = self._others, self.schema.numeric
        columns = {name: [each.row.get(name) for each in given] for name in schema.features}
        columns |= {str(schema.label): [each.label for each in given], str(schema.id): [each.id for each in given]}
        frame = pl.DataFrame([_column(name, values, schema) for name, values in columns.items()])
        counted = np.arange(len(given))
        chunk = RawChunk(frame, counted, counted, lambda index: None)
        try:
            events, bad = make_events(chunk, schema, PolarsTable(frame))
        except DataError as error:
            raise invalid([{"pointer": place, "detail": str(error)}]) from error
        if bad:
            raise invalid([{"pointer": f"{place}/{each.row}", "detail": each.message} for each in bad])
        # A table's 17.0 is 17; what somebody calls an item is for them to say, and asked for by that very name.
        events = replace(events, id=pl.Series("id", [each.id for each in given], pl.String))
        if not numeric:
            return events
        numbers = np.array([[each.row.get(name) for name in numeric] for each in given], np.float64)
        return replace(events, columns=_numbers(numbers, numeric).hstack(events.columns))

    def _faults(self, row: Mapping[str, Any], place: str) -> list[Fault]:
        known = {*self.schema.features, *self.schema.ignored}
        unknown = [name for name in row if name not in known]
        if unknown:
            detail = f"is no feature of this model: its features are {', '.join(self.schema.features)}"
            if unknown[0] in self.schema.columns:
                detail = f"is no feature: give {self.schema.roles()[unknown[0]]} beside the row, not in it"
            return [{"pointer": pointer(unknown[0], under=place), "detail": detail}]
        faults = []
        for name, value in row.items():
            if name not in self.schema.ignored and (wrong := self._fault(name, value)):
                faults.append({"pointer": pointer(name, under=place), "detail": wrong})
        return faults

    def _fault(self, name: str, value: Any) -> str | None:
        if value is None:
            return None
        if name in self.schema.embedding:
            width = self.schema.embedding[name]
            # Its length first: whoever sends millions is told at once.
            right = isinstance(value, list) and len(value) == width and all(map(_is_number, value))
            if not right:
                return f"must be a list of {width} numbers, or null"
            return None if all(abs(each) <= LARGEST for each in value) else f"has a number beyond {LARGEST:g}"
        if name in self.schema.numeric:
            return None if _is_number(value) else "must be a number, or null"
        if isinstance(value, (list, dict)):
            return "must be a text, a number, true, false or null"
        if isinstance(value, str):
            if len(value) > self.longest:
                return f"has {len(value)} characters, {self.longest} are allowed: shorten it"
            return None if _is_unicode(value) else "is not Unicode: it has half of a surrogate pair"
        return None if isinstance(value, bool) or _is_number(value) else "is too large a number"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: Any) -> str | None:
    """As a file of JSON lines is read."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _numbers(values: NDArray[np.float64], names: Sequence[str]) -> pl.DataFrame:
    """As columns, null for what is no number."""
    if len(values) > FEW_ROWS:
        return pl.DataFrame(values, list(names), nan_to_null=True)
    # Polars makes columns of an array one by one, which for a single row takes four times as long as reading the row.
    rows = [[None if value != value else value for value in row] for row in values.tolist()]
    return pl.DataFrame(rows, dict.fromkeys(names, pl.Float64), orient="row")


def _column(name: str, values: list[Any], schema: TableSchema) -> pl.Series:
    if name in schema.embedding:
        return pl.Series(name, values, pl.List(pl.Float32))
    return pl.Series(name, [_text(value) for value in values], pl.String)
