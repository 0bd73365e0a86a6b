"""Columns of a history read and checked by a thread while the libraries that will use them are still being imported.

Imports the standard library alone, so that it can begin before everything else. It decides nothing: checksums are
compared, and whatever is wrong is told, by those who open the history. What it hasn't begun when somebody needs it, or
could not read, they do themselves.
"""

import json
import mmap
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.history.disk.names import HEAD_BYTES, MANIFEST, log_name

JOINED = "key"
"""The column that is to be one array in memory, by far the largest."""

COLUMNS = (JOINED, "known_at", "time", "label", "id")

# After each, Python's lock is to be had again from a thread that imports.
_CHUNK_BYTES = 1 << 24

_SLACK_BYTES = 1 << 20

Identity = tuple[int, ...]
"""Tells a file from another of the same name, and from itself if it was written to since."""


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def checksum(fd: int, size: int, into: memoryview | None = None) -> int:
    """The crc32 of a file; what follows its head is kept where it is to go, if that is given."""
    crc = at = 0
    buffer = memoryview(bytearray(min(size, _CHUNK_BYTES) if into is None else HEAD_BYTES))
    while at < size:
        chunk = buffer if into is None or at < HEAD_BYTES else into[at - HEAD_BYTES : at - HEAD_BYTES + _CHUNK_BYTES]
        count = os.preadv(fd, [chunk], at)
        if count == 0:  # it is shorter than it was: the checksum is then another
            break
        crc = zlib.crc32(chunk[:count], crc)
        at += count
    return crc


@dataclass(frozen=True)
class _Reading:
    fd: int  # open as long as its identity matters, so that nothing else can get that
    identity: Identity
    crc32: "Future[int]"


class Ahead:
    """Begins when it is made, for a history in a local directory; `close` it when the history is open."""

    def __init__(self, folder: Path) -> None:
        self._readings: dict[Path, _Reading] = {}
        self._joined: list[Path] = []
        self._memory: mmap.mmap | None = None
        self._pool = ThreadPoolExecutor(1, "recollect-ahead")
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._begin(folder, json.loads((folder / MANIFEST).read_bytes()))

    def crc32(self, path: Path, same: Identity) -> int | None:
        """Of a file that was read; one that is being read is waited for."""
        reading = self._readings.get(path)
        if reading is None or reading.identity != same or reading.crc32.cancel():
            return None
        try:
            return reading.crc32.result()
        except (CancelledError, OSError):
            return None

    def joined(self, files: Sequence[tuple[Path, Identity]], size: int) -> mmap.mmap | None:
        """Memory with what follows the heads of these files, one after the other, and room for `size` bytes in all.
        It is the caller's from now on, who has compared the checksums."""
        if self._memory is None or len(self._memory) < size or [path for path, _ in files] != self._joined:
            return None
        if any(self.crc32(path, same) is None for path, same in files):
            return None
        memory, self._memory = self._memory, None
        return memory

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for reading in self._readings.values():
            os.close(reading.fd)
        self._readings, self._memory = {}, None

    def _begin(self, folder: Path, manifest: dict[str, Any]) -> None:
        paths = {
            column: [folder / segment["files"][column]["path"] for segment in manifest["segments"]]
            for column in COLUMNS
        }
        self._joined = paths[JOINED]
        log = (folder / log_name(manifest["log"], local=True)).stat().st_size
        if log or len(self._joined) > 1:  # otherwise nothing is to be joined, and the file can be mapped
            # Keys of the log, which come behind the others, take less than the log.
            room = sum(path.stat().st_size for path in self._joined) + log + _SLACK_BYTES
            self._memory = mmap.mmap(-1, room)
        rest = None if self._memory is None else memoryview(self._memory)
        for column in COLUMNS:
            for path in paths[column]:
                rest = self._read(path, rest if column == JOINED else None)

    def _read(self, path: Path, into: memoryview | None) -> memoryview | None:
        """Returns what is left of the memory."""
        fd = os.open(path, os.O_RDONLY)
        found = os.fstat(fd)
        if hasattr(os, "posix_fadvise"):  # a disk goes on although the thread has to wait for Python's lock
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
        length = found.st_size - HEAD_BYTES
        reading = self._pool.submit(checksum, fd, found.st_size, None if into is None else into[:length])
        self._readings[path] = _Reading(fd, identity(found), reading)
        return None if into is None else into[length:]
