"""Inputs that were predicted, kept for a while: a label that comes for one later makes it an item.

A database of the service's own, shared by all processes of a machine that serve the same history. Inputs are logged a
few at a time, each group durably within 50 ms. Also counts, hour by hour, how many answers there were, how many labels
came back, and how many of those answers were right.
"""

import json
import logging
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.errors import SettingError

logger = logging.getLogger(__name__)

GROUP_SECONDS = 0.03
PRUNED_EVERY = 600.0
HOUR = 3600
FILE = "inputs.sqlite"

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


class KeptInputs:
    """May be called by any thread. With `keep_seconds` 0 nothing is kept but the counts."""

    def __init__(self, folder: Path, *, keep_seconds: float, queue_length: int = 100_000) -> None:
        self.path = folder / FILE
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()  # of what is pending, held for moments only
        self._pending: dict[str, KeptInput] = {}
        self._writing: dict[str, KeptInput] = {}
        self._counted = 0
        self._queue_length = queue_length
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._pruned_at = -math.inf
        self.lost = 0
        """Inputs that could not be kept, since the disk was full or too many came."""
        self._disk = threading.Lock()  # of the connection; taken before the other
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._database = _open(self.path)
        except (OSError, sqlite3.Error) as error:
            raise SettingError(
                f"{self.path} can't be used ({error}): give another directory with --state, or move the file away"
            ) from error
        self._thread = threading.Thread(target=self._run, name="recollect-inputs", daemon=True)
        self._thread.start()

    def keep(self, inputs: Sequence[KeptInput]) -> None:
        """Soon; nobody has to wait for it."""
        with self._lock:
            self._counted += len(inputs)
            if self._keep_seconds > 0:
                if len(self._pending) + len(inputs) > self._queue_length:
                    self.lost += len(inputs)
                else:
                    self._pending |= {each.id: each for each in inputs}
        self._wake.put(True)

    def find(self, ids: Iterable[str]) -> dict[str, KeptInput]:
        """Those that are kept."""
        ids = list(ids)
        with self._lock:
            pending = self._writing | self._pending
            found = {id: pending[id] for id in ids if id in pending}
        with self._disk:
            for id in ids:
                if id not in found:
                    row = self._database.execute(
                        "select time, row, predicted from inputs where id = ?", (id,)
                    ).fetchone()
                    if row is not None:
                        found[id] = KeptInput(id, row[0], json.loads(row[1]), row[2])
        return found

    def labelled(self, outcomes: Sequence[tuple[str, bool]]) -> None:
        """Labels came, and were stored: these inputs need not be kept any longer. Says of each if it was right."""
        hour = int(time.time()) // HOUR * HOUR
        right = sum(was_right for _, was_right in outcomes)
        with self._disk, self._database:
            self._drop([id for id, _ in outcomes])
            self._count(hour, labelled=len(outcomes), right=right)

    def erase(self, id: str) -> bool:
        """Gone when this returns, from the files too; whether there was one."""
        with self._disk:
            with self._database:
                gone = self._drop([id])
            self._database.execute("pragma wal_checkpoint(truncate)")
        return gone > 0

    def hours(self, since: float = 0.0) -> list[Hour]:
        with self._disk:
            rows = self._database.execute("select * from hours where hour >= ? order by hour", (since,)).fetchall()
        return [Hour(*row) for row in rows]

    def flush(self) -> None:
        """Whatever is pending is on disk when this returns."""
        with self._disk:
            self._write()

    def close(self) -> None:
        self._wake.put(False)
        self._thread.join()
        with self._disk:
            self._write()
            self._database.close()

    # With the disk's lock

    def _drop(self, ids: Sequence[str]) -> int:
        with self._lock:
            pending = sum(self._pending.pop(id, None) is not None for id in ids)
        cursor = self._database.executemany("delete from inputs where id = ?", [(id,) for id in ids])
        return pending + cursor.rowcount

    def _count(self, hour: int, *, predictions: int = 0, labelled: int = 0, right: int = 0) -> None:
        self._database.execute(
            "insert into hours values (?, ?, ?, ?) on conflict (hour) do update set predictions = predictions + "
            "excluded.predictions, labelled = labelled + excluded.labelled, right = right + excluded.right",
            (hour, predictions, labelled, right),
        )

    def _write(self) -> None:
        with self._lock:
            self._writing, self._pending = self._pending, {}
            counted, self._counted = self._counted, 0
        now = time.time()
        rows = [
            (each.id, now, each.time, json.dumps(each.row, ensure_ascii=False), each.predicted)
            for each in self._writing.values()
        ]
        try:
            if rows or counted:
                with self._database:
                    self._database.executemany("insert or replace into inputs values (?, ?, ?, ?, ?)", rows)
                    self._count(int(now) // HOUR * HOUR, predictions=counted)
        except sqlite3.Error as error:
            self.lost += len(rows)
            logger.warning("%d inputs could not be kept: %s", len(rows), error)
        with self._lock:
            self._writing = {}

    def _prune(self) -> None:
        self._pruned_at = time.monotonic()
        oldest = time.time() - self._keep_seconds
        try:
            with self._database:
                self._database.execute("delete from inputs where kept_at < ?", (oldest,))
            self._database.execute("pragma incremental_vacuum(1000)").fetchall()
        except sqlite3.Error as error:
            logger.warning("old inputs could not be removed: %s", error)

    # The thread

    def _run(self) -> None:
        going = True
        while going:
            try:
                going = self._wake.get(timeout=PRUNED_EVERY)
                time.sleep(GROUP_SECONDS)
                while not self._wake.empty():
                    going = self._wake.get() and going
            except queue.Empty:
                pass
            with self._disk:
                self._write()
                if time.monotonic() - self._pruned_at > PRUNED_EVERY:
                    self._prune()


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    database.execute("pragma auto_vacuum = incremental")
    database.execute("pragma journal_mode = wal")
    database.execute("pragma synchronous = full")  # each commit outlasts a power cut
    database.execute("pragma secure_delete = on")  # what is deleted is overwritten
    database.executescript(TABLES)
    return database
