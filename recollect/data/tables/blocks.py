"""The bytes of text files, plain or compressed, in blocks that end with a row.

Knows newlines and quotes; what is between them is not its business.
"""

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
TYPES: dict[str, pl.DataType] = {"text": pl.String(), "number": pl.Float64(), "list": pl.List(pl.Float64)}
"""What polars is asked for where something is hoped for."""

EndOf = Callable[[bytes, bytes], int]
"""Where the last whole row of a block ends, given the bytes of an unfinished row before it; 0 if there is no end."""


def open_bytes(path: Path) -> Any:
    """Something to read bytes from."""
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    if compression is None:
        return path.open("rb", buffering=0)
    return pa.input_stream(str(path), compression=compression)


def read_blocks(path: Path, block_bytes: int) -> Iterator[bytes]:
    """The bytes of a file; the next ones are unpacked while these are worked on."""
    with open_bytes(path) as file:
        try:
            yield from ahead(iter(lambda: file.read(block_bytes), b""))
        except OSError as error:
            raise DataError(f"{path} can't be unpacked to its end ({error}): copy it again") from error


def whole_rows(path: Path, block_bytes: int, end_of: EndOf) -> Iterator[bytes]:
    """The bytes of a file in pieces that end where a row does, with a newline."""
    rest = None
    for block in read_blocks(path, block_bytes):
        if rest is None:
            rest, block = b"", block.removeprefix(BYTE_ORDER_MARK)
        end = end_of(rest, block)
        if end:
            yield b"".join((rest, memoryview(block)[:end]))
            rest = block[end:]
        else:
            rest += block
    if rest:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def count_byte(block: bytes, byte: bytes, start: int = 0, stop: int | None = None) -> int:
    """How often a byte occurs; several times as fast as bytes.count where it occurs often."""
    found = np.frombuffer(block, np.uint8)[start:stop]
    pieces = range(0, len(found), CACHED_BYTES)
    return sum(int(np.count_nonzero(found[piece : piece + CACHED_BYTES] == ord(byte))) for piece in pieces)


def end_of_lines(before: bytes, block: bytes) -> int:
    return block.rfind(b"\n") + 1


def end_of_records(before: bytes, block: bytes) -> int:
    """After the last newline outside of quotes: with an even number of quotes before it."""
    end = block.rfind(b"\n") + 1
    quotes = count_byte(before, b'"') + count_byte(block, b'"', 0, end)
    while quotes % 2 and end:
        inside = max(block.rfind(b'"', 0, end), 0)
        earlier = block.rfind(b"\n", 0, inside) + 1
        quotes -= count_byte(block, b'"', earlier, end)
        end = earlier
    return end_of_lines(before, block) if not end and len(before) + len(block) > LONGEST_ROW else end
