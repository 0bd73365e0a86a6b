"""Opening a history for reading, and following what is appended to it.

Readers never wait for the writer, nor it for them.
"""

import os
import threading
import weakref
from typing import Any

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.disk.ahead import Ahead
from recollect.history.disk.fetching import Fetcher
from recollect.history.disk.format import MANIFEST, Manifest
from recollect.history.disk.log import Log, open_log
from recollect.history.disk.state import State
from recollect.history.disk.storage import LocalStorage, Storage, lost_file, no_history, storage_at
from recollect.history.snapshot import Snapshot, View

_TRIES = 20


class History:
    """A reader. `refresh` follows the writer: cheap when nothing is new, and otherwise it reads only what is."""

    def __init__(
        self, storage: Storage, *, threads: int, cache_bytes: int, other: "tuple[State, Log, _Watched] | None" = None
    ) -> None:
        """`other` is where another reader is, to go on from there."""
        self.storage = storage
        self._fetcher = Fetcher(threads, cache_bytes)
        self._lock = threading.Lock()
        self._state: State | None = None
        self._log: Log | None = None
        self._watched: _Watched | None = None
        if other is not None:
            self._state, self._log, self._watched = other
        self.snapshot: Snapshot = self._follow(None) if other is None else Snapshot(other[0], self._fetcher)

    @staticmethod
    def open(
        url: str | os.PathLike[str],
        *,
        threads: int = 8,
        cache_bytes: int = 256 << 20,
        options: dict[str, Any] | None = None,
        ahead: Ahead | None = None,
    ) -> "History":
        """`cache_bytes` bounds what is kept of objects that were read remotely; `options` go to fsspec. What was read
        `ahead` is not read again."""
        storage = storage_at(url, options)
        if isinstance(storage, LocalStorage):
            storage.ahead = ahead
        return History(storage, threads=threads, cache_bytes=cache_bytes)

    def another(self) -> "History":
        """A reader that begins where this one is and then goes its own way, perhaps in another thread: nothing is read
        or checked twice."""
        with self._lock:
            threads, cache_bytes = self._fetcher.threads, self._fetcher.cache.limit
            if self._state is None or self._log is None or self._watched is None:  # the last refresh failed
                return History(self.storage, threads=threads, cache_bytes=cache_bytes)
            at = (self._state.copy(), self._log.copy(), self._watched)
            return History(self.storage, threads=threads, cache_bytes=cache_bytes, other=at)

    def refresh(self) -> Snapshot:
        """The newest state; the same object if nothing is new."""
        with self._lock:
            self.snapshot = self._follow(self.snapshot)
            return self.snapshot

    def as_of(self, t: Any, version: int | None = None) -> View:
        return self.snapshot.as_of(t, version)

    def _follow(self, before: Snapshot | None) -> Snapshot:
        state = self._state
        if before is None or state is None or self._log is None or self._watched is None or self._watched.changed():
            state = self._reload()
        else:
            try:
                changes = self._log.read_new(state.schema)
                for change in changes:
                    state.apply(change)
            except (FileNotFoundError, HistoryDamagedError):
                # Overtaken by a compaction, or by a writer that took back what its disk refused.
                state = self._reload()
            except BaseException:
                # The log was read past what could not be applied: the next call begins anew.
                self._state = None
                raise
            else:
                if not changes:
                    return before
        snapshot = Snapshot(state, self._fetcher)
        if before is not None and len(snapshot.erased) != len(before.erased):
            self._fetcher.cache.clear()
        return snapshot

    def _reload(self) -> State:
        """From the manifest. Files that vanish on the way were compacted, and a newer manifest says into what."""
        missing: FileNotFoundError | None = None
        reuse, self._state = self._state.parts if self._state else (), None
        for _ in range(_TRIES):
            watched = _Watched(self.storage)
            manifest = Manifest.decode(watched.data, f"{self.storage.url}/{MANIFEST}")
            try:
                state = State(self.storage, manifest, reuse)
                log = open_log(self.storage, manifest.log, manifest.commit + 1)
                for change in log.read_new(state.schema):
                    state.apply(change)
            except FileNotFoundError as error:
                if missing is not None and not watched.changed():
                    raise lost_file(self.storage, error) from error
                missing = error
                continue
            if self._log is not None:
                self._log.close()
            self._state, self._log, self._watched = state, log, watched
            return state
        raise HistoryError(f"history {self.storage.url} is compacted faster than it can be opened: try again")


class _Watched:
    """The manifest as read, and whether it has been replaced since."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._fd = -1
        try:
            if isinstance(storage, LocalStorage):
                self._fd = os.open(storage.path(MANIFEST), os.O_RDONLY)
                weakref.finalize(self, os.close, self._fd)
                self.data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
            else:
                self.data = storage.read(MANIFEST)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise no_history(storage) from error

    def changed(self) -> bool:
        if not isinstance(self._storage, LocalStorage):
            return self._storage.read(MANIFEST) != self.data
        # The open file keeps its inode from being given to a newer manifest, so that one number tells them apart.
        return self._storage.path(MANIFEST).stat().st_ino != os.fstat(self._fd).st_ino
