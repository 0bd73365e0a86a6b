"""The state of a history at one commit: the manifest's segments, with the commits of the log played on top.

Readers and the writer play the same records, so they agree. Knows storage rows; nothing of views or of time.
"""

import io
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError
from recollect.history.disk.ahead import JOINED
from recollect.history.disk.format import FileEntry, Manifest, column_types, read_column
from recollect.history.disk.ids import hash_ids, search, sorted_hashes
from recollect.history.disk.log import Change, Rows
from recollect.history.disk.schema import Schema
from recollect.history.disk.segments import Segment, rows_of
from recollect.history.disk.storage import LocalFile, LocalStorage, Storage


class Growing:
    """An array that grows at its end in amortised constant time; what was taken from it before stays as it was."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> None:
        self._array = np.empty((16, *shape), dtype)
        self.count = 0

    def copy(self) -> "Growing":
        other = Growing(self._array.dtype, self._array.shape[1:])
        other.extend(self.taken())
        return other

    def extend(self, more: NDArray[Any]) -> None:
        needed = self.count + len(more)
        wider = more.dtype.kind == "S" and more.dtype.itemsize > self._array.dtype.itemsize
        if needed > len(self._array) or wider:
            dtype = more.dtype if wider else self._array.dtype
            grown = np.empty((max(needed, 2 * len(self._array)), *self._array.shape[1:]), dtype)
            grown[: self.count] = self._array[: self.count]
            self._array = grown
        self._array[self.count : needed] = more
        self.count = needed

    def taken(self, count: int | None = None) -> NDArray[Any]:
        return self._array[: self.count if count is None else count]


class Buffer:
    """Items of the log, in memory until they are sealed into a segment."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.count = 0
        types = column_types(schema, 1) | {"commit": (np.dtype("<i8"), ())}
        self._columns = {name: Growing(dtype, shape) for name, (dtype, shape) in types.items()}
        self._hashes = Growing(np.dtype("<u8"))
        self._payload: list[pa.Table] = []
        self._lock = threading.Lock()

    def copy(self) -> "Buffer":
        """The same items, to be followed by others."""
        other = Buffer(self.schema)
        with self._lock:
            other.count, other._payload, other._hashes = self.count, list(self._payload), self._hashes.copy()
        other._columns = {name: column.copy() for name, column in self._columns.items()}
        return other

    def extend(self, rows: Rows, commit: int) -> None:
        for name, array in rows.columns.items():
            self._columns[name].extend(array)
        self._columns["commit"].extend(np.full(rows.count, commit, np.int64))
        if rows.payload is not None:
            self._payload.append(rows.payload)
        self.count += rows.count

    def column(self, name: str, count: int | None = None) -> NDArray[Any]:
        return self._columns[name].taken(self.count if count is None else count)

    def find(
        self, hashes: NDArray[np.uint64], ids: NDArray[Any], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs (place in `ids`, row of this buffer) with the same id, among the first `count`."""
        held = self._hashed(count)
        if len(hashes) == 1:  # the usual append; not worth sorting for
            rows = np.flatnonzero(held == hashes[0])
            places = np.zeros(len(rows), np.int64)
        else:
            places, rows = search(hashes, *sorted_hashes(held))
        same = self.column("id", count)[rows] == ids[places]
        return places[same], rows[same]

    def _hashed(self, count: int) -> NDArray[np.uint64]:
        """When they are first needed, and then of many at once: thousands of calls for one id each take a while."""
        with self._lock:
            if self._hashes.count < count:
                self._hashes.extend(hash_ids(self.column("id", count)[self._hashes.count :], self.schema.id))
            return self._hashes.taken(count)

    def payload(self, rows: NDArray[np.int64] | None = None) -> pa.Table:
        with self._lock:
            if len(self._payload) > 1:  # so that the next one does not begin from thousands of pieces again
                self._payload = [pa.concat_tables(self._payload).combine_chunks()]
            table = self._payload[0] if self._payload else self.schema.payload.empty_table()
        return table if rows is None else rows_of(table, rows)

    def as_rows(self, count: int) -> Rows:
        columns = {name: column.taken(count) for name, column in self._columns.items() if name != "commit"}
        return Rows(count, columns, self.payload().slice(0, count) if len(self.schema.payload) else None)


@dataclass(frozen=True)
class Part:
    """A run of storage rows that lie in one place."""

    first: int
    rows: int
    source: Segment | Buffer

    def column(self, name: str) -> NDArray[Any]:
        if isinstance(self.source, Buffer):
            return self.source.column(name, self.rows)
        return self.source.column(name)

    def find(self, hashes: NDArray[np.uint64], ids: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if isinstance(self.source, Buffer):
            return self.source.find(hashes, ids, self.rows)
        return self.source.find(hashes, ids)


@dataclass(frozen=True)
class Changes:
    """What has happened to rows since they were written.

    A superseded row is visible no later than `until`. Of an erased row that was taken out, the moments remain at
    which it would have been visible, so that views can still say how much is missing; nothing else does.
    """

    superseded_row: NDArray[np.int64]
    superseded_until: NDArray[Any]
    superseded_commit: NDArray[np.int64]
    erased_row: NDArray[np.int64]
    removed_known_at: NDArray[Any]
    removed_commit: NDArray[np.int64]
    removed_until: NDArray[Any]
    removed_until_commit: NDArray[np.int64]

    @staticmethod
    def none(schema: Schema) -> "Changes":
        return Changes(**{name: np.empty(0, dtype) for name, dtype in _change_types(schema).items()})

    def __bool__(self) -> bool:
        return any(len(getattr(self, each.name)) for each in fields(self))

    def encode(self) -> bytes:
        """An uncompressed .npz: nothing in it is pickled."""
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **{each.name: getattr(self, each.name) for each in fields(self)})
        return data.getvalue()

    @staticmethod
    def decode(data: bytes, schema: Schema) -> "Changes":
        with ZipFile(io.BytesIO(data)) as arrays:
            columns = {name: read_column(arrays.read(f"{name}.npy")) for name in _change_types(schema)}
        return Changes(**{name: columns[name].astype(dtype) for name, dtype in _change_types(schema).items()})


def _change_types(schema: Schema) -> dict[str, np.dtype[Any]]:
    moments = ("superseded_until", "removed_known_at", "removed_until")
    return {each.name: schema.time_type if each.name in moments else np.dtype("<i8") for each in fields(Changes)}


class State:
    """Mutable, for one thread at a time; `parts` and `changes()` hand out what later commits don't touch."""

    def __init__(self, storage: Storage, manifest: Manifest, reuse: Sequence[Part] = ()) -> None:
        self.storage = storage
        self.manifest = manifest
        self.schema = manifest.schema
        self.version = manifest.commit
        self.classes = list(manifest.classes)
        self.num_rows = 0
        self.parts: list[Part] = []
        held = {part.source.entry.name: part.source for part in reuse if isinstance(part.source, Segment)}
        for entry in manifest.segments:
            known = held.get(entry.name)
            same = known is not None and known.entry == entry
            self._add_segment(known if same and known else Segment(storage, entry, self.schema))
        changes = _read_changes(storage, manifest.changes, self.schema)
        self._changes = {name: Growing(dtype) for name, dtype in _change_types(self.schema).items()}
        for name, column in self._changes.items():
            column.extend(getattr(changes, name))
        self._erased: NDArray[np.int64] | None = None
        self._superseded: NDArray[np.int64] | None = None

    def copy(self) -> "State":
        """The same, for another thread: segments are shared, and what later commits add to is not."""
        other = State.__new__(State)
        other.__dict__.update(self.__dict__)
        other.classes = list(self.classes)
        other.parts = [
            replace(part, source=part.source.copy()) if isinstance(part.source, Buffer) else part for part in self.parts
        ]
        other._changes = {name: column.copy() for name, column in self._changes.items()}
        return other

    def _add_segment(self, segment: Segment) -> None:
        self.parts.append(Part(self.num_rows, segment.rows, segment))
        self.num_rows += segment.rows

    def apply(self, change: Change) -> None:
        if change.closing:
            return
        if change.segment is not None:
            self._add_segment(Segment(self.storage, change.segment, self.schema))
        if change.rows is not None:
            last = self.parts[-1].source if self.parts else None
            buffer = last if isinstance(last, Buffer) else Buffer(self.schema)
            first = self.parts.pop().first if buffer is last else self.num_rows
            buffer.extend(change.rows, change.commit)
            self.parts.append(Part(first, buffer.count, buffer))
            self.num_rows += change.rows.count
        if len(change.superseded):
            self._changes["superseded_row"].extend(change.superseded)
            self._changes["superseded_until"].extend(change.until)
            self._changes["superseded_commit"].extend(np.full(len(change.superseded), change.commit, np.int64))
            self._superseded = None
        if len(change.erased):
            self._changes["erased_row"].extend(change.erased)
            self._erased = None
        self.classes += change.classes
        self.version = change.commit

    def changes(self) -> Changes:
        return Changes(**{name: column.taken() for name, column in self._changes.items()})

    def erased(self) -> NDArray[np.int64]:
        """The rows that are erased and still there, in order."""
        if self._erased is None:
            self._erased = np.sort(self._changes["erased_row"].taken())
        return self._erased

    def superseded(self) -> NDArray[np.int64]:
        """In order."""
        if self._superseded is None:
            self._superseded = np.sort(self._changes["superseded_row"].taken())
        return self._superseded

    @property
    def erased_count(self) -> int:
        return self._changes["erased_row"].count

    def buffered(self) -> list[Part]:
        return [part for part in self.parts if isinstance(part.source, Buffer)]


def find_rows(
    parts: Sequence[Part], ids: NDArray[Any], schema: Schema, without: Sequence[NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (place in `ids`, storage row) with the same id, leaving out rows in any of the sorted arrays."""
    hashes = hash_ids(ids, schema.id)
    order = np.argsort(hashes)  # neighbours are then found in the same cache lines
    found = [(places, rows + part.first) for part in parts for places, rows in [part.find(hashes[order], ids[order])]]
    places = order[np.concatenate([each for each, _ in found] or [np.empty(0, np.int64)])]
    rows = np.concatenate([each for _, each in found] or [np.empty(0, np.int64)])
    for unwanted in without:
        stay = ~is_in(rows, unwanted)
        places, rows = places[stay], rows[stay]
    return places, rows


def gather(parts: Sequence[Part], name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """A column at these storage rows, of which there is at least one; for columns that are cheap to open as wholes."""
    owners = np.searchsorted([part.first for part in parts], rows, "right") - 1
    found = [
        parts[owner].column(name)[rows[owners == owner] - parts[owner].first] for owner in np.unique(owners).tolist()
    ]
    order = np.argsort(owners, kind="stable")
    result: NDArray[Any] = np.concatenate(found)
    return result[np.argsort(order, kind="stable")]


def joined_ahead(storage: Storage, parts: Sequence[Part], name: str) -> NDArray[Any] | None:
    """A whole column, if the files of it were read ahead into one array; checksums must have been compared."""
    if not isinstance(storage, LocalStorage) or storage.ahead is None or name != JOINED:
        return None
    segments = [part.source for part in parts if isinstance(part.source, Segment)]
    files = [file for file in (segment.file(name) for segment in segments) if isinstance(file, LocalFile)]
    rows, sample = sum(part.rows for part in parts), parts[0].column(name)[:1]
    memory = storage.ahead.joined([(file.path, file.identity) for file in files], rows * sample.nbytes)
    if memory is None:
        return None
    array = np.frombuffer(memory, sample.dtype, rows * sample.size).reshape(rows, *sample.shape[1:])
    for part in parts:
        if isinstance(part.source, Buffer):  # the log begins behind all that was there before it
            array[part.first : part.first + part.rows] = part.column(name)
    return array


def read_payload(parts: Sequence[Part], rows: NDArray[np.int64], schema: Schema) -> pa.Table:
    """The payload at these storage rows, in their order."""
    owners = np.searchsorted([part.first for part in parts], rows, "right") - 1
    tables = [
        parts[owner].source.payload(rows[owners == owner] - parts[owner].first) for owner in np.unique(owners).tolist()
    ]
    if not tables:
        return schema.payload.empty_table()
    order = np.argsort(owners, kind="stable")
    return rows_of(pa.concat_tables(tables), np.argsort(order, kind="stable"))


def is_in(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which values occur in the sorted array."""
    if len(ordered) == 0:
        return np.zeros(values.shape, bool)
    found = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[found] == values)


def _read_changes(storage: Storage, entry: FileEntry | None, schema: Schema) -> Changes:
    if entry is None:
        return Changes.none(schema)
    data = storage.read(entry.path)
    if len(data) != entry.bytes or f"{zlib.crc32(data):08x}" != entry.crc32:
        raise HistoryDamagedError(f"{entry.path} of history {storage.url} is damaged: restore it from a copy")
    return Changes.decode(data, schema)
