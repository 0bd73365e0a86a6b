"""Labelled rows of a table into the history of a model: those that are there already are skipped, all others added."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from json import loads
from math import ceil
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from recollect.data.events import Events
from recollect.deployed import ROW, append_events, check_features, create_history, history_schema, intake_of, raw_json
from recollect.errors import ItemError, SettingError
from recollect.history.extent import Extent
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import HistoryWriter
from recollect.trained import Trained


@dataclass(frozen=True)
class Ingested:
    """How many rows were added and were there already, and how many of the latter have another label, time or content
    than what is there, which stays; the history's version after it, and classes that none of its items had before: from
    now on they can be the answer."""

    added: int
    there_already: int
    differing: int
    version: int
    new_classes: tuple[str, ...]


def ingest_events(
    chunks: Iterable[Events],
    model: Trained,
    history: str | Path,
    *,
    create: bool = False,
    label_delay: int | float = 0,
    cache: Path | None = None,
) -> Ingested:
    """Append events read under the model's schema, durably chunk by chunk; with `create` to a new history.

    Where the order of rows is the time, new ones come after all that is there. A row that is there already is skipped;
    where rows go by file and line it has to be the same. Labels are known `label_delay` after their rows, in the data's
    unit of time. Texts that are in the cache, if there is one, are not embedded again.
    """
    schema = intake_of(model).schema
    timed = schema.time is not None
    added = there_already = differing = 0
    with create_history(history, model) if create else HistoryWriter.open(history) as writer:
        reader, known, happened = History.open(history), Extent(), Extent("time")
        classes = reader.refresh().classes
        check_features(model, reader.snapshot)
        _check_makes(model, reader.snapshot)
        for events in chunks:
            snapshot = reader.refresh()
            if schema.id is None or not timed:
                versions = snapshot.versions(events.id.to_list())
                if schema.id is None:
                    _check_same(events, versions, snapshot, timed=timed)
                if not timed:
                    new = np.array([not rows for rows in versions], bool)
                    # After all rows, and so that no label is known before those that are there.
                    first = max(happened.next_whole(snapshot), ceil(known.next_whole(snapshot) - label_delay))
                    events = _after_all(events, new, first)
            events = events.delayed(label_delay)
            done = append_events(writer, model, events, on_duplicate="skip", cache=cache)
            added, there_already = added + done.added, there_already + done.skipped
            if done.skipped and schema.id is not None:
                # Now each is there: also one that came twice in this table.
                snapshot = reader.refresh()
                versions = snapshot.versions(events.id.to_list())
                differing += sum(1 for _ in _differences(events, versions, snapshot, timed=timed))
        return Ingested(added, there_already, differing, writer.version, reader.refresh().classes[len(classes) :])


def _check_makes(model: Trained, snapshot: Snapshot) -> None:
    """The other way round: what each item of a history has must be made of new rows as well."""
    made = history_schema(model).features
    others = [column.name for column in snapshot.schema.features if column not in made]
    if others:
        raise SettingError(
            f"items of history {snapshot.url} have {', '.join(others)}, which this model doesn't make of rows: ingest "
            "with the model that the history was made with, or make another history with recollect train --history"
        )


def _after_all(events: Events, new: Bool[np.ndarray, " events"], first: float) -> Events:
    """The new ones one after the other from a moment on."""
    time = events.time.copy()
    time[new] = first + np.arange(int(new.sum()))
    return replace(events, time=time, known_at=time)


def _check_same(events: Events, versions: list[list[int]], snapshot: Snapshot, *, timed: bool) -> None:
    """Two files of one name would otherwise pass for one, and the rows of the second be lost."""
    for place, other in _differences(events, versions, snapshot, timed=timed):
        raise ItemError(
            f"{events.id[place]} is in the history already, with another {other}: rows of this table have no ids "
            "and go by file and line, so give a new file a name of its own, or train with --id"
        )


def _differences(
    events: Events, versions: list[list[int]], snapshot: Snapshot, *, timed: bool
) -> Iterator[tuple[int, str]]:
    """Places of events that are in the history, but not as they are here, and what is another there. A label that was
    corrected since is no difference."""
    there = [place for place, rows in enumerate(versions) if rows]
    if not there:
        return
    assert events.label is not None
    wanted = [row for rows in versions for row in rows]
    low, high = min(wanted), max(wanted) + 1
    labels, times = (snapshot.column(name, low, high) for name in ("label", "time"))
    raws = snapshot.payload([versions[place][0] for place in there]).column(ROW).to_pylist()
    here = zip(there, events.label.gather(there), events.columns[there].iter_rows(named=True), raws, strict=True)
    for place, label, row, raw in here:
        if label not in {snapshot.classes[labels[version - low]] for version in versions[place]}:
            yield place, "label"
        elif timed and times[versions[place][0] - low] != events.time[place]:
            yield place, "time"
        elif raw is not None and raw != (now := raw_json(row)) and loads(raw) != loads(now):
            yield place, "content"
