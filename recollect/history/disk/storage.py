"""Where the files of a history lie: a local directory, or any filesystem that fsspec reaches.

Knows files and bytes; nothing of what they mean. Names are relative to the history and use "/".
"""

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import fsspec
import numpy as np
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError, HistoryError, HistoryLockedError
from recollect.history.disk.ahead import Ahead, checksum, identity

Bytes = bytes | bytearray | memoryview

LOCK = "lock"

# A file up to this size is read at once and held, so that many small segments cost few file descriptors.
HELD_BYTES = 1 << 18

_SYNC_THREADS = 8
_FLUSH_BYTES = 1 << 25


@runtime_checkable  # the shape checks of the tests ask
class StoredFile(Protocol):
    """One immutable file, open for reading."""

    def size(self) -> int: ...

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[Bytes]:
        """The whole file from its beginning."""
        ...

    def crc32(self) -> int:
        """Of the whole file."""
        ...

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        """An array that lies at `offset`; mapped where that is possible."""
        ...


@runtime_checkable
class Storage(Protocol):
    """What a history asks of the place where its files lie."""

    @property
    def url(self) -> str: ...

    @property
    def local(self) -> bool: ...

    def lock(self) -> None:
        """Become the only writer, where that can be had; a crash gives it up."""
        ...

    def unlock(self) -> None: ...

    def exists(self, name: str) -> bool: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, chunks: Iterable[Bytes]) -> None:
        """A new file; not durable before `sync`."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Returns when these files, and the directories that name them, would outlast a power cut."""
        ...

    def replace(self, name: str, data: bytes, old: bytes | None = None, keep_as: str = "") -> None:
        """The old content or the new one, durably, and nothing between them; files made before it come first.

        The old content may be kept under another name. If it is not what is expected, where that can be told, another
        writer is at work: HistoryLockedError.
        """
        ...

    def create(self, name: str, data: Bytes) -> None:
        """Durably; FileExistsError if the name is taken."""
        ...

    def open(self, name: str) -> StoredFile: ...

    def names(self, under: str = "") -> list[str]:
        """Every file there is, or all in one directory."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Files that are already gone are no error."""
        ...


def storage_at(url: str | os.PathLike[str], options: dict[str, Any] | None = None) -> Storage:
    """A path is a local directory; anything with a scheme goes through fsspec, with its options."""
    text = os.fspath(url)
    scheme, found, rest = text.partition("://")
    if not found:
        return LocalStorage(Path(text))
    if scheme in ("file", "local"):
        return LocalStorage(Path(rest))
    try:
        filesystem, root = fsspec.core.url_to_fs(text, **(options or {}))
    except (ImportError, ValueError) as error:
        hint = ': install it with pip install "recollect[s3]"' if scheme in ("s3", "s3a") else ""
        raise HistoryError(f"{text} can't be reached ({error}){hint}") from error
    return RemoteStorage(filesystem, root, text)


def no_history(storage: Storage) -> HistoryError:
    return HistoryError(
        f"there is no history at {storage.url}: create one with HistoryWriter.create, with "
        '"recollect ingest --create" for a model, or with "recollect history append --create"'
    )


def lost_file(storage: Storage, error: FileNotFoundError) -> HistoryDamagedError:
    """What the manifest names and isn't there."""
    name = str(error.filename or error)
    return HistoryDamagedError(f"history {storage.url} names {name}, which is gone: restore it from a copy")


# Local


class LocalFile:
    """Held in memory if small; else a file descriptor, which keeps the bytes although compaction removes the name."""

    def __init__(self, path: Path, ahead: Ahead | None = None) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self.fd)
        found = os.fstat(self.fd)
        self._size, self.identity, self._ahead = found.st_size, identity(found), ahead
        self.held: bytearray | None = None
        self._map: mmap.mmap | None = None
        if self._size <= HELD_BYTES:
            self.held = bytearray(self._size)
            os.preadv(self.fd, [self.held], 0)
            self._close()
            self.fd = -1

    def size(self) -> int:
        return self._size

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[Bytes]:
        if self.held is not None:
            yield self.held
            return
        for start in range(0, self._size, chunk_bytes):
            yield os.pread(self.fd, chunk_bytes, start)

    def crc32(self) -> int:
        if self.held is not None:
            return zlib.crc32(self.held)
        found = None if self._ahead is None else self._ahead.crc32(self.path, self.identity)
        return checksum(self.fd, self._size) if found is None else found

    def mapped(self) -> bytearray | mmap.mmap:
        if self.held is not None:
            return self.held
        if self._map is None:
            # Private: writable for torch's sake, though nobody writes, and never back to the file.
            self._map = mmap.mmap(self.fd, 0, access=mmap.ACCESS_COPY)
        return self._map

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, dtype)
        return np.frombuffer(self.mapped(), dtype, count, offset).reshape(shape)


class LocalStorage:
    """A directory. Durable means: the file and its directory were handed to the disk with fsync."""

    local = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)
        self.ahead: Ahead | None = None
        """What is being read of it already."""
        self._release: Callable[[], object] | None = None

    def path(self, name: str) -> Path:
        return self.root / name

    def lock(self) -> None:
        new = [folder for folder in (self.root, *self.root.parents) if not folder.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in new:
            _sync(folder.parent)
        fd = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise HistoryLockedError(
                f"history {self.url} has a writer already, process {holder}: close that one, or send it the items"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._release = weakref.finalize(self, os.close, fd)  # also for a writer that nobody closes
        _held_locks.add(self)

    def unlock(self) -> None:
        _held_locks.discard(self)
        if self._release is not None:
            self._release()

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def write(self, name: str, chunks: Iterable[Bytes]) -> None:
        path, waiting = self.path(name), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                waiting += len(chunk)
                if waiting >= _FLUSH_BYTES:
                    # Bit by bit: an append that comes meanwhile would have to wait for gigabytes otherwise.
                    file.flush()
                    os.fdatasync(file.fileno())
                    waiting = 0

    def sync(self, names: Iterable[str]) -> None:
        paths = [self.path(name) for name in names]
        # The disk gathers what is asked for at once, so that threads save most of the waiting.
        with ThreadPoolExecutor(_SYNC_THREADS) as pool:
            list(pool.map(_sync, paths))
        # Every directory on the way to the root is named by the one above it, and may be new.
        folders = {self.root}
        for path in paths:
            folders |= {folder for folder in path.parents if self.root in folder.parents}
        for folder in sorted(folders, reverse=True):
            _sync(folder)

    def replace(self, name: str, data: bytes, old: bytes | None = None, keep_as: str = "") -> None:
        path, beside = self.path(name), self.path(f".{name}.tmp")
        if keep_as:
            kept = self.path(f".{keep_as}.tmp")
            kept.unlink(missing_ok=True)
            os.link(path, kept)
            kept.rename(self.path(keep_as))
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)  # what the new content names must not come after it
        beside.rename(path)
        _sync(path.parent)

    def create(self, name: str, data: Bytes) -> None:
        with self.path(name).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync(self.path(name).parent)

    def open(self, name: str) -> LocalFile:
        return LocalFile(self.path(name), self.ahead)

    def names(self, under: str = "") -> list[str]:
        found = []
        for folder, _, files in os.walk(self.root / under):
            found += [str(Path(folder, file).relative_to(self.root)) for file in files]
        return sorted(name for name in found if name != LOCK)

    def remove(self, names: Iterable[str]) -> None:
        paths = [self.path(name) for name in names]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths} - {self.root}:
            with contextlib.suppress(OSError):  # something else is still in it
                folder.rmdir()


_held_locks: "weakref.WeakSet[LocalStorage]" = weakref.WeakSet()


def _leave_locks() -> None:
    """In a forked child: without this a lock would outlive the process that took it."""
    for storage in list(_held_locks):
        storage.unlock()


os.register_at_fork(after_in_child=_leave_locks)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Remote


class RemoteFile:
    """An object, read when it is needed."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self.filesystem = filesystem
        self.path = path
        self._size: int | None = None
        self._held: bytearray | None = None
        self._lock = threading.Lock()

    def size(self) -> int:
        if self._size is None:
            with self._vanishing():
                self._size = int(self.filesystem.size(self.path))
        return self._size

    def whole(self) -> bytearray:
        with self._lock, self._vanishing():
            if self._held is None:
                self._held = bytearray(self.filesystem.cat_file(self.path))
            return self._held

    def chunks(self, chunk_bytes: int = 1 << 24) -> Iterator[Bytes]:
        if self._held is not None:
            yield self._held
            return
        for start in range(0, self.size(), chunk_bytes):
            with self._vanishing():
                chunk = self.filesystem.cat_file(self.path, start=start, end=min(self.size(), start + chunk_bytes))
            yield chunk

    def crc32(self) -> int:
        crc = 0
        for chunk in self.chunks():
            crc = zlib.crc32(chunk, crc)
        return crc

    def ranges(self, starts: list[int], ends: list[int]) -> list[bytes]:
        """Several stretches of the file, read concurrently where the client can."""
        with self._vanishing():
            data: list[Any] = self.filesystem.cat_ranges([self.path] * len(starts), starts, ends, on_error="return")
            for piece in data:  # not every client raises when asked to
                if isinstance(piece, Exception):
                    raise piece
        return data

    def file(self) -> Any:
        """Open for reading, as Python's own files are."""
        with self._vanishing():
            return self.filesystem.open(self.path, "rb")

    @contextlib.contextmanager
    def _vanishing(self) -> Iterator[None]:
        """An object can't be kept open: once it is compacted away, old snapshots lose it."""
        try:
            yield
        except FileNotFoundError as error:
            raise HistoryError(f"{self.path} is gone, perhaps compacted away: refresh the history") from error

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.whole(), dtype, count, offset).reshape(shape)


class RemoteStorage:
    """Objects behind fsspec. A put is durable when it returns; there is no lock: see `create`."""

    local = False

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self.filesystem = filesystem
        self.root = root.rstrip("/")
        self.url = url

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def lock(self) -> None:
        """Object stores have none: two writers are told apart when both want to create the same commit."""

    def unlock(self) -> None:
        pass

    def exists(self, name: str) -> bool:
        self.filesystem.invalidate_cache()
        return bool(self.filesystem.exists(self.path(name)))

    def read_several(self, names: list[str]) -> dict[str, bytes]:
        """Concurrently where the client can; what is not there is left out."""
        found = self.filesystem.cat([self.path(name) for name in names], on_error="return") if names else {}
        result = {}
        for name in names:
            data = found[self.filesystem._strip_protocol(self.path(name))]
            if isinstance(data, bytes):
                result[name] = data
            elif not isinstance(data, FileNotFoundError):
                raise data
        return result

    def read(self, name: str) -> bytes:
        data: bytes = self.filesystem.cat_file(self.path(name))
        return data

    def write(self, name: str, chunks: Iterable[Bytes]) -> None:
        with self.filesystem.open(self.path(name), "wb") as file:
            for chunk in chunks:
                file.write(chunk)

    def sync(self, names: Iterable[str]) -> None:
        """A put that has returned is durable."""

    def replace(self, name: str, data: bytes, old: bytes | None = None, keep_as: str = "") -> None:
        path = self.path(name)
        if old is None:
            self.filesystem.pipe_file(path, data)
            return
        self.filesystem.invalidate_cache()
        tag = self.filesystem.info(path).get("ETag")
        if self.read(name) != old:
            raise self._replaced(name)
        if keep_as:
            self.filesystem.pipe_file(self.path(keep_as), old)
        if tag is None or not hasattr(self.filesystem, "call_s3"):
            self.filesystem.pipe_file(path, data)
            return
        bucket, key, _ = self.filesystem.split_path(path)
        try:
            self.filesystem.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfMatch=tag)
        except OSError as error:
            found = self.read(name)
            if found not in (old, data):  # our own data: the answer to a first attempt was lost
                raise self._replaced(name) from error
            if found == old:
                raise

    def _replaced(self, name: str) -> HistoryLockedError:
        return HistoryLockedError(
            f"another writer has replaced {name} of {self.url}: let one process write, and open the history anew"
        )

    def create(self, name: str, data: Bytes) -> None:
        self.filesystem.pipe_file(self.path(name), bytes(data), mode="create")

    def open(self, name: str) -> RemoteFile:
        return RemoteFile(self.filesystem, self.path(name))

    def names(self, under: str = "") -> list[str]:
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.find(f"{self.root}/{under}".rstrip("/"))
        except FileNotFoundError:
            return []
        start = len(self.filesystem._strip_protocol(self.root)) + 1
        return sorted(path[start:] for path in found)

    def remove(self, names: Iterable[str]) -> None:
        self.filesystem.invalidate_cache()
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.rm_file(self.path(name))
