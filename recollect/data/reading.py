"""Tables into events, in chunks that fit into memory: rows that can't be used stop the reading, or are counted, or
are written to a file. Nothing is dropped in silence.

Knows neither features nor histories; the order of events is the table's own, unless `read_all` sorts them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from recollect.data.events import Events, make_events
from recollect.data.inference import infer_schema
from recollect.data.repeats import MetIds
from recollect.data.schema import TableSchema
from recollect.data.tables.ahead import ahead, two_at_a_time
from recollect.data.tables.raw import BadRow, RawChunk, Table
from recollect.data.tables.sources import open_table
from recollect.errors import BadRowError, DataError, OutputExistsError, SettingError

BadRows = Literal["fail", "skip", "file"]
RepeatedIds = Literal["keep", "bad", "refuse"]
"""What becomes of a row whose id came before in the table: an event like the others, a bad row, or an error that says
the column is not one of ids, whatever is done with bad rows: for a column that was guessed."""

FIRST_ROWS = 1000
CHUNK_ROWS = 100_000


@dataclass
class Summary:
    """What was read so far: rows that became events, the bad ones by kind, fields that came too late to be read, with
    the line they were first seen in, columns that the schema says nothing of, and features that no row has."""

    events: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    bad_rows_file: Path | None = None
    late_fields: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.events} rows read"
        if self.bad:
            kinds = ", ".join(f"{kind} {count}" for kind, count in self.bad.most_common())
            text += f", {self.bad.total()} bad row{'s' * (self.bad.total() > 1)} left out ({kinds})"
        if self.bad_rows_file is not None:
            text += f"; they are in {self.bad_rows_file}"
        for name, line in self.late_fields.items():
            text += (
                f"; field {name} first seen at line {line} was not read: "
                f"have a row with it among the first {FIRST_ROWS} to have it read"
            )
        if self.unknown:
            text += f"; not read, for the schema knows no such column: {', '.join(self.unknown)}"
        if self.empty:
            text += f"; missing in every row: {', '.join(self.empty)}"
        return text

    @property
    def has_gaps(self) -> bool:
        """Whether anything was left out."""
        return bool(self.bad or self.late_fields or self.unknown or self.empty)

    def to_json(self) -> dict[str, Any]:
        return {
            "bad_rows": dict(self.bad),
            "late_fields": self.late_fields,
            "unknown_columns": list(self.unknown),
            "empty_columns": list(self.empty),
        }


def first_rows(source: Any, count: int = FIRST_ROWS) -> pl.DataFrame:
    """The first rows of a table, from which `infer_schema` makes a schema to be confirmed."""
    table = open_table(source)
    rows = table.first_rows(count)
    if rows.is_empty():
        raise DataError(f"{table.name} has no rows: give a table with rows")
    return rows


@dataclass
class Reading:
    """A table being read: iterate once over its chunks, and look at the summary afterwards."""

    table: Table
    schema: TableSchema
    chunk_rows: int
    bad_rows: BadRows
    bad_rows_file: Path | None
    labels: tuple[float, float] | None = None
    every_column: bool = False
    repeated_ids: RepeatedIds = "keep"
    summary: Summary = field(default_factory=Summary)

    def __iter__(self) -> Iterator[Events]:
        self.summary = Summary()
        unseen, met = list(self.schema.features), MetIds()
        made = ahead(self._made())
        try:
            for events, bad, unread, chunk in made:
                self._note(unread)
                if chunk is not None and (again := met.repeats(events, chunk, self.table)):
                    if self.repeated_ids == "refuse":
                        raise self._no_ids(next(iter(again.values())))
                    events = events.take(np.delete(np.arange(len(events)), list(again)))
                    bad = sorted([*bad, *again.values()], key=lambda each: each.row)
                if bad:
                    self.leave_out(bad, len(events) + len(bad))
                for start in range(0, len(events), self.chunk_rows):
                    part = events.part(start, start + self.chunk_rows)
                    self.summary.events += len(part)
                    unseen = [name for name in unseen if part.columns.get_column(name).null_count() == len(part)]
                    yield part
            # A field that was renamed looks like this in a format in which a row may lack it.
            self.summary.empty = tuple(unseen) if self.summary.events else ()
            if self.every_column and self.summary.events:
                told = {*self.schema.columns, *self.schema.ignored}
                there = self.table.first_rows(FIRST_ROWS).columns
                self.summary.unknown = tuple(name for name in there if name not in told)
        finally:
            made.close()

    def leave_out(self, bad: list[BadRow], rows: int) -> None:
        """Of so many rows read at once, some that can't be used: fail, or count them, or write them to the file too."""
        if self.bad_rows == "fail":
            raise _failure(bad, rows)
        if self.bad_rows == "file":
            assert self.bad_rows_file is not None
            # The first to write makes the file: what another run wrote stays as it is.
            with self.bad_rows_file.open("a" if self.summary.bad_rows_file else "x", encoding="utf-8") as file:
                file.writelines(_as_line(each) for each in bad)
            self.summary.bad_rows_file = self.bad_rows_file
        self.summary.bad.update(each.kind for each in bad)

    def _note(self, unread: Mapping[str, int]) -> None:
        """Fields that the first rows have are left out on purpose; others came too late for anyone to decide."""
        late = {name: line for name, line in unread.items() if name not in self.schema.ignored}
        if late:
            first = self.table.first_rows(FIRST_ROWS).columns
            self.summary.late_fields |= {name: line for name, line in late.items() if name not in first}

    def _no_ids(self, first: BadRow) -> DataError:
        name = self.schema.id
        return DataError(
            f"{first.place}: the column {name} looks like ids among the first {FIRST_ROWS} rows, but {first.message}: "
            f"name another column with --id, or leave this one out with --ignore {name}; if these are the ids all the "
            f"same, with --id {name} rows that repeat one are bad rows"
        )

    def _made(self) -> Iterator[tuple[Events, list[BadRow], Mapping[str, int], RawChunk | None]]:
        """While a chunk is worked on by whoever reads, the next two are made into events or parsed; with the chunk
        where ids are looked at."""
        looks_at_ids = self.schema.id is not None and self.repeated_ids != "keep"

        def make(chunk: RawChunk) -> tuple[Events, list[BadRow], Mapping[str, int], RawChunk | None]:
            events, bad = make_events(chunk, self.schema, self.table, self.labels)
            return events, bad, chunk.unread, chunk if looks_at_ids else None

        yield from two_at_a_time(make, self.table.chunks(self.schema.hopes(), self.chunk_rows))


def read_events(
    source: Any,
    schema: TableSchema | None = None,
    *,
    chunk_rows: int = CHUNK_ROWS,
    bad_rows: BadRows = "fail",
    bad_rows_file: str | Path | None = None,
    labels: tuple[float, float] | None = None,
    every_column: bool = False,
    repeated_ids: RepeatedIds = "keep",
) -> Reading:
    """The events of a file, a DataFrame or an Arrow table, in chunks of at most `chunk_rows`.

    Without a schema it is inferred from the first rows. `bad_rows` says what a row does that can't be used: "fail"
    raises at once and names it, "skip" leaves it out and counts it, "file" writes it with its reason to `bad_rows_file`
    (by default beside the file read, under a name that is free) as a line of JSON. A missing feature does not make a
    row bad. JSON fields that first appear after the first rows are not read; the summary names them, unless they are so
    rare that none was met among the lines that are looked at for them. With `labels` a row is bad unless its label is a
    number from the first to the second. `every_column`: the schema is of all columns that such a table had, so that the
    summary names those it says nothing of. With `repeated_ids` other than "keep", all ids are held in memory.
    """
    if chunk_rows < 1:
        raise SettingError(f"chunk_rows is {chunk_rows}: it must be at least 1")
    table = open_table(source)
    if schema is None:
        schema = infer_schema(first_rows(source))
    path = None if bad_rows != "file" else _bad_rows_file(source, bad_rows_file)
    return Reading(table, schema, chunk_rows, bad_rows, path, labels, every_column, repeated_ids)


def read_all(
    source: Any,
    schema: TableSchema | None = None,
    *,
    bad_rows: BadRows = "fail",
    bad_rows_file: str | Path | None = None,
    labels: tuple[float, float] | None = None,
    every_column: bool = False,
    repeated_ids: RepeatedIds = "keep",
) -> tuple[Events, Reading]:
    """All events of a table that fits into memory, by the time their label was known, ties as in the table."""
    reading = read_events(
        source,
        schema,
        bad_rows=bad_rows,
        bad_rows_file=bad_rows_file,
        labels=labels,
        every_column=every_column,
        repeated_ids=repeated_ids,
    )
    chunks = list(reading)
    if not chunks:
        raise DataError(f"{reading.table.name} has no row that can be used ({reading.summary})")
    events = Events.concat(chunks)
    if (np.diff(events.known_at) < 0).any():
        events = events.take(np.argsort(events.known_at, kind="stable"))
    return events, reading


def _bad_rows_file(source: Any, given: str | Path | None) -> Path:
    if given is None and not isinstance(source, (str, Path)):
        raise SettingError('bad_rows="file" needs the name of a file for a table in memory: give bad_rows_file')
    if given is not None:
        if Path(given).exists():
            raise OutputExistsError(f"{given} is there already: remove it, or name another file for bad rows")
        return Path(given)
    # A run that goes on after a stop reads the table again, and what the first run found stays as it is.
    names = (Path(f"{source}.bad{'' if number == 1 else f'-{number}'}.jsonl") for number in count(1))
    return next(path for path in names if not path.exists())


def _failure(bad: list[BadRow], rows: int) -> BadRowError:
    first, more = bad[0], len(bad) - 1
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(each.kind for each in bad[1:]).most_common())
    others = f" ({more} more bad row{'s' * (more > 1)} among the {rows} rows read with it: {kinds})" if more else ""
    return BadRowError(
        f"{first.place}: {first.message}{others}. Mend the row, or leave bad rows out with --bad-rows skip, "
        "or have them written to a file with --bad-rows file"
    )


def _as_line(bad: BadRow) -> str:
    found = {"place": bad.place, "kind": bad.kind, "reason": bad.message, "row": bad.raw}
    return json.dumps(found, ensure_ascii=False, default=str) + "\n"
