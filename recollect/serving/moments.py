"""When an item that is posted happened and became known: as its sender says, within reason, or when it arrived."""

from dataclasses import dataclass, replace
from time import time_ns

import numpy as np

from recollect.data.events import Events
from recollect.history.snapshot import Snapshot
from recollect.serving.changes import Adding, impossible

AHEAD = 3600 * 10**9
"""How far a clock elsewhere may be ahead of ours, in nanoseconds."""

SPANS = 100
"""Where times are plain numbers: an item may be outside the history by so many times its whole span. What is farther is
of another unit, and once it were in, everything before it would look equally old."""


@dataclass
class Extent:
    """Between which moments the labels of all items became known, less those erased. Of a history that grew only what
    is new is looked at."""

    _rows: int = 0
    _same: tuple[int, int] = (0, 0)
    """As long as this generation and number of erased rows are the same, rows stay what they were."""
    _bounds: tuple[float, float] | tuple[()] = ()

    def of(self, snapshot: Snapshot) -> tuple[float, float] | tuple[()]:
        same = (snapshot.generation, len(snapshot.erased))
        if same != self._same or snapshot.num_rows < self._rows:
            self._rows, self._same, self._bounds = 0, same, ()
        bounds = list(self._bounds)
        for first, part in snapshot.pieces("known_at", self._rows):
            erased = snapshot.erased[(snapshot.erased >= first) & (snapshot.erased < first + len(part))]
            left = np.delete(part, erased - first) if len(erased) else part
            bounds += [float(left.min()), float(left.max())] if len(left) else []
        self._rows = snapshot.num_rows
        self._bounds = (min(bounds), max(bounds)) if bounds else ()
        return self._bounds


class Moments:
    """For the thread that writes, which says how the history is now."""

    def __init__(self) -> None:
        self._extent = Extent()

    def arrival(self, snapshot: Snapshot) -> int | float:
        """This moment; where times are plain numbers, the next whole one after all that is known."""
        if snapshot.schema.time == "nanoseconds":
            return time_ns()
        return float(np.floor(max(self._extent.of(snapshot), default=-1.0)) + 1)

    def dated(self, job: Adding, snapshot: Snapshot) -> Events:
        """With times: those given, or that of arrival."""
        now = self.arrival(snapshot)
        plain = isinstance(now, float)
        low, high, outside = self._bounds(now, snapshot)
        time = np.where(job.time.given, job.time.values, now)
        known_at = np.where(job.known_at.given, job.known_at.values, time if plain else np.maximum(time, now))
        for index in range(len(time)):
            where = f"{job.place}/{index}"
            if known_at[index] < time[index]:
                raise impossible(where, "known_at is before the time: a label can't be known before it happened")
            for role, moment in (("time", time[index]), ("known_at", known_at[index])):
                if not low <= moment <= high:
                    raise impossible(f"{where}/{role}", outside)
        return replace(job.events, time=time, known_at=known_at)

    def corrected(self, at: int | float | None, last: int | float, snapshot: Snapshot) -> int | float:
        """When a correction became known: as given, or now, but not before the label it corrects."""
        now = self.arrival(snapshot)
        at = max(now, last) if at is None else at
        low, high, outside = self._bounds(now, snapshot)
        if not low <= at <= high:
            raise impossible("#/at", outside)
        return at

    def _bounds(self, now: int | float, snapshot: Snapshot) -> tuple[int | float, int | float, str]:
        """Between which moments an item may be, and what to tell of one that isn't."""
        if isinstance(now, int):
            return -np.inf, now + AHEAD, "is in the future: give a moment that has come"
        low, high = self._extent.of(snapshot) or (0.0, 0.0)
        reach = SPANS * (high - low) or np.inf  # of a single moment nothing follows
        detail = (
            f"is far from all that is there, which goes from {low:g} to {high:g}: give it in the table's unit; "
            "if it is right, stop the service and append it with recollect ingest"
        )
        return low - reach, high + reach, detail
