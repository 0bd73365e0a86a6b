"""The commits of a history as its writer makes them: to the log, into segments, and segments into larger ones.

A commit is one record of the log. Now and then the log is sealed: its items become a segment, and a new manifest
names that and an empty log. Knows checked rows; nothing of what users hand in.
"""

import contextlib
import logging
import os
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.compaction import Limits, Merge, merge_run, next_merge, next_rewrite, rewrite, without_rows
from recollect.history.disk.format import MANIFEST, PREVIOUS, FileEntry, Manifest, SegmentEntry
from recollect.history.disk.log import (
    Change,
    Rows,
    WritableLog,
    commits_left_behind,
    create_log,
    encode,
    log_files,
    open_log,
    open_writable,
)
from recollect.history.disk.schema import Schema
from recollect.history.disk.segments import Segment, write_keys, write_segment
from recollect.history.disk.state import Buffer, Changes, Part, State
from recollect.history.disk.storage import Storage, lost_file

# Whoever opens a history plays every record of its log, however few rows it has: a tenth of a millisecond on a local
# disk, and on an object store each is a request.
_LOCAL_COMMITS = 2048
_REMOTE_COMMITS = 256

_NOTHING = np.empty(0, np.int64)

_MADE_HERE = re.compile(
    r"segments/\d{8}-[0-9a-f]+/[^/]+|changes/\d{8}-[0-9a-f]+\.npz|log-\d{8}(\.bin|/\d{12})|\.manifest[a-z.]*\.json\.tmp"
)
"""Names of the files that a history makes for itself."""

logger = logging.getLogger(__name__)


class Journal:
    """The writer's side of a history. Every method may be called by any thread."""

    def __init__(self, storage: Storage, limits: Limits, reuse: Sequence[Part] = ()) -> None:
        """The storage must be locked. Cuts off what a crash left unfinished; what may be more is kept aside."""
        self.storage = storage
        self.limits = limits
        self.mutex = threading.RLock()
        self.state, self._log, self._closing = _load(storage, reuse)
        self._token = secrets.token_hex(4)
        self._named = self.state.manifest.named
        self._before = _previous(storage) or self.state.manifest
        # Held by whoever copies segments: the background thread, or compact().
        self._copying = threading.Lock()
        self._merged: list[Merge] = []
        self._worker: threading.Thread | None = None
        self._stopping = threading.Event()
        self._removing = ThreadPoolExecutor(1, "recollect-remove")
        self._process = os.getpid()
        self._unusable = ""
        while self._closing is not None:
            self._go_on_after(self._closing)
        # Where there is no lock, it may be another writer who is already further.
        if storage.local and (problem := commits_left_behind(storage, self.state.manifest.log, None)):
            raise HistoryDamagedError(problem)
        if storage.local:
            self._remove_unnamed(storage.names())

    @property
    def schema(self) -> Schema:
        return self.state.schema

    def check_usable(self) -> None:
        forked = "it belongs to another process" if os.getpid() != self._process else ""
        if why := self._unusable or forked:
            raise HistoryError(
                f"this writer of history {self.storage.url} can't be used, {why}: open the history again"
            )

    def commit(
        self,
        rows: Rows | None = None,
        superseded: NDArray[np.int64] = _NOTHING,
        until: NDArray[Any] = _NOTHING,
        erased: NDArray[np.int64] = _NOTHING,
        classes: tuple[str, ...] = (),
    ) -> int:
        """Make one commit, durable when this returns; many rows become a segment at once."""
        with self.mutex:
            self.check_usable()
            commit, segment = self.state.version + 1, None
            if rows is not None and self.limits.is_large(rows.count, rows.nbytes):
                commits = np.full(rows.count, commit, np.int64)
                segment = write_segment(self.storage, self._new_name(), self.schema, rows, commits)
                rows = None
            change = Change(commit, rows, segment, superseded, until, erased, classes)
            self._log.append(encode(change, self.schema, self._token))
            self.state.apply(change)
            if self._is_full():
                self._seal_after_commit()
            return commit

    def _is_full(self) -> bool:
        buffered = sum(part.rows for part in self.state.buffered())
        commits = self.state.version - self.state.manifest.commit
        most = _LOCAL_COMMITS if self.storage.local else _REMOTE_COMMITS
        return self.limits.is_full(buffered, self._log.size) or commits >= most

    def _seal_after_commit(self) -> None:
        """The commit is durable, so whatever goes wrong here is not its failure."""
        try:
            self._seal()
            self._start_merging()
        except Exception:
            logger.exception("sealing the log of history %s failed; every item is safe in the log", self.storage.url)

    def _go_on_after(self, closing: Change) -> None:
        """Name the log after a closed one: the writer died before it did, or the manifest that named it was lost."""
        number = self.state.manifest.log
        if problem := commits_left_behind(self.storage, number, closing):
            raise HistoryDamagedError(problem)
        if closing.continues:
            # Whether it can be played is to be known before a manifest names it.
            with contextlib.suppress(FileNotFoundError):
                open_log(self.storage, number + 1, closing.commit).read_new(self.schema)
        self._seal()
        self._closing = _play(self.state, self._log)

    # Sealing

    def seal(self) -> None:
        """Turn the items of the log into segments now."""
        with self.mutex:
            self.check_usable()
            if self.state.version > self.state.manifest.commit or self._merged:
                self._seal()

    def _seal(self) -> None:
        """Every commit of the log goes into segments and a new manifest, along with merges that are ready."""
        entries = []
        for part in self.state.parts:
            if isinstance(part.source, Buffer):
                rows, commits = part.source.as_rows(part.rows), part.source.column("commit", part.rows)
                entries.append(write_segment(self.storage, self._new_name(), self.schema, rows, commits))
            else:
                entries.append(part.source.entry)
        for merge in self._merged:
            entries = merge.applied(entries)
        self._publish(entries, self.state.changes(), self.state.manifest.generation)
        self._merged = []

    def _publish(
        self, entries: Sequence[SegmentEntry], changes: Changes, generation: int, schema: Schema | None = None
    ) -> None:
        """Close the log, then replace the manifest: only who closed a log may name the next."""
        old, found_closed = self.state.manifest, self._closing is not None
        try:
            if not found_closed:
                closing = Change(self.state.version + 1, closing=True, continues=generation == old.generation)
                self._log.append(encode(closing, self.schema, self._token))
                self._closing = closing
            manifest = Manifest(
                commit=self.state.version,
                generation=generation,
                schema=schema or self.schema,
                classes=tuple(self.state.classes),
                segments=tuple(entries),
                changes=self._write_changes(changes),
                log=old.log + 1,
                named=self._named,
            )
            create_log(self.storage, manifest.log, go_on=found_closed)
            self.storage.replace(MANIFEST, manifest.encode(), old=old.encode(), keep_as=PREVIOUS)
            self._log.close()
            self.state = State(self.storage, manifest, self.state.parts)
            self._log = open_writable(self.storage, manifest.log, manifest.commit + 1)
            self._closing = None
        except BaseException:
            self._unusable = "since replacing its manifest failed"
            raise
        if self._before.log < old.log:
            self._retire(self._before, old)
        self._before = old

    def _write_changes(self, changes: Changes) -> FileEntry | None:
        if not changes:
            return None
        data, path = changes.encode(), f"changes/{self._new_name()}.npz"
        self.storage.write(path, [data])
        self.storage.sync([path])
        return FileEntry(path, len(data), f"{zlib.crc32(data):08x}")

    def _retire(self, retired: Manifest, previous: Manifest) -> None:
        """Remove what only a manifest names that is no longer the one before; nobody has to wait for it."""
        files = retired.paths() - previous.paths() - self.state.manifest.paths()
        self._removing.submit(self.storage.remove, [*files, *log_files(self.storage, retired, previous)])

    def _remove_unnamed(self, names: list[str]) -> None:
        """Of these, remove what no manifest, no record of the log and no merge names, of the files that histories make:
        whatever else lies in the directory is somebody's."""
        manifests = (self.state.manifest, self._before)
        named = {MANIFEST, PREVIOUS}.union(*(manifest.paths() for manifest in manifests))
        for entry in self._entries():
            named |= {file.path for file in entry.files.values()}
        logs = tuple(f"log-{manifest.log:08d}" for manifest in manifests)
        ours = [name for name in names if _MADE_HERE.fullmatch(name)]
        self.storage.remove([name for name in ours if name not in named and not name.startswith(logs)])

    def _entries(self) -> list[SegmentEntry]:
        return [part.source.entry for part in self.state.parts if isinstance(part.source, Segment)]

    def _new_name(self) -> str:
        """The token keeps two writers, who should not both be, from writing into the same files."""
        with self.mutex:
            self._named += 1
            return f"{self._named:08d}-{self._token}"

    # Merging

    def compact(self) -> None:
        """Merge segments as far as their size allows, and take out every byte of what was erased."""
        with self._copying:
            self.seal()
            while self._compact_one():
                pass
            with self.mutex:
                self.check_usable()
                names = self.storage.names()
                if not self.storage.local:
                    # Nobody is locked out: a new manifest refuses all that were at work before it, and what those write
                    # that come after it is not among the names.
                    self._seal()
                # The state before names what is gone now, so this one takes its place.
                self.storage.replace(PREVIOUS, self.state.manifest.encode())
                self._before = self.state.manifest
                self._merged = []
                self._remove_unnamed(names)

    def rekey(self, schema: Schema, keys_of: Callable[[Part], Iterable[NDArray[Any]]]) -> None:
        """Give every row the key that `keys_of` has for it, piece by piece of a part; commits wait meanwhile."""
        with self._copying, self.mutex:
            self.seal()
            entries = [
                write_keys(self.storage, self._new_name(), schema, part.source, keys_of(part))
                for part in self.state.parts
                if isinstance(part.source, Segment)
            ]
            self._publish(entries, self.state.changes(), self.state.manifest.generation + 1, schema)

    def _compact_one(self) -> bool:
        """Rewrite one run of segments; commits go on meanwhile."""
        with self.mutex:
            self.check_usable()
            parts, erased, name = list(self.state.parts), self.state.erased(), self._new_name()
        run = next_rewrite(parts, erased, self.limits)
        if run is None:
            return False
        merge, dropped = rewrite(
            self.storage, name, self.schema, parts[run.start : run.stop], erased, self._check_going
        )
        with self.mutex:
            self.check_usable()
            if len(dropped) == 0:
                self._merged.append(merge)
                self._seal()
                return True
            # Rows get new numbers, and the log speaks of them by the old ones.
            self.seal()
            entries = merge.applied(self._entries())
            self._publish(entries, without_rows(self.state, dropped), self.state.manifest.generation + 1)
        return True

    def _start_merging(self) -> None:
        """Merge in the background what is worth merging; the next seal takes the result over."""
        if not self.limits.background or self._merged or (self._worker is not None and self._worker.is_alive()):
            return
        sources = [part.source for part in self.state.parts if isinstance(part.source, Segment)]
        run = next_merge([source.entry for source in sources], self.limits)
        if run is not None:
            arguments = (sources[run.start : run.stop], self.schema, self._new_name())
            self._worker = threading.Thread(target=self._merge, args=arguments, name="recollect-merge", daemon=True)
            self._worker.start()

    def _merge(self, sources: list[Segment], schema: Schema, name: str) -> None:
        with self._copying:
            try:
                # With the schema of that moment: should keys be made anew meanwhile, nothing takes this merge over.
                merge = merge_run(self.storage, name, schema, sources, self._check_going)
                with self.mutex:
                    self._merged.append(merge)
            except Exception:
                if not self._stopping.is_set():
                    logger.exception("merging segments of history %s failed; every item is safe", self.storage.url)

    def _check_going(self) -> None:
        if self._stopping.is_set():
            raise HistoryError(f"the writer of history {self.storage.url} was closed")

    def close(self, *, wait: bool) -> None:
        """Give up the lock. A merge that is under way is finished first, or else abandoned."""
        if os.getpid() != self._process or self._unusable == "since it was closed":
            return
        if not wait:
            self._stopping.set()
        if self._worker is not None:
            self._worker.join()
        with self.mutex:
            try:
                if self._merged and not self._unusable:
                    self._seal()
            finally:
                self._stopping.set()
                self._unusable = "since it was closed"
                self._log.close()
                self._removing.shutdown()
                self.storage.unlock()


def _load(storage: Storage, reuse: Sequence[Part]) -> tuple[State, WritableLog, Change | None]:
    """The state, the log open for writing with nothing incomplete at its end, and the record that closed it, if any."""
    try:
        manifest = Manifest.decode(storage.read(MANIFEST), f"{storage.url}/{MANIFEST}")
        state = State(storage, manifest, reuse)
        log = open_writable(storage, manifest.log, manifest.commit + 1)
        return state, log, _play(state, log)
    except FileNotFoundError as error:
        raise lost_file(storage, error) from error


def _play(state: State, log: WritableLog) -> Change | None:
    """Play a log that was just opened, and take off its incomplete end; the record that closed it, if any."""
    changes = log.read_new(state.schema)
    for change in changes:
        state.apply(change)
    log.cut_tail()
    return changes[-1] if changes and changes[-1].closing else None


def _previous(storage: Storage) -> Manifest | None:
    try:
        return Manifest.decode(storage.read(PREVIOUS), f"{storage.url}/{PREVIOUS}")
    except (FileNotFoundError, HistoryError):
        return None
