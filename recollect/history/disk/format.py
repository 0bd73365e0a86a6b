"""The written form of a history: the manifest, the entries of segments and files, and the head of a column file.

Knows bytes and their meaning; opens nothing. `docs/history-format.md` says the same in prose.
"""

import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.disk.names import HEAD_BYTES as HEAD_BYTES
from recollect.history.disk.names import MANIFEST as MANIFEST
from recollect.history.disk.names import PREVIOUS as PREVIOUS
from recollect.history.disk.schema import Schema
from recollect.history.disk.storage import Bytes

FORMAT, VERSION = "recollect-history", 1
PAYLOAD = "payload.parquet"
ID_HASH, ID_ORDER = "id_hash", "id_order"

_DESCRIBED = re.compile(rb"'descr': '([<>|=]?[iuf]8)'")


@dataclass(frozen=True)
class FileEntry:
    """A file as the manifest names it."""

    path: str
    bytes: int
    crc32: str


@dataclass(frozen=True)
class SegmentEntry:
    """A segment as the manifest, or a record of the log, names it. `files` go by column."""

    name: str
    rows: int
    commits: tuple[int, int]
    known_at: tuple[int | float, int | float] | None
    id_width: int
    files: dict[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    def to_json(self) -> dict[str, Any]:
        files = {
            name: {"path": file.path, "bytes": file.bytes, "crc32": file.crc32} for name, file in self.files.items()
        }
        return {
            "name": self.name,
            "rows": self.rows,
            "commits": list(self.commits),
            "known_at": None if self.known_at is None else list(self.known_at),
            "id_width": self.id_width,
            "files": files,
        }

    @staticmethod
    def from_json(written: dict[str, Any]) -> "SegmentEntry":
        known_at = written["known_at"]
        return SegmentEntry(
            name=written["name"],
            rows=written["rows"],
            commits=(written["commits"][0], written["commits"][1]),
            known_at=None if known_at is None else (known_at[0], known_at[1]),
            id_width=written["id_width"],
            files={name: FileEntry(**file) for name, file in written["files"].items()},
        )


@dataclass(frozen=True)
class Manifest:
    """A complete state: the segments in order, what has changed in them since, and the log that goes on from there.

    `commit` is the last one in the segments; the log begins with the next. `generation` is raised whenever rows
    are taken out, and only then do the numbers of storage rows change.
    """

    commit: int
    generation: int
    schema: Schema
    classes: tuple[str, ...]
    segments: tuple[SegmentEntry, ...]
    changes: FileEntry | None
    log: int
    named: int  # how many names of segments have been given away

    @property
    def num_rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    def paths(self) -> set[str]:
        """Every file it names, apart from the log."""
        found = {file.path for segment in self.segments for file in segment.files.values()}
        return found | ({self.changes.path} if self.changes else set())

    def encode(self) -> bytes:
        changes = self.changes
        written = {
            "format": FORMAT,
            "version": VERSION,
            "commit": self.commit,
            "generation": self.generation,
            "rows": self.num_rows,
            "log": self.log,
            "named": self.named,
            "schema": self.schema.to_json(),
            "classes": list(self.classes),
            "changes": changes and {"path": changes.path, "bytes": changes.bytes, "crc32": changes.crc32},
        }
        # A line for each member, and for each segment: to be read by people too, and quickly written.
        lines = [f' "{name}": {json.dumps(value)}' for name, value in written.items()]
        segments = ",\n".join(f"  {json.dumps(segment.to_json())}" for segment in self.segments)
        body = ("{\n" + ",\n".join([*lines, f' "segments": [\n{segments}\n ]'])).encode()
        return body + _SIGNATURE % b"%08x" % zlib.crc32(body)

    @staticmethod
    def decode(data: bytes, where: str) -> "Manifest":
        """Raises a named error, never returns what was not written."""
        try:
            written = json.loads(data)
            kind, version = written["format"], written["version"]
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged_manifest(where, f"it is not a manifest ({error})") from error
        if kind != FORMAT or not isinstance(version, int):
            raise _damaged_manifest(where, "it is not a manifest")
        if version != VERSION:
            raise HistoryError(
                f"{where} has format version {version}, this recollect reads {VERSION}: "
                "use the version of recollect that wrote it"
            )
        body, found, _ = data.rpartition(_SIGNATURE.partition(b"%s")[0])
        if not found or data != body + _SIGNATURE % b"%08x" % zlib.crc32(body):
            raise _damaged_manifest(where, "it does not match its checksum")
        changes = written["changes"]
        return Manifest(
            commit=written["commit"],
            generation=written["generation"],
            schema=Schema.from_json(written["schema"]),
            classes=tuple(written["classes"]),
            segments=tuple(SegmentEntry.from_json(segment) for segment in written["segments"]),
            changes=changes and FileEntry(**changes),
            log=written["log"],
            named=written["named"],
        )

    def with_(self, **changes: Any) -> "Manifest":
        return replace(self, **changes)


_SIGNATURE = b',\n "crc32": "%s"\n}\n'


def _damaged_manifest(where: str, why: str) -> HistoryDamagedError:
    return HistoryDamagedError(
        f"{where} is damaged: {why}. To go back to the state before, copy {PREVIOUS} over it: "
        'the logs lead on from there, and what they hold with it, "recollect history verify" tells'
    )


# Column files


def column_types(schema: Schema, id_width: int) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Type and shape of one item in every column that items are given with, in the order of the log."""
    string = np.dtype(f"|S{id_width}")
    types: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "time": (schema.time_type, ()),
        "known_at": (schema.time_type, ()),
        "label": (np.dtype("<i8"), ()),
        "id": (np.dtype("<i8") if schema.id == "integer" else string, ()),
        "key": (schema.key.column.stored, (schema.key.dim,)),
    }
    return types | {f"feature.{column.name}": (column.stored, column.shape) for column in schema.features}


def column_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The head of a .npy file of this type and shape, padded to HEAD_BYTES as the format allows."""
    head = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    text = head.getvalue()
    magic, text = text[:8], text[10:].rstrip(b" \n")
    length = HEAD_BYTES - 10
    return magic + length.to_bytes(2, "little") + text.ljust(length - 1) + b"\n"


def read_column(data: bytes) -> NDArray[Any]:
    """What a .npy file of one dimension holds: `np.load`, safe with threads.

    numpy has its head parsed by `ast`, which in Python 3.11 up to 3.11.7 fails now and then where two threads do so.
    """
    after_head = 10 + int.from_bytes(data[8:10], "little")
    described = _DESCRIBED.search(data, 10, after_head)
    if not data.startswith(b"\x93NUMPY\x01\x00") or described is None:
        raise ValueError("not a .npy file of version 1.0 with numbers of 8 bytes")
    return np.frombuffer(data, np.dtype(described[1].decode()), offset=after_head)


def raw(array: NDArray[Any]) -> memoryview:
    """The bytes of an array, not copied if they lie side by side."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view("u1")
    return memoryview(flat)


def checksummed(chunks: Iterable[Bytes], total: list[int]) -> Iterator[Bytes]:
    """Passes the chunks on; afterwards `total` holds their number of bytes and their crc32."""
    length, crc = 0, 0
    for chunk in chunks:
        length += memoryview(chunk).nbytes
        crc = zlib.crc32(chunk, crc)
        yield chunk
    total[:] = [length, crc]
