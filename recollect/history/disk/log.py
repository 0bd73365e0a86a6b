"""The log: one checksummed record per commit, appended to a local file or put as one object each.

A record is complete or does not count. Knows how a commit is written; not what it does to a history.
"""

import copy
import itertools
import json
import logging
import math
import os
import struct
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError, HistoryError, HistoryLockedError
from recollect.history.disk.format import MANIFEST, Manifest, SegmentEntry, column_types, raw
from recollect.history.disk.names import log_name
from recollect.history.disk.schema import Schema
from recollect.history.disk.storage import Bytes, LocalStorage, RemoteStorage, Storage

logger = logging.getLogger(__name__)

MAGIC = b"RHL1"
HEAD = struct.Struct("<4sIQQII")  # magic, crc32 of the body, length of the body, commit, zero, crc32 of these


@dataclass(frozen=True)
class Rows:
    """Items in their stored form: one array per column, and the payload as a table if the history has one."""

    count: int
    columns: dict[str, NDArray[Any]]
    payload: pa.Table | None

    @property
    def id_width(self) -> int:
        return int(self.columns["id"].dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values()) + (self.payload.nbytes if self.payload else 0)

    def take(self, chosen: NDArray[Any]) -> "Rows":
        count = int(chosen.sum()) if chosen.dtype == bool else len(chosen)
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        columns = {name: array[rows] for name, array in self.columns.items()}
        return Rows(count, columns, None if self.payload is None else self.payload.take(rows))


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Change:
    """What one commit does. Rows it names are storage rows of the generation the log belongs to.

    `superseded` rows stop being visible after `until`; `segment` stands for items that were written as one;
    `classes` are names new with this commit; a `closing` record ends the log and changes nothing. If it `continues`,
    the next log begins with the number of the closing record, and goes on with the same numbers of rows and the same
    schema.
    """

    commit: int
    rows: Rows | None = None
    segment: SegmentEntry | None = None
    superseded: NDArray[np.int64] = field(default_factory=_no_rows)
    until: NDArray[Any] = field(default_factory=_no_rows)
    erased: NDArray[np.int64] = field(default_factory=_no_rows)
    classes: tuple[str, ...] = ()
    closing: bool = False
    continues: bool = False


def encode(change: Change, schema: Schema, writer: str) -> list[Bytes]:
    """The record of a commit, in pieces; `writer` tells two writers' otherwise equal records apart."""
    rows = change.rows
    payload: Bytes = b"" if rows is None or rows.payload is None else _table_bytes(rows.payload)
    described = {
        "rows": 0 if rows is None else rows.count,
        "id_width": 0 if rows is None else rows.id_width,
        "payload_bytes": len(payload),
        "superseded": len(change.superseded),
        "erased": len(change.erased),
        "classes": list(change.classes),
        "segment": change.segment and change.segment.to_json(),
        "closing": change.closing,
        "continues": change.continues,
        "writer": writer,
    }
    text = json.dumps(described).encode()
    pieces: list[Bytes] = [len(text).to_bytes(4, "little"), text]
    if rows is not None:
        for name, (dtype, shape) in column_types(schema, rows.id_width).items():
            pieces.append(_raw(rows.columns[name], dtype, (rows.count, *shape)))
        pieces.append(payload)
    pieces.append(_raw(change.superseded, np.dtype("<i8"), (len(change.superseded),)))
    pieces.append(_raw(change.until, schema.time_type, (len(change.superseded),)))
    pieces.append(_raw(change.erased, np.dtype("<i8"), (len(change.erased),)))
    length, crc = 0, 0
    for piece in pieces:
        length, crc = length + len(piece), zlib.crc32(piece, crc)
    head = HEAD.pack(MAGIC, crc, length, change.commit, 0, 0)[:-4]
    return [head + zlib.crc32(head).to_bytes(4, "little"), *pieces]


def _raw(array: NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> memoryview:
    assert array.shape == shape, (array.shape, shape)
    return raw(np.ascontiguousarray(array, dtype))


def _table_bytes(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


Types = dict[int, dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]
"""Of the columns, by the width of ids: worked out once for all records that have it."""


def _decode(commit: int, body: memoryview, schema: Schema, types: Types) -> Change:
    length = int.from_bytes(body[:4], "little")
    described = json.loads(bytes(body[4 : 4 + length]))
    at = 4 + length

    def take(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        nonlocal at
        count = math.prod(shape)
        array = np.frombuffer(body, dtype, count, at)
        at += count * dtype.itemsize
        return array if len(shape) == 1 else array.reshape(shape)

    rows, count = None, described["rows"]
    if count:
        width = described["id_width"]
        if width not in types:
            types[width] = column_types(schema, width)
        columns = {name: take(dtype, (count, *shape)) for name, (dtype, shape) in types[width].items()}
        payload = None
        if described["payload_bytes"]:
            stream = body[at : at + described["payload_bytes"]]
            payload = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
            at += described["payload_bytes"]
        rows = Rows(count, columns, payload)
    superseded = take(np.dtype("<i8"), (described["superseded"],))
    until = take(schema.time_type, (described["superseded"],))
    erased = take(np.dtype("<i8"), (described["erased"],))
    segment = described["segment"]
    return Change(
        commit,
        rows,
        segment and SegmentEntry.from_json(segment),
        superseded,
        until,
        erased,
        tuple(described["classes"]),
        described["closing"],
        described.get("continues", False),  # records of earlier writers don't say
    )


def _head_at(data: memoryview, at: int) -> tuple[int, int, int] | None:
    """crc32 and length of a body, and its commit, if a whole head stands there."""
    head = data[at : at + HEAD.size]
    if len(head) < HEAD.size or bytes(head[:4]) != MAGIC:
        return None
    _, crc, length, commit, _, check = HEAD.unpack(head)
    return (crc, length, commit) if zlib.crc32(head[:-4]) == check else None


def decode_all(data: Bytes, first_commit: int, schema: Schema, where: str) -> tuple[list[Change], int]:
    """The complete records from the beginning, and how many bytes they take.

    What follows them is what a crash left of an append that was never acknowledged. A bad record with a good one
    after it is no such thing: each is on disk before the next is begun.
    """
    view, at = memoryview(data), 0
    changes: list[Change] = []
    types: Types = {}
    while at < len(view):
        head = _head_at(view, at)
        body = view[at + HEAD.size : at + HEAD.size + head[1]] if head else view[:0]
        if head is None or len(body) < head[1] or zlib.crc32(body) != head[0]:
            break
        if head[2] != first_commit + len(changes):
            raise HistoryDamagedError(
                f"{where} has commit {head[2]} where {first_commit + len(changes)} should be: restore it from a copy"
            )
        changes.append(_decode(head[2], body, schema, types))
        at += HEAD.size + head[1]
    if _later_record(view, at):
        raise HistoryDamagedError(
            f"{where} is damaged at byte {at}, in commit {first_commit + len(changes)}, and goes on after it: "
            "restore it from a copy"
        )
    return changes, at


def _later_record(view: memoryview, bad: int) -> bool:
    rest = bytes(view[bad + 1 :])
    found = rest.find(MAGIC)
    while found >= 0:
        if _head_at(view, bad + 1 + found) is not None:
            return True
        found = rest.find(MAGIC, found + 1)
    return False


def may_have_counted(tail: Bytes) -> bool:
    """Whether what follows the complete records is possibly an acknowledged one that was damaged since.

    What is shorter than its head says, or than a head, is what a crash left. Of the rest that can't be said.
    """
    head = _head_at(memoryview(tail), 0)
    return len(tail) >= HEAD.size + (head[1] if head else 0)


# Reading and writing


class LocalLog:
    """One file. Readers keep it open, so that it stays readable when it was sealed and removed meanwhile."""

    def __init__(self, storage: LocalStorage, number: int, next_commit: int, *, writable: bool = False) -> None:
        self.name = log_name(number, local=True)
        self.next_commit = next_commit
        self._storage, self._number = storage, number
        self._path: Path = storage.path(self.name)
        self._fd = os.open(self._path, os.O_RDWR if writable else os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self._fd)
        self._end = 0
        self._broken = False

    def copy(self) -> "LocalLog":
        """For reading on from here by itself, though the file may have been removed."""
        other = LocalLog.__new__(LocalLog)
        other.__dict__.update(self.__dict__)
        other._fd = os.dup(self._fd)
        other.close = weakref.finalize(other, os.close, other._fd)
        return other

    @property
    def size(self) -> int:
        return self._end

    def read_new(self, schema: Schema) -> list[Change]:
        """The commits since the last call; an incomplete one is left for later."""
        size = os.fstat(self._fd).st_size
        if size == self._end:
            return []
        if size < self._end:
            raise HistoryDamagedError(f"{self._path} is shorter than it was: restore it from a copy")
        try:
            changes, used = self._decode(size, schema)
        except HistoryDamagedError:
            # A reader may overtake a writer in the middle of a record; looking again settles it.
            changes, used = self._decode(os.fstat(self._fd).st_size, schema)
        self._end += used
        self.next_commit += len(changes)
        return changes

    def _decode(self, size: int, schema: Schema) -> tuple[list[Change], int]:
        data = os.pread(self._fd, size - self._end, self._end)
        return decode_all(data, self.next_commit, schema, str(self._path))

    def _tail(self) -> bytes:
        return os.pread(self._fd, os.fstat(self._fd).st_size - self._end, self._end)

    def problem(self) -> str:
        """What is wrong behind the last complete record; what a crash leaves is not."""
        tail = self._tail()
        if not may_have_counted(tail):
            return ""
        return (
            f"{self._path} ends in {len(tail)} bytes, from byte {self._end} on, that are no whole record of commit "
            f"{self.next_commit}, which may have been acknowledged: restore it from a copy; the next writer puts them "
            f"aside and goes on without"
        )

    def cut_tail(self) -> None:
        """Take off what follows the last complete record, and keep it elsewhere if it may have been acknowledged."""
        tail = self._tail()
        if may_have_counted(tail):
            aside = _name_aside(self._storage, self._number)
            self._storage.create(aside, tail)
            logger.warning("%s; they are in %s now", self.problem(), aside)
        if tail:
            os.ftruncate(self._fd, self._end)
            os.fsync(self._fd)

    def append(self, record: list[Bytes]) -> None:
        if self._broken:
            raise HistoryError(f"an earlier append to {self._path} failed: open the history anew")
        try:
            length = _write_all(self._fd, record, self._end)
            os.fdatasync(self._fd)
        except BaseException:
            # Not acknowledged, so it must not count; and what the disk holds now only a new start can tell.
            self._broken = True
            os.ftruncate(self._fd, self._end)
            raise
        self._end += length
        self.next_commit += 1


class RemoteLog:
    """One object per commit, created only if absent: of two writers, one is refused."""

    def __init__(self, storage: RemoteStorage, number: int, next_commit: int) -> None:
        self.name = log_name(number, local=False)
        self.next_commit = next_commit
        self.size = 0
        self._storage = storage
        self._broken = False

    def copy(self) -> "RemoteLog":
        return copy.copy(self)

    def _record(self, commit: int) -> str:
        return f"{self.name}/{commit:012d}"

    def read_new(self, schema: Schema) -> list[Change]:
        """The commits since the last call. One request if there are none; if there are, the rest at once."""
        changes = self._read([self._record(self.next_commit)], schema)
        if changes:
            first, listed = self._record(self.next_commit), self._storage.names(self.name)
            changes += self._read([name for name in listed if name >= first], schema)
        return changes

    def _read(self, names: list[str], schema: Schema) -> list[Change]:
        changes: list[Change] = []
        for name, data in self._storage.read_several(names).items():
            found, used = decode_all(data, self.next_commit, schema, f"{self._storage.url}/{name}")
            if len(found) != 1 or used != len(data):
                raise HistoryDamagedError(f"{self._storage.url}/{name} is damaged: restore it from a copy")
            changes += found
            self.size += len(data)
            self.next_commit += 1
        return changes

    def problem(self) -> str:
        """An object is there whole or not at all; one that is damaged was refused when it was read."""
        return ""

    def cut_tail(self) -> None:
        """There is none, as with `problem`."""

    def append(self, record: list[Bytes]) -> None:
        if self._broken:
            raise HistoryError(f"an earlier append to {self._storage.url} failed: open the history anew")
        name, data = self._record(self.next_commit), b"".join(record)
        self._broken = True  # until it is known to count
        try:
            try:
                self._storage.create(name, data)
            except FileExistsError:
                # A client that repeats a put whose answer was lost meets its own record.
                if self._storage.read_several([name]).get(name) != data:
                    raise self._overtaken(f"has made commit {self.next_commit} of {self._storage.url}") from None
            named = self._is_named()
        except HistoryError:
            raise
        except Exception as error:
            raise HistoryError(
                f"putting commit {self.next_commit} of {self._storage.url} failed ({error!r}), and whether it counts "
                "is not known: open the history anew, and append again what is not in it"
            ) from error
        if not named:
            raise self._overtaken(
                f"has gone on with {self._storage.url}, and whether commit {self.next_commit} of this one counts is "
                "not known"
            )
        self._broken = False
        self.size += len(data)
        self.next_commit += 1

    def _overtaken(self, what: str) -> HistoryLockedError:
        return HistoryLockedError(f"another writer {what}: let one process write, and open the history anew")

    def _is_named(self) -> bool:
        """Whether the manifest still names this log. Where another writer has sealed it and gone on, its records may be
        gone, so that a number was free again that had been taken."""
        where = f"{self._storage.url}/{MANIFEST}"
        return log_name(Manifest.decode(self._storage.read(MANIFEST), where).log, local=False) == self.name

    def close(self) -> None:
        pass


WritableLog = LocalLog | RemoteLog


class Log:
    """A reader's log. One that was closed leads on to the next, whether or not a manifest names that yet.

    So nothing is lacking when a damaged manifest was replaced by the one before.
    """

    def __init__(self, storage: Storage, number: int, next_commit: int) -> None:
        self._storage, self._number = storage, number
        self._last = _open(storage, number, next_commit)
        self._closing: Change | None = None

    def copy(self) -> "Log":
        """Another reader's, that goes on from here by itself."""
        other = copy.copy(self)
        other._last = self._last.copy()
        return other

    def read_new(self, schema: Schema) -> list[Change]:
        """The commits since the last call, and closing records."""
        changes = more = self._last.read_new(schema)
        while more and more[-1].closing:
            self._closing = more[-1]
            if not self._closing.continues:
                break
            try:
                following = _open(self._storage, self._number + 1, self._closing.commit)
            except FileNotFoundError:  # not begun yet
                break
            self._last.close()
            self._last, self._number, self._closing = following, self._number + 1, None
            more = following.read_new(schema)
            changes = changes + more
        return changes

    def problem(self) -> str:
        """What is wrong with the end of what was read. Readers go by what is whole."""
        return self._last.problem() or commits_left_behind(self._storage, self._number, self._closing)

    def close(self) -> None:
        self._last.close()


def create_log(storage: Storage, number: int, *, go_on: bool = False) -> None:
    """A local log begins as an empty file: one that is missing was lost, not never begun.

    A log of that number with something in it stays if it is to `go_on`, and is put aside if not.
    """
    if not isinstance(storage, LocalStorage):
        return
    name = log_name(number, local=True)
    if _has_content(storage, number):
        if go_on:
            return
        aside = _name_aside(storage, number)
        storage.path(name).rename(storage.path(aside))
        logger.warning("%s of history %s belongs to no state of it: it is %s now", name, storage.url, aside)
    storage.write(name, [])


def commits_left_behind(storage: Storage, number: int, closing: Change | None) -> str:
    """What is wrong if there is a log after this one that can't be played on top of it."""
    if (closing is not None and closing.continues) or not _has_content(storage, number + 1):
        return ""
    name, following = (log_name(each, local=storage.local) for each in (number, number + 1))
    why = f"{name} has lost its end" if closing is None else "a compaction or a rekey came between"
    return (
        f"{storage.url}/{following} has commits that don't go on from where {name} ends, since {why}: "
        f"restore {MANIFEST} and the logs from a copy, or move {following} elsewhere to go on without its commits"
    )


def _has_content(storage: Storage, number: int) -> bool:
    name = log_name(number, local=storage.local)
    if storage.local:
        return storage.exists(name) and storage.open(name).size() > 0
    return bool(storage.names(name))


def _name_aside(storage: Storage, number: int) -> str:
    """A free name for bytes that no log counts any more, and that nobody but a person removes."""
    names = (f"log-{number:08d}{'' if count == 1 else f'-{count}'}.cut" for count in itertools.count(1))
    return next(name for name in names if not storage.exists(name))


def open_log(storage: Storage, number: int, next_commit: int) -> Log:
    return Log(storage, number, next_commit)


def open_writable(storage: Storage, number: int, next_commit: int) -> WritableLog:
    return _open(storage, number, next_commit, writable=True)


def _open(storage: Storage, number: int, next_commit: int, *, writable: bool = False) -> WritableLog:
    if isinstance(storage, LocalStorage):
        return LocalLog(storage, number, next_commit, writable=writable)
    assert isinstance(storage, RemoteStorage)
    return RemoteLog(storage, number, next_commit)


def log_files(storage: Storage, manifest: Manifest, following: Manifest) -> list[str]:
    """The files of a manifest's log, which was closed when the following manifest was made."""
    name = log_name(manifest.log, local=storage.local)
    if storage.local:
        return [name]
    return [f"{name}/{commit:012d}" for commit in range(manifest.commit + 1, following.commit + 2)]


def _write_all(fd: int, pieces: list[Bytes], at: int) -> int:
    """One call for as many pieces as the system takes at once; returns the number of bytes."""
    views = [memoryview(piece) for piece in pieces if len(piece)]
    start = at
    while views:
        written = os.pwritev(fd, views[:512], at)
        at += written
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views:
            views[0] = views[0][written:]
    return at - start
