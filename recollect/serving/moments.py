"""When an item that is posted happened and became known: as its sender says, within reason, or when it arrived."""

from collections.abc import Container
from dataclasses import replace
from time import time_ns

import numpy as np

from recollect.data.events import Events
from recollect.history.extent import Extent
from recollect.history.snapshot import Snapshot
from recollect.serving.changes import Adding, impossible

AHEAD = 3600 * 10**9
"""How far a clock elsewhere may be ahead of ours, in nanoseconds."""

SPANS = 100
"""Where times are plain numbers: an item may be outside the history by so many times its whole span. What is farther is
of another unit, and once it were in, everything before it would look equally old."""


class Moments:
    """For the thread that writes, which says how the history is now."""

    def __init__(self) -> None:
        self._extent = Extent()

    def arrival(self, snapshot: Snapshot) -> int | float:
        """This moment; where times are plain numbers, the next whole one after all that is known."""
        if snapshot.schema.time == "nanoseconds":
            return time_ns()
        return self._extent.next_whole(snapshot)

    def dated(self, job: Adding, snapshot: Snapshot, stored: Container[str]) -> Events:
        """With times: those given, or that of arrival. What is stored already may be sent again at any time."""
        now = self.arrival(snapshot)
        plain = isinstance(now, float)
        low, high, outside = self._bounds(now, snapshot)
        time = np.where(job.time.given, job.time.values, now)
        # Plain numbers have no clock: an item is known when it happened, but the label of an input answered is new.
        arrived = time if plain and not job.of_kept else np.maximum(time, now)
        known_at = np.where(job.known_at.given, job.known_at.values, arrived)
        for index, id in enumerate(job.events.id.to_list()):
            if id in stored:
                continue
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
