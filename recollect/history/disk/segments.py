"""Segments: immutable sets of column files, written once, opened for reading, and copied into larger ones.

Knows one segment at a time; nothing of the history it belongs to, nor of what was erased or superseded in it.
"""

import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError
from recollect.history.disk.format import (
    HEAD_BYTES,
    ID_HASH,
    ID_ORDER,
    PAYLOAD,
    FileEntry,
    SegmentEntry,
    checksummed,
    column_head,
    column_types,
    raw,
)
from recollect.history.disk.ids import hash_ids, search, sorted_hashes
from recollect.history.disk.log import Rows
from recollect.history.disk.schema import Schema
from recollect.history.disk.storage import Bytes, LocalFile, RemoteFile, Storage, StoredFile

# Small enough that showing one precedent takes a millisecond, large enough that the list of groups stays short.
PAYLOAD_GROUP_ROWS = 256
_PAYLOAD_ROWS_AT_ONCE = 128 * PAYLOAD_GROUP_ROWS
_CHUNK_BYTES = 1 << 23


def segment_types(schema: Schema, id_width: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of one item in every column file of a segment."""
    return column_types(schema, id_width) | {
        "commit": (np.dtype("<i8"), ()),
        ID_HASH: (np.dtype("<u8"), ()),
        ID_ORDER: (np.dtype("<u4"), ()),
    }


class Segment:
    """An open segment. Everything is opened at once, so that it outlasts its removal by a compaction."""

    def __init__(self, storage: Storage, entry: SegmentEntry, schema: Schema) -> None:
        self.entry = entry
        self.rows = entry.rows
        self.schema = schema
        self._where = storage.url
        self._types = segment_types(schema, entry.id_width)
        self._files = {name: storage.open(file.path) for name, file in entry.files.items()}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._payload: pq.ParquetFile | None = None
        self._lock = threading.Lock()
        if storage.local:
            for name, file in self._files.items():
                if file.size() != entry.files[name].bytes:
                    raise self.damaged(name, f"it has {file.size()} bytes instead of {entry.files[name].bytes}")

    def file(self, name: str) -> StoredFile:
        return self._files[name]

    def damaged(self, name: str, why: str) -> HistoryDamagedError:
        path = self.entry.files[name].path
        return HistoryDamagedError(
            f"segment {self.entry.name} of history {self._where} is damaged: {path}: {why}; restore it from a copy"
        )

    def column(self, name: str) -> NDArray[Any]:
        """A whole column, mapped if it lies on a local disk; compared with its checksum when first asked for.

        Features are not: they are read a few rows at a time, and what that would cost is left to `verify`.
        """
        with self._lock:
            if name not in self._arrays:
                dtype, shape = self._types[name]
                try:
                    array = self._files[name].array(dtype, (self.rows, *shape), HEAD_BYTES)
                except ValueError as error:
                    raise self.damaged(name, str(error)) from error
                if not name.startswith("feature."):
                    self._check(name)
                self._arrays[name] = array
            return self._arrays[name]

    def _check(self, name: str) -> None:
        if f"{self._files[name].crc32():08x}" != self.entry.files[name].crc32:
            raise self._other_checksum(name)

    def chunks(self, name: str) -> Iterator[Bytes]:
        """A whole file in pieces; raises at the end if it isn't the one that was written."""
        expected, crc = self.entry.files[name], 0
        for chunk in self._files[name].chunks(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
            yield chunk
        if f"{crc:08x}" != expected.crc32:
            raise self._other_checksum(name)

    def _other_checksum(self, name: str) -> HistoryDamagedError:
        return self.damaged(name, "it does not match its checksum")

    def find(self, hashes: NDArray[np.uint64], ids: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs (place in `ids`, row of this segment) with the same id."""
        places, rows = search(hashes, self.column(ID_HASH), self.column(ID_ORDER))
        same = self.column("id")[rows] == ids[places]
        return places[same], rows[same]

    def payload(self, rows: NDArray[np.int64]) -> pa.Table:
        """The payload of these rows, in their order; reads only the row groups they lie in."""
        with self._lock:
            if self._payload is None:
                self._payload = self._open_payload()
            size = self._payload.metadata.row_group(0).num_rows  # of all but the last
            groups, group_of = np.unique(rows // size, return_inverse=True)
            try:
                # A few rows of few columns: handing them to a pool takes longer than reading them.
                table = self._payload.read_row_groups(groups.tolist(), use_threads=False)
            except (OSError, pa.ArrowInvalid) as error:
                raise self.damaged(PAYLOAD, str(error)) from error
        return rows_of(as_payload(table, self.schema), group_of * size + rows % size)

    def _open_payload(self) -> pq.ParquetFile:
        file = self._files[PAYLOAD]
        source: Any = pa.BufferReader(pa.py_buffer(file.mapped())) if isinstance(file, LocalFile) else None
        if isinstance(file, RemoteFile):
            source = file.file()
        try:
            return pq.ParquetFile(source, page_checksum_verification=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise self.damaged(PAYLOAD, str(error)) from error

    def payload_batches(self) -> Iterator[pa.RecordBatch]:
        self._check(PAYLOAD)
        yield from self._open_payload().iter_batches(_PAYLOAD_ROWS_AT_ONCE)


_FEW_ROWS = 64


def rows_of(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """These rows of a table, in their order.

    Arrow's own `take` imports its functions and pandas when it is first called, a quarter of a second that the first
    answer of a service would wait for; few rows don't need it.
    """
    if 0 < len(rows) <= _FEW_ROWS and rows.max() < table.num_rows:
        return pa.concat_tables([table.slice(row, 1) for row in rows.tolist()])
    return table.take(rows)


def as_payload(table: pa.Table, schema: Schema) -> pa.Table:
    """Of the schema's types; a cast would import all of Arrow's functions, even where it has nothing to do."""
    return table if table.schema.equals(schema.payload, check_metadata=True) else table.cast(schema.payload)


# Writing


def write_segment(storage: Storage, name: str, schema: Schema, rows: Rows, commits: NDArray[np.int64]) -> SegmentEntry:
    """All files, durable when it returns; they count once a manifest or a record of the log names them."""
    hashes, order = sorted_hashes(hash_ids(rows.columns["id"], schema.id))
    arrays = {**rows.columns, "commit": commits, ID_HASH: hashes, ID_ORDER: order}
    files = {}
    for column, (dtype, shape) in segment_types(schema, rows.id_width).items():
        array = np.ascontiguousarray(arrays[column], dtype)
        assert array.shape == (rows.count, *shape), (column, array.shape)
        head = column_head(dtype, array.shape)
        files[column] = _write(storage, f"segments/{name}/{column}.npy", [head, raw(array)])
    if rows.payload is not None:
        files[PAYLOAD] = _write_payload(storage, name, schema, rows.payload.to_batches())
    storage.sync([file.path for file in files.values()])
    known_at = rows.columns["known_at"]
    return SegmentEntry(
        name,
        rows.count,
        (int(commits.min()), int(commits.max())),
        (known_at.min().item(), known_at.max().item()),
        rows.id_width,
        files,
    )


def copy_segments(
    storage: Storage,
    name: str,
    schema: Schema,
    sources: Sequence[Segment],
    keep: Sequence[NDArray[np.bool_] | None],
    going_on: Callable[[], None] = lambda: None,
) -> SegmentEntry | None:
    """One segment of the rows that are kept, in order; None if none is. Every byte read is checked on the way.

    `going_on` is called now and then, and may raise to stop.
    """
    counts = [each.rows if mask is None else int(mask.sum()) for each, mask in zip(sources, keep, strict=True)]
    total, id_width = sum(counts), max(each.entry.id_width for each in sources)
    if total == 0:
        return None
    files, kept = {}, {}
    for column, (dtype, shape) in segment_types(schema, id_width).items():
        if column in (ID_HASH, ID_ORDER):
            continue
        pieces = _kept_rows(sources, keep, column, dtype, going_on)
        if column in ("id", "commit", "known_at"):
            kept[column] = np.concatenate(list(pieces))
            pieces = iter([kept[column]])
        chunks = (raw(piece) for piece in pieces)
        path = f"segments/{name}/{column}.npy"
        files[column] = _write(storage, path, _headed(column_head(dtype, (total, *shape)), chunks))
    hashes, order = sorted_hashes(hash_ids(kept["id"], schema.id))
    index: dict[str, NDArray[Any]] = {ID_HASH: hashes, ID_ORDER: order}
    for column, array in index.items():
        path = f"segments/{name}/{column}.npy"
        files[column] = _write(storage, path, [column_head(array.dtype, array.shape), raw(array)])
    if len(schema.payload):
        files[PAYLOAD] = _write_payload(storage, name, schema, _kept_payload(sources, keep, going_on))
    storage.sync([file.path for file in files.values()])
    return SegmentEntry(
        name,
        total,
        (int(kept["commit"].min()), int(kept["commit"].max())),
        (kept["known_at"].min().item(), kept["known_at"].max().item()),
        id_width,
        files,
    )


def write_keys(
    storage: Storage, name: str, schema: Schema, segment: Segment, keys: Iterable[NDArray[Any]]
) -> SegmentEntry:
    """The segment with other keys, as the schema has them; its other files stay where they are."""
    head = column_head(schema.key.column.stored, (segment.rows, schema.key.dim))
    file = _write(storage, f"segments/{name}/key.npy", _headed(head, (raw(piece) for piece in keys)))
    storage.sync([file.path])
    return replace(segment.entry, files={**segment.entry.files, "key": file})


def _kept_rows(
    sources: Sequence[Segment],
    keep: Sequence[NDArray[np.bool_] | None],
    column: str,
    dtype: np.dtype[Any],
    going_on: Callable[[], None],
) -> Iterator[NDArray[Any]]:
    for source, mask in zip(sources, keep, strict=True):
        own_dtype, shape = source._types[column]
        row_bytes = own_dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        skip, rest, row = HEAD_BYTES, b"", 0
        for chunk in source.chunks(column):
            going_on()
            data = rest + bytes(memoryview(chunk)[skip:])
            skip = max(0, skip - len(chunk))
            whole = len(data) // row_bytes
            rows = np.frombuffer(data, own_dtype, whole * row_bytes // own_dtype.itemsize).reshape(whole, *shape)
            rest = data[whole * row_bytes :]
            kept = rows if mask is None else rows[mask[row : row + whole]]
            row += whole
            if len(kept):
                yield kept.astype(dtype, copy=False)


def _kept_payload(
    sources: Sequence[Segment], keep: Sequence[NDArray[np.bool_] | None], going_on: Callable[[], None]
) -> Iterator[pa.RecordBatch]:
    for source, mask in zip(sources, keep, strict=True):
        row = 0
        for batch in source.payload_batches():
            going_on()
            yield batch if mask is None else batch.filter(pa.array(mask[row : row + batch.num_rows]))
            row += batch.num_rows


def _headed(head: bytes, chunks: Iterable[Bytes]) -> Iterator[Bytes]:
    yield head
    yield from chunks


def _write(storage: Storage, path: str, chunks: Iterable[Bytes]) -> FileEntry:
    total: list[int] = []
    storage.write(path, checksummed(chunks, total))
    return FileEntry(path, total[0], f"{total[1]:08x}")


def _write_payload(storage: Storage, name: str, schema: Schema, batches: Iterable[pa.RecordBatch]) -> FileEntry:
    """Parquet in row groups of one size, so that a row's group is known without asking."""
    with tempfile.SpooledTemporaryFile(1 << 24) as spool:
        with pq.ParquetWriter(spool, schema.payload, write_page_checksum=True) as writer:
            for table in _regrouped(schema, batches):
                writer.write_table(table, row_group_size=PAYLOAD_GROUP_ROWS)
        spool.seek(0)
        return _write(storage, f"segments/{name}/{PAYLOAD}", _pieces(spool))


def _regrouped(schema: Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting, rows = [], 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _PAYLOAD_ROWS_AT_ONCE:
            table = pa.Table.from_batches(waiting).cast(schema.payload)
            whole = rows - rows % PAYLOAD_GROUP_ROWS
            yield table.slice(0, whole)
            waiting = table.slice(whole).to_batches()
            rows -= whole
    yield pa.Table.from_batches(waiting, None if waiting else schema.payload).cast(schema.payload)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(_CHUNK_BYTES):
        yield piece
