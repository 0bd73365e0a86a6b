"""Inputs that were predicted, kept for a while: a label that comes for one later makes it an item.

A database of the service's own, shared by all processes of a machine that serve the same history. Inputs are logged a
few at a time, each group durably within 50 ms. Also counts, hour by hour, how many answers there were, how many labels
came back, and how many of those answers were right. While the disk refuses, all of that waits in memory, up to a bound.
"""

import json
import logging
import math
import queue
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.errors import FULL, SettingError

logger = logging.getLogger(__name__)

GROUP_SECONDS = 0.03
PRUNED_EVERY = 600.0
RETRIED_EVERY = 5.0
PENDING_BYTES = 64 << 20
"""Of inputs that wait for the disk, about."""

LEAST_ROOM = 1 << 20
"""Bytes without which a disk is full, whatever else a failure to open a file might mean."""

HOUR = 3600
FILE = "inputs.sqlite"
COLUMNS = ("predictions", "labelled", "right")

TABLES = """
create table if not exists inputs (
    id text primary key, kept_at real not null, time blob not null, row text not null, predicted text not null
) without rowid;
create index if not exists inputs_by_age on inputs (kept_at);
create table if not exists hours (
    hour integer primary key, predictions integer not null default 0,
    labelled integer not null default 0, right integer not null default 0
);
"""


@dataclass(frozen=True)
class KeptInput:
    """`time` is the moment it was answered as of, as the history stores moments."""

    id: str
    time: int | float
    row: dict[str, Any]
    predicted: str


@dataclass(frozen=True)
class Hour:
    """What happened in one hour, which begins at `start`, in seconds since 1970."""

    start: int
    predictions: int
    labelled: int
    right: int


@dataclass
class Pending:
    """What is not on disk yet: inputs, ids of those that may go, and counts by hour and column."""

    inputs: dict[str, KeptInput] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    hours: Counter[tuple[int, str]] = field(default_factory=Counter)
    size: int = 0

    def add(self, each: KeptInput) -> None:
        self.drop(each.id)
        self.gone.discard(each.id)
        self.inputs[each.id] = each
        self.size += _size(each)

    def drop(self, id: str) -> bool:
        """Whether it was there."""
        each = self.inputs.pop(id, None)
        self.size -= 0 if each is None else _size(each)
        return each is not None

    def copy(self) -> "Pending":
        return Pending(dict(self.inputs), set(self.gone), Counter(self.hours))

    def remove(self, written: "Pending") -> None:
        """What was written; an input of the same id that came since stays."""
        for id, each in written.inputs.items():
            if self.inputs.get(id) is each:
                self.drop(id)
        self.gone -= written.gone
        self.hours -= written.hours


def _size(each: KeptInput) -> int:
    return 500 + sum(32 * len(value) if isinstance(value, list) else len(str(value)) for value in each.row.values())


class KeptInputs:
    """May be called by any thread. With `keep_seconds` 0 nothing is kept but the counts; without a folder these are
    only of this process, and nothing is written."""

    def __init__(self, folder: Path | None, *, keep_seconds: float, queue_length: int = 100_000) -> None:
        self.path = None if folder is None else folder / FILE
        self.may_prune: Callable[[], bool] = lambda: False
        """Those who share the file may want to keep inputs for different times: one of them decides."""
        self.lost = 0
        """Inputs that could not be kept, since the disk was full or too many came."""
        self._keep_seconds = keep_seconds if folder is not None else 0.0
        self._queue_length = queue_length
        self._lock = threading.Lock()  # of what is pending, held for moments only
        self._pending = Pending()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._pruned_at = -math.inf
        self._failing = False
        self._retried_at = -math.inf
        self._disk = threading.Lock()  # of the connection; taken before the other
        self._database: sqlite3.Connection | None = None
        self._begin()
        self._thread = threading.Thread(target=self._run, name="recollect-inputs", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        """A full disk may have room later, when there is something to write; anything else is somebody's mistake."""
        try:
            self._connect()
        except (OSError, sqlite3.Error) as error:
            if not _is_full(error, self.path):
                raise SettingError(
                    f"{self.path} can't be used ({error}): give another directory with --state, or move the file away"
                ) from error

    @property
    def going(self) -> bool:
        """Whether inputs still find their way to the disk, now or when it has room."""
        return self._thread.is_alive()

    def keep(self, inputs: Sequence[KeptInput]) -> None:
        """Soon; nobody has to wait for it."""
        with self._lock:
            self._pending.hours[_this_hour(), "predictions"] += len(inputs)
            if self._keep_seconds > 0:
                full = len(self._pending.inputs) + len(inputs) > self._queue_length
                if full or self._pending.size > PENDING_BYTES:
                    self.lost += len(inputs)
                else:
                    for each in inputs:
                        self._pending.add(each)
        self._wake.put(True)

    def find(self, ids: Iterable[str]) -> dict[str, KeptInput]:
        """Those that are kept."""
        ids = list(ids)
        with self._lock:
            found = {id: self._pending.inputs[id] for id in ids if id in self._pending.inputs}
            missing = [id for id in ids if id not in found and id not in self._pending.gone]
        with self._disk:
            for id in missing:
                for row in self._select("select time, row, predicted from inputs where id = ?", id):
                    found[id] = KeptInput(id, row[0], json.loads(row[1]), row[2])
        return found

    def labelled(self, outcomes: Sequence[tuple[str, bool]]) -> None:
        """Labels came, and were stored: these inputs need not be kept any longer. Says of each if it was right."""
        hour = _this_hour()
        with self._disk:
            with self._lock:
                for id, was_right in outcomes:
                    self._pending.drop(id)
                    self._pending.gone.add(id)
                    self._pending.hours[hour, "labelled"] += 1
                    self._pending.hours[hour, "right"] += was_right
            self._write()

    def erase(self, id: str) -> bool:
        """Gone when this returns, from the files too; whether there was one."""
        with self._disk:
            database, rows = self._connect(), 0
            if database is not None:
                with database:
                    rows = database.execute("delete from inputs where id = ?", (id,)).rowcount
                database.execute("pragma wal_checkpoint(truncate)")
            with self._lock:
                return self._pending.drop(id) or rows > 0

    def hours(self, since: float = 0.0) -> list[Hour]:
        with self._disk:
            rows = self._select("select * from hours where hour >= ?", since)
            with self._lock:
                pending = Counter(self._pending.hours)
        found = {hour: Counter(predictions=made, labelled=came, right=right) for hour, made, came, right in rows}
        for (hour, column), count in pending.items():
            if hour >= since:
                found.setdefault(hour, Counter())[column] += count
        return [Hour(hour, *(found[hour][column] for column in COLUMNS)) for hour in sorted(found)]

    def flush(self) -> None:
        """Whatever is pending is on disk when this returns, if the disk takes it."""
        with self._disk:
            self._write(now=True)

    def close(self) -> None:
        self._wake.put(False)
        self._thread.join()
        self.flush()
        with self._disk:
            if self._pending.inputs:
                self.lost += len(self._pending.inputs)
                logger.warning("%d inputs could not be kept", len(self._pending.inputs))
            if self._database is not None:
                self._database.close()

    # With the disk's lock

    def _connect(self) -> sqlite3.Connection | None:
        if self._database is None and self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = _open(self.path)
        return self._database

    def _select(self, query: str, value: str | float) -> list[tuple[Any, ...]]:
        return [] if self._database is None else self._database.execute(query, (value,)).fetchall()

    def _write(self, *, now: bool = False) -> None:
        """What the disk refuses stays pending, and is tried again after a while."""
        if self._failing and not now and time.monotonic() - self._retried_at < RETRIED_EVERY:
            return
        try:
            self._store()
        except (OSError, sqlite3.Error) as error:
            self._failed(error)
        else:
            if self._failing:
                logger.info("inputs are kept again")
            self._failing = False

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            logger.warning("inputs wait in memory, since the disk refuses them (%s): make room", error)
        self._failing, self._retried_at = True, time.monotonic()

    def _store(self) -> None:
        database = self._connect()
        with self._lock:
            pending = self._pending.copy()
        if database is None or not (pending.inputs or pending.gone or pending.hours):
            return
        now = time.time()
        with database:
            database.executemany("delete from inputs where id = ?", [(id,) for id in pending.gone])
            unfit = sum(not _insert(database, each, now) for each in pending.inputs.values())
            for (hour, column), count in pending.hours.items():
                database.execute(
                    f"insert into hours (hour, {column}) values (?, ?) "
                    f"on conflict (hour) do update set {column} = {column} + excluded.{column}",
                    (hour, count),
                )
        with self._lock:
            self._pending.remove(pending)
            self.lost += unfit

    def _prune(self) -> None:
        self._pruned_at = time.monotonic()
        database, oldest = self._database, time.time() - self._keep_seconds
        if database is None or not self.may_prune():
            return
        try:
            with database:
                database.execute("delete from inputs where kept_at < ?", (oldest,))
            database.execute("pragma incremental_vacuum(1000)").fetchall()
        except sqlite3.Error as error:
            logger.warning("old inputs could not be removed: %s", error)

    # The thread

    def _run(self) -> None:
        going = True
        while going:
            try:
                going = self._wake.get(timeout=min(PRUNED_EVERY, RETRIED_EVERY) if self._failing else PRUNED_EVERY)
                time.sleep(GROUP_SECONDS)
                while not self._wake.empty():
                    going = self._wake.get() and going
            except queue.Empty:
                pass
            with self._disk:
                self._write()
                if time.monotonic() - self._pruned_at > PRUNED_EVERY:
                    self._prune()


def _this_hour() -> int:
    return int(time.time()) // HOUR * HOUR


def _insert(database: sqlite3.Connection, each: KeptInput, now: float) -> bool:
    """Whether it could be; one input that can't be stored must not keep others from it."""
    try:
        row = json.dumps(each.row, ensure_ascii=False)
        database.execute(
            "insert or replace into inputs values (?, ?, ?, ?, ?)", (each.id, now, each.time, row, each.predicted)
        )
    except (ValueError, TypeError, OverflowError, RecursionError, sqlite3.ProgrammingError, sqlite3.DataError) as error:
        logger.warning("an input could not be kept: %s", type(error).__name__)  # its message might quote the input
        return False
    return True


def _is_full(error: Exception, path: Path | None) -> bool:
    if isinstance(error, OSError):
        return error.errno in FULL
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it says where
    if code == sqlite3.SQLITE_CANTOPEN and path is not None:
        return shutil.disk_usage(path.parent).free < LEAST_ROOM
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        database.execute("pragma auto_vacuum = incremental")
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")  # each commit outlasts a power cut
        database.execute("pragma secure_delete = on")  # what is deleted is overwritten
        database.executescript(TABLES)
    except sqlite3.Error:
        database.close()
        raise
    return database
