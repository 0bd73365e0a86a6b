"""The bytes of text files, plain or compressed, in blocks that end with a row.

Knows newlines and quotes; what is between them is not its business.
"""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from recollect.data.tables.ahead import ahead
from recollect.errors import DataError

BLOCK_BYTES = 8 * 2**20
FIRST_BYTES = 2**20
LONGEST_ROW = 64 * 2**20  # a row of CSV that is longer has a quote that was never closed
CACHED_BYTES = 2**18  # comparing more of them at once is slower than the memory they lie in
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TYPES: dict[str, pl.DataType] = {
    "text": pl.String(),
    "name": pl.String(),
    "number": pl.Float64(),
    "list": pl.List(pl.Float64),
}
"""What polars is asked for where something is hoped for."""

SKIPPABLE = tuple(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60))
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"} | dict.fromkeys(SKIPPABLE, "zstd")
"""What such files begin with: those of pzstd with a frame to be skipped, which says how long the next one is."""

TOO_LONG = "too much memory"
"""What the unpacker of zstd says where it would have to remember more than 128 MB."""

LONG_REMEDY = "pack it again without --long, or unpack it first with zstd -d --long=31"

EndOf = Callable[[bytes], int]
"""Where the last whole row of a block ends, which begins with a row; 0 if there is no end."""


def open_bytes(path: Path) -> Any:
    """Something to read bytes from, unpacked. What a file is called may not be what it is."""
    file = path.open("rb", buffering=0)
    first = file.read(4)
    compression = next((name for magic, name in COMPRESSED.items() if first.startswith(magic)), None)
    if compression is None:
        file.seek(0)
        return file
    file.close()
    return pa.input_stream(str(path), compression=compression)


def whole_rows(path: Path, block_bytes: int, end_of: EndOf) -> Iterator[bytes]:
    """The bytes of a file in pieces that end where a row does, with a newline; the next one is unpacked meanwhile."""
    return ahead(_whole_rows(path, block_bytes, end_of))


def _whole_rows(path: Path, block_bytes: int, end_of: EndOf) -> Iterator[bytes]:
    rest = b""
    is_first = True
    with open_bytes(path) as file:
        while True:
            try:
                buffer = _with_more(rest, file, block_bytes)
            except OSError as error:
                remedy = LONG_REMEDY if TOO_LONG in f"{error}" else "copy it again"
                raise DataError(f"{path} can't be unpacked to its end ({error}): {remedy}") from error
            found = buffer.getvalue()
            if len(found) == len(rest):
                break
            if is_first and found.startswith(BYTE_ORDER_MARK):
                found = found.removeprefix(BYTE_ORDER_MARK)
                buffer = io.BytesIO(found)
            is_first = False
            end = end_of(found)
            rest = found[end:]
            if end:
                del found  # what somebody else holds would be copied to be cut
                buffer.truncate(end)
                yield buffer.getvalue()
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _with_more(rest: bytes, file: Any, size: int) -> io.BytesIO:
    """What is left of the bytes before, and behind it the next ones of a file.

    They are read to where they stay: the value of a BytesIO is its own memory, where joining would copy all of it.
    """
    buffer = io.BytesIO(bytes(len(rest) + size))
    with buffer.getbuffer() as memory:
        memory[: len(rest)] = rest
        read = file.readinto(memory[len(rest) :])
    buffer.truncate(len(rest) + read)
    return buffer


def count_byte(block: bytes, byte: bytes, start: int = 0, stop: int | None = None) -> int:
    """How often a byte occurs; several times as fast as bytes.count where it occurs often."""
    found = np.frombuffer(block, np.uint8)[start:stop]
    pieces = range(0, len(found), CACHED_BYTES)
    return sum(int(np.count_nonzero(found[piece : piece + CACHED_BYTES] == ord(byte))) for piece in pieces)


def end_of_lines(block: bytes) -> int:
    return block.rfind(b"\n") + 1


def end_of_records(block: bytes) -> int:
    """After the last newline outside of quotes: with an even number of quotes before it."""
    end = block.rfind(b"\n") + 1
    quotes = count_byte(block, b'"', 0, end)
    while quotes % 2 and end:
        inside = max(block.rfind(b'"', 0, end), 0)
        earlier = block.rfind(b"\n", 0, inside) + 1
        quotes -= count_byte(block, b'"', earlier, end)
        end = earlier
    return end_of_lines(block) if not end and len(block) > LONGEST_ROW else end
