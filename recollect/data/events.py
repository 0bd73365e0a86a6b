"""Events: labelled rows with their times and features, each column of the type its role asks for.

Makes them from raw rows and says which rows can't be events and why; what then happens to those is up to `reading`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.event_columns import (
    Faults,
    check_within,
    event_categories,
    event_embedding,
    event_numbers,
    event_texts,
    event_times,
    required_names,
)
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import BadRow, RawChunk, Table, column_of
from recollect.data.tables.times import LARGEST
from recollect.errors import SettingError


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


def make_events(
    chunk: RawChunk, schema: TableSchema, table: Table, labels: tuple[float, float] | None = None
) -> tuple[Events, list[BadRow]]:
    """The rows of a chunk that are events under a schema, and those that aren't, in order.

    With `labels`, a label has to be a number from the first to the second.
    """
    faults = Faults(chunk, table)
    column = partial(column_of, chunk.frame)
    if schema.time is None:
        time = pl.Series("time", chunk.rows, pl.Float64)
    else:
        assert schema.time_unit is not None
        time = event_times(column(schema.time), schema.time_unit, faults, "time", schema.time_seen)
    known_at = time
    if schema.known_at is not None:
        assert schema.known_at_unit is not None
        assert schema.time is not None
        known_at = event_times(column(schema.known_at), schema.known_at_unit, faults, "known_at", schema.time_seen)
        happened, known = column(schema.time), column(schema.known_at)
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
        label = required_names(column(schema.label), faults, "label")
        if labels is not None:
            check_within(label, labels, faults, schema.label)
    if schema.id is None:
        id = table.place + pl.Series("id", chunk.numbers).cast(pl.String)
    else:
        id = required_names(column(schema.id), faults, "id")
    features = {name: event_numbers(column(name), faults) for name in schema.numeric}
    features |= {name: event_categories(column(name)) for name in schema.categorical}
    features |= {name: event_texts(column(name)) for name in schema.text}
    features |= {name: event_embedding(column(name), width, faults) for name, width in schema.embedding.items()}
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
        keep = np.ones(chunk.frame.height, np.bool_)
        keep[list(faults.found)] = False
        events = events.take(keep.nonzero()[0])
    if schema.embedding:
        # A fixed width can only be had now that the rows of another are gone.
        columns = {name: column_of(events.columns, name) for name in schema.features}
        for name, width in schema.embedding.items():
            columns[name] = columns[name].cast(pl.Array(pl.Float32, width))
        events = replace(events, columns=pl.DataFrame(columns))
    return events, sorted([*chunk.broken, *faults.found.values()], key=lambda each: each.row)


def _array(times: pl.Series, dtype: type[np.float64] | type[np.int64]) -> NDArray[Any]:
    there = times.fill_null(0) if times.null_count() else times
    return there.to_numpy().astype(dtype, copy=False)
