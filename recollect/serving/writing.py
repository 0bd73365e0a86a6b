"""The thread that writes: whatever waits at a time becomes one durable commit, and only then is anyone told.

Says of each item whether it was added or was there already. Whoever has the history's lock writes; a process that
hasn't tries for it again with each write, so that another takes over when the writer is gone.
"""

import errno
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from time import time_ns

import numpy as np

from recollect.data.events import Events
from recollect.deployed import append_events, raw_json
from recollect.errors import FULL, HistoryError, HistoryLockedError, ItemError
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import HistoryWriter
from recollect.serving.changes import (
    Adding,
    Correcting,
    Erasing,
    Job,
    Status,
    Stored,
    Written,
    contradicts,
    impossible,
    not_kept,
    not_there,
    size,
    stored_of,
)
from recollect.serving.kept_inputs import KeptInputs
from recollect.serving.moments import Moments
from recollect.serving.problems import Problem, closing, no_room, too_many
from recollect.trained import Trained

logger = logging.getLogger(__name__)

ITEMS_AT_ONCE = 4096


class Writing:
    """Hand it changes from any thread. `history`, which it writes to, is a reader of its own; `model` gives the model
    whose keys new items get."""

    def __init__(
        self,
        history: History,
        model: Callable[[], Trained],
        kept: KeptInputs,
        *,
        queue_items: int,
        on_commit: Callable[[int, float], None],
    ) -> None:
        """`on_commit` is told each new version, and when the first change in it was handed in."""
        self._model, self._kept = model, kept
        self._queue_items, self._on_commit = queue_items, on_commit
        self._reader = history
        self._moments = Moments()
        self._writer: HistoryWriter | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = False
        self.waiting = 0
        self._writing_since: int | None = None
        self._thread = threading.Thread(target=self._run, name="recollect-writer", daemon=True)

    def start(self) -> None:
        """Become the writer, if nobody else is."""
        try:
            self._open()
        except HistoryLockedError as error:
            logger.warning("%s", error)
        except OSError as error:
            if error.errno not in FULL:
                raise
            logger.warning("nothing can be written, the disk is full: make room; predictions go on meanwhile")
        self._thread.start()

    @property
    def is_writer(self) -> bool:
        return self._writer is not None

    def snapshot(self) -> Snapshot:
        """The newest state, for looking at items."""
        return self._reader.refresh()

    def submit(self, job: Job) -> None:
        with self._lock:
            if self._closing:
                raise closing()
            if self.waiting + size(job) > max(self._queue_items, size(job)):
                raise too_many("items")
            self.waiting += size(job)
        self._jobs.put(job)

    def close(self) -> None:
        """Writes what was handed in, then gives up the lock."""
        with self._lock:
            self._closing = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._give_up()

    # The thread

    def _run(self) -> None:
        while not (self._closing and self._jobs.empty()):
            jobs = self._gather()
            self._writing_since = time_ns()
            adding: list[Adding] = []
            for job in [*jobs, None]:
                if isinstance(job, Adding):
                    adding.append(job)
                    continue
                if adding:
                    self._attempt(lambda group=adding: self._add(group), adding)  # type: ignore[misc]
                    adding = []
                if job is not None:
                    self._attempt(lambda job=job: self._change(job), [job])  # type: ignore[misc]
            self._writing_since = None
            with self._lock:
                self.waiting -= sum(size(job) for job in jobs)

    def present(self) -> int:
        """A moment before which everything that this process dates is written: this one, or when it began to write."""
        now, since = time_ns(), self._writing_since  # in this order: who begins after this looks at the clock later
        return now if since is None else min(now, since)

    def _gather(self) -> list[Job]:
        jobs: list[Job] = []
        job = self._jobs.get()
        while True:
            if job is not None and job.done.set_running_or_notify_cancel():
                jobs.append(job)
            elif job is not None:
                with self._lock:
                    self.waiting -= size(job)
            if sum(map(size, jobs)) >= ITEMS_AT_ONCE:
                return jobs
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs

    def _attempt(self, change: Callable[[], None], jobs: Sequence[Job]) -> None:
        """What goes wrong is told to those who still wait for an answer."""
        try:
            try:
                change()
            except HistoryError as error:
                if isinstance(error, (HistoryLockedError, ItemError)):
                    raise
                self._give_up()  # the writer can't be used any more, perhaps after a full disk: begin anew, once
                change()
        except BaseException as error:
            told: BaseException = error
            if isinstance(error, OSError):
                self._give_up()
                told = no_room(error)
            elif isinstance(error, sqlite3.OperationalError):
                told = no_room(OSError(errno.ENOSPC, str(error)))
            elif not isinstance(error, (Problem, HistoryError)):
                logger.exception("a change could not be written")
            for job in jobs:
                if not job.done.done():
                    job.done.set_exception(told)

    def _open(self) -> HistoryWriter:
        if self._writer is None:
            self._writer = HistoryWriter.open(self._reader.storage.url, reuse=self._reader.snapshot.parts)
        return self._writer

    def _give_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close(wait=False)
            except (OSError, HistoryError) as error:
                logger.warning("the history could not be closed: %s", error)

    def _add(self, jobs: list[Adding]) -> None:
        """One commit for all; a job that can't be is refused as a whole, and the others go on."""
        writer = self._open()
        stored = self._stored([id for job in jobs for id in job.events.id.to_list()])
        accepted: list[tuple[Adding, list[Status]]] = []
        parts: list[Events] = []
        for job in jobs:
            if job.done.done():
                continue
            try:
                part, statuses = self._new_ones(job, stored)
            except Problem as problem:
                job.done.set_exception(problem)
                continue
            accepted.append((job, statuses))
            if len(part):
                parts.append(part)
        version = writer.version
        if parts:
            try:
                version = append_events(writer, self._model(), Events.concat(parts)).commit
            except ItemError:
                if len(jobs) == 1:
                    raise
                for job in jobs:  # one by one, so that who is to blame is told
                    self._attempt(lambda job=job: self._add([job]), [job])  # type: ignore[misc]
                return
            self._on_commit(version, min(job.since for job, _ in accepted))
        for job, statuses in accepted:
            job.done.set_result(Written(statuses, version))

    def _stored(self, ids: list[str]) -> dict[str, Stored]:
        """Those that are there."""
        snapshot = self._reader.refresh()
        return {id: stored_of(snapshot, rows) for id, rows in zip(ids, snapshot.versions(ids), strict=True) if rows}

    def _new_ones(self, job: Adding, stored: dict[str, Stored]) -> tuple[Events, list[Status]]:
        """Of a job that can be done, which are then among those that are stored."""
        # Dated here, so that items arrive in the order they are stored.
        events = self._moments.dated(job, self._reader.snapshot, stored)
        assert events.label is not None
        ids, labels = events.id.to_list(), events.label.to_list()
        rows = list(events.columns.iter_rows(named=True))
        statuses: list[Status] = []
        refused: list[tuple[int, str]] = []
        own: dict[str, Stored] = {}
        new: list[int] = []
        kept = self._kept.find(ids) if job.of_kept else {}
        for index, id in enumerate(ids):
            there = own.get(id, stored.get(id))
            if there is None and job.of_kept and id not in kept:
                raise not_kept([f"{job.place}/{index}"])  # erased a moment ago
            if there is None:
                known = (labels[index], events.known_at[index].item())
                own[id] = Stored(raw_json(rows[index]), events.time[index].item(), [known])
                new.append(index)
                statuses.append("added")
            elif other := there.other(job, index, None if job.of_kept and id not in kept else rows[index]):
                refused.append((index, other))
            else:
                statuses.append("there")
        if refused:
            raise contradicts(job, refused)
        stored |= own
        return events.take(np.array(new, np.int64)), statuses

    def _change(self, job: Job) -> None:
        writer = self._open()
        if isinstance(job, Erasing):
            rows = len(self._reader.refresh().versions([job.id])[0])
            # The input first, so that nothing is left to make it an item again.
            job.found = max(job.found[0], rows), self._kept.erase(job.id) or job.found[1]
            writer.erase(job.id)
            if job.found[0]:
                self._on_commit(writer.version, job.since)
            job.done.set_result(job.found)
        elif isinstance(job, Correcting):
            job.done.set_result(self._correct(writer, job))

    def _correct(self, writer: HistoryWriter, job: Correcting) -> Written:
        there = self._stored([job.id]).get(job.id)
        if there is None:
            raise not_there(job.id)
        if there.label == job.label:
            return Written(["there"], writer.version)
        at = self._moments.corrected(job.at, there.labels[-1][1], self._reader.snapshot)
        try:
            version = writer.correct(job.id, job.label, at)
        except ItemError as error:
            raise impossible("#/at", str(error)) from error
        self._on_commit(version, job.since)
        return Written(["added"], version)
