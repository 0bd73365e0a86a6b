"""Reading arbitrary rows of the columns of a history into tensors.

Pages that are in memory are copied from the map of the file. Others are announced to the kernel all at once, and wide
rows are then read by several threads. Objects are read in blocks, many at a time, through a bounded cache.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError
from recollect.history.disk.format import HEAD_BYTES, raw
from recollect.history.disk.schema import Column
from recollect.history.disk.segments import Segment
from recollect.history.disk.state import Part
from recollect.history.disk.storage import LocalFile, RemoteFile

# Bytes between two wanted rows that are cheaper read than skipped.
_GAP_BYTES = 8192
# Rows from this size on fill pages of their own, and each is read straight to where it belongs.
_WIDE_BYTES = 4096
_SAMPLES = 32
_BLOCK_BYTES = 1 << 16


class Fetcher:
    """Threads and cache shared by the snapshots of one history."""

    def __init__(self, threads: int, cache_bytes: int) -> None:
        self.threads = threads
        self.cache = BlockCache(cache_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def pool(self) -> ThreadPoolExecutor:
        if self._pool is None or os.getpid() != self._process:  # threads don't survive a fork
            self._pool, self._process = ThreadPoolExecutor(self.threads, "recollect-fetch"), os.getpid()
        return self._pool

    def fetch(
        self, parts: Sequence[Part], rows: NDArray[np.int64], columns: dict[str, Column], *, pin: bool
    ) -> dict[str, torch.Tensor]:
        """`{name: whole column[rows]}` for the columns, which go by the names of their files; in their stored types."""
        pin = pin and torch.cuda.is_available()
        shares = list(_shares(parts, rows))
        results, waiting = {}, []
        for name, column in columns.items():
            result = _empty((len(rows), *column.shape), column.stored, pin=pin)
            for share in shares:
                waiting.append(self._begin(share, name, column, result.numpy()))
            results[name] = result
        for finish in waiting:
            finish()
        return results

    def _begin(self, share: "_Share", name: str, column: Column, result: NDArray[Any]) -> Callable[[], None]:
        """Ask for what is not in memory, and return how to finish."""
        source = share.part.source
        file = source.file(name) if isinstance(source, Segment) else None
        if isinstance(file, RemoteFile):
            return lambda: self._read_blocks(file, column, share, result)
        if isinstance(file, LocalFile) and file.held is None and not _resident(file, share.rows, column.row_bytes):
            if column.row_bytes >= _WIDE_BYTES:
                return self._begin_reading(file, column.row_bytes, share, result)
            _announce(file.fd, coalesce(np.unique(share.rows), column.row_bytes))
        return lambda: share.put(share.part.column(name), result)

    def _begin_reading(self, file: LocalFile, size: int, share: "_Share", result: NDArray[Any]) -> Callable[[], None]:
        """Several threads, each first announcing its rows and then reading them to where they belong."""
        order = np.argsort(share.rows, kind="stable")
        places = order if share.places is None else share.places[order]
        offsets, targets = (HEAD_BYTES + share.rows[order] * size).tolist(), (places * size).tolist()
        view, count = raw(result), min(self.threads, len(offsets))

        def read(first: int) -> None:
            for offset in offsets[first::count]:
                os.posix_fadvise(file.fd, offset, size, os.POSIX_FADV_WILLNEED)
            for offset, target in zip(offsets[first::count], targets[first::count], strict=True):
                if os.preadv(file.fd, [view[target : target + size]], offset) != size:
                    _read_fully(file, view[target : target + size], offset)

        waiting = [self.pool().submit(read, first) for first in range(count)]

        def finish() -> None:
            for each in waiting:
                each.result()

        return finish

    def _read_blocks(self, file: RemoteFile, column: Column, share: "_Share", result: NDArray[Any]) -> None:
        block_rows = max(1, _BLOCK_BYTES // column.row_bytes)
        block_bytes = block_rows * column.row_bytes
        blocks, block_of = np.unique(share.rows // block_rows, return_inverse=True)
        end = HEAD_BYTES + share.part.rows * column.row_bytes

        def load(missing: list[int]) -> list[bytes]:
            starts = [HEAD_BYTES + block * block_bytes for block in missing]
            ends = [min(end, start + block_bytes) for start in starts]
            return _read_ranges(file, starts, ends)

        data = self.cache.get(file.path, blocks.tolist(), load)
        # One block after another, so that no second copy of them all is made.
        order = np.argsort(block_of, kind="stable")
        bounds = np.searchsorted(block_of[order], np.arange(len(blocks) + 1))
        for place, block in enumerate(data):
            chosen = order[bounds[place] : bounds[place + 1]]
            array = np.frombuffer(block, column.stored).reshape(-1, *column.shape)
            where = chosen if share.places is None else share.places[chosen]
            result[where] = array[share.rows[chosen] % block_rows]


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any], *, pin: bool) -> torch.Tensor:
    # numpy asks for huge pages where torch does not, which takes a third off the time to fill them.
    empty = torch.from_numpy(np.empty(shape, dtype))
    return torch.empty_like(empty, pin_memory=True) if pin else empty


@dataclass(frozen=True)
class _Share:
    """The wanted rows that lie in one part, and their places in the result; None if they are all of it, in order."""

    part: Part
    rows: NDArray[np.int64]
    places: NDArray[np.int64] | None

    def put(self, column: NDArray[Any], result: NDArray[Any]) -> None:
        if self.places is None:
            # "clip" spares the copy that "raise" makes to keep the result whole; the rows were checked before.
            np.take(column, self.rows, axis=0, out=result, mode="clip")
        else:
            result[self.places] = column[self.rows]


def _shares(parts: Sequence[Part], rows: NDArray[np.int64]) -> list[_Share]:
    if len(rows) == 0:
        return []
    owners = np.searchsorted(np.array([part.first for part in parts]), rows, "right") - 1
    first = int(owners[0])
    if bool((owners == first).all()):
        return [_Share(parts[first], rows - parts[first].first, None)]
    order = np.argsort(owners, kind="stable")
    bounds = np.flatnonzero(np.diff(owners[order])) + 1
    return [
        _Share(part, rows[places] - part.first, places)
        for places in np.split(order, bounds)
        for part in [parts[int(owners[places[0]])]]
    ]


def _resident(file: LocalFile, rows: NDArray[np.int64], row_bytes: int) -> bool:
    """Whether a sample of the rows is in the page cache: a read that may not wait says so."""
    sample = rows[:: max(1, len(rows) // _SAMPLES)]
    byte = [bytearray(1)]
    for row in sample.tolist():
        try:
            os.preadv(file.fd, byte, HEAD_BYTES + row * row_bytes + row_bytes // 2, os.RWF_NOWAIT)
        except OSError:  # not there, or a filesystem that can't tell
            return False
    return True


def _announce(fd: int, ranges: tuple[NDArray[np.int64], NDArray[np.int64]]) -> None:
    """Have the kernel begin to read these ranges of bytes, all of them at once."""
    for start, stop in zip(*(each.tolist() for each in ranges), strict=True):
        os.posix_fadvise(fd, start, stop - start, os.POSIX_FADV_WILLNEED)


def _read_fully(file: LocalFile, target: memoryview, offset: int) -> None:
    while target:
        done = os.preadv(file.fd, [target], offset)
        if done == 0:
            raise HistoryDamagedError(
                f"a column file ends before byte {offset}, though it was whole when it was opened"
            )
        target, offset = target[done:], offset + done


def coalesce(rows: NDArray[np.int64], row_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges of bytes [start, stop) that cover the sorted rows of a column file, small gaps between them included."""
    breaks = np.flatnonzero((np.diff(rows) - 1) * row_bytes > _GAP_BYTES) + 1
    first, last = rows[np.concatenate([[0], breaks])], rows[np.concatenate([breaks, [len(rows)]]) - 1]
    return HEAD_BYTES + first * row_bytes, HEAD_BYTES + (last + 1) * row_bytes


def _read_ranges(file: RemoteFile, starts: list[int], ends: list[int]) -> list[bytes]:
    """Concurrently where the client can; neighbours are asked for as one."""
    joined: list[list[int]] = []
    for start, end in zip(starts, ends, strict=True):
        if joined and joined[-1][1] == start and end - joined[-1][0] <= 16 * _BLOCK_BYTES:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    data = file.ranges([start for start, _ in joined], [end for _, end in joined])
    for (start, end), piece in zip(joined, data, strict=True):
        if len(piece) != end - start:
            raise HistoryDamagedError(f"{file.path} ends before byte {end}: restore it from a copy")
    firsts = [start for start, _ in joined]
    owners = np.searchsorted(firsts, starts, "right") - 1
    return [
        data[owner][start - firsts[owner] : end - firsts[owner]]
        for owner, start, end in zip(owners.tolist(), starts, ends, strict=True)
    ]


class BlockCache:
    """The most recently used blocks of objects, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, blocks: list[int], load: Callable[[list[int]], list[bytes]]) -> list[bytes]:
        found: dict[int, bytes] = {}
        with self._lock:
            for block in blocks:
                if (path, block) in self._blocks:
                    self._blocks.move_to_end((path, block))
                    found[block] = self._blocks[path, block]
        missing = [block for block in blocks if block not in found]
        if missing:
            loaded = dict(zip(missing, load(missing), strict=True))
            found |= loaded
            with self._lock:
                for block, data in loaded.items():
                    self._keep((path, block), data)
        return [found[block] for block in blocks]

    def _keep(self, name: tuple[str, int], data: bytes) -> None:
        self.held += len(data) - len(self._blocks.pop(name, b""))
        self._blocks[name] = data
        while self.held > self.limit:
            self.held -= len(self._blocks.popitem(last=False)[1])

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self.held = 0
