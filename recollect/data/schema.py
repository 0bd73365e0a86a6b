"""What the columns of a table are: which is the time, the label, which are features. As JSON, and for people to see.

Says what was declared or found (`inference` finds it); reads no table itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import polars as pl
from rich.table import Table as RichTable
from rich.text import Text

from recollect.data.tables.raw import Columns, column_of
from recollect.data.tables.times import ROW_ORDER, TIME_UNITS, TimeUnit
from recollect.errors import DataError


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table by what they are for.

    Without `time` the order of the rows is the time: plain numbers from 0. Without `known_at` a label is known at once.
    Without `label` rows are inputs only. Without `id` a row is called after its place, such as `reviews.jsonl:12`, so
    reading a file again gives the same ids. `embedding` maps columns of lists of numbers to their width, `ignored`
    columns that are not read to the reason. `why` says how the others came to their place, and does not count in
    comparisons; nor does `time_seen`, a time of the first rows where times are counts, by which those of a file in
    another unit are told.
    """

    time: str | None = None
    time_unit: TimeUnit | None = None
    known_at: str | None = None
    known_at_unit: TimeUnit | None = None
    label: str | None = None
    id: str | None = None
    text: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    embedding: Mapping[str, int] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    why: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    time_seen: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        twice = {name for name in self.columns if self.columns.count(name) > 1}
        if twice:
            raise DataError(f"the column {min(twice)} is declared twice: give it one role")
        if not self.columns:
            raise DataError("no column is declared to be read: declare the label or a feature")
        for name, unit in ((self.time, self.time_unit), (self.known_at, self.known_at_unit)):
            if name is not None and unit not in TIME_UNITS:
                raise DataError(f"the time column {name} has the unit {unit}: use one of {', '.join(TIME_UNITS)}")
        if self.known_at is not None and (self.time is None or self.plain_times != (self.known_at_unit == "number")):
            raise DataError(
                f"known_at ({self.known_at}) is of another kind than the time ({self.time or 'the row order'}): "
                "both must be moments, or both plain numbers"
            )

    @property
    def plain_times(self) -> bool:
        """Times are float64 numbers, not moments."""
        return self.time is None or self.time_unit == "number"

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.numeric, *self.categorical, *self.text, *self.embedding)

    @property
    def columns(self) -> tuple[str, ...]:
        """All that are read."""
        special = (self.time, self.known_at, self.label, self.id)
        return (*(name for name in special if name is not None), *self.features)

    def hopes(self) -> Columns:
        """The columns that are read, as they are quickest to go on with."""
        texts: Columns = dict.fromkeys(self.columns, "text")
        names: Columns = dict.fromkeys(self.categorical, "name")
        return {**texts, **names, **dict.fromkeys(self.numeric, "number"), **dict.fromkeys(self.embedding, "list")}

    def roles(self) -> dict[str, str]:
        """Column to role, ignored ones last."""
        special = {"time": self.time, "known_at": self.known_at, "label": self.label, "id": self.id}
        found = {name: role for role, name in special.items() if name is not None}
        for role in ("numeric", "categorical", "text", "embedding"):
            found |= dict.fromkeys(getattr(self, role), role)
        return found | dict.fromkeys(self.ignored, "ignored")

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps."""
        plain: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "why":
                plain[each.name] = (
                    list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value
                )
        return plain

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> "TableSchema":
        known = {each.name for each in fields(TableSchema)} - {"why"}
        unknown = sorted(set(plain) - known)
        if unknown:
            raise DataError(f"a table's schema has no {', '.join(unknown)}: it has {', '.join(sorted(known))}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return TableSchema(**values)


def schema_table(schema: TableSchema, first_rows: pl.DataFrame) -> RichTable:
    """Every column with its role, an example and the reason, for a person to confirm."""
    table = RichTable("column", "role", "example", "why")
    if schema.time is None:
        table.add_row("", Text("time", "bold"), "0, 1, 2", schema.why.get(ROW_ORDER, "the order of the rows"))
    if schema.label is None:
        table.add_row("", Text("label", "bold"), "", "none found: name it with --label")
    for name, role in schema.roles().items():
        bold = "" if role in ("numeric", "categorical", "text", "embedding") else "dim" if role == "ignored" else "bold"
        why = schema.ignored.get(name) or schema.why.get(name, "declared")
        # Text, so that brackets in somebody's data are not taken for styles.
        table.add_row(Text(name), Text(_role(schema, name, role), bold), Text(_example(first_rows, name)), Text(why))
    return table


def _role(schema: TableSchema, name: str, role: str) -> str:
    unit = {"time": schema.time_unit, "known_at": schema.known_at_unit}.get(role)
    if unit is not None:
        return f"{role} ({'plain numbers' if unit == 'number' else unit})"
    return f"{role} ({schema.embedding[name]} wide)" if role == "embedding" else role


def _example(first_rows: pl.DataFrame, name: str) -> str:
    if name not in first_rows.columns:
        return ""
    values = column_of(first_rows, name).drop_nulls()
    shown = "" if values.is_empty() else " ".join(str(values.head(1).to_list()[0]).split())
    return shown if len(shown) <= 40 else shown[:37] + "..."
