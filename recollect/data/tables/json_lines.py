"""Files with a JSON object in each line, taken apart by polars block by block.

Values come as texts, or as the numbers and lists that are hoped for. Only a block that polars refuses is gone through
line by line, to name the broken ones. Knows nothing of what columns mean.
"""

import io
import json
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from recollect.data.tables import blocks
from recollect.data.tables.blocks import count_byte, end_of_lines, whole_rows
from recollect.data.tables.raw import BadRow, Columns, RawChunk, column_of
from recollect.errors import DataError

LOOKED_AT = 100
"""Lines of a block that are looked at for fields nobody knew of: in 1% of the time that reading it takes."""

FEW_LINES = 3000
"""A file that has no more is looked at whole: what takes milliseconds may take some more."""


@dataclass(frozen=True)
class JsonLines:
    """One JSON object in each line; empty lines are no rows. A field that a line lacks is missing there."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def place(self) -> str:
        return f"{self.name}:"

    def first_rows(self, count: int) -> pl.DataFrame:
        lines: list[bytes] = []
        first: bytes | None = None
        for block in whole_rows(self.path, blocks.FIRST_BYTES, end_of_lines):
            filled = [line for line in block.split(b"\n")[: count - len(lines)] if line.strip()]
            first = filled[0] if first is None and filled else first
            lines += [line for line in filled if _fault_of_json(line) is None]
            if len(lines) >= count:
                break
        if not lines:
            fault = None if first is None else _fault_of_json(first)
            which = "" if fault is None else f", the first one {fault[1]}"
            raise DataError(f"{self.path} has no line that is a JSON object{which}: give a table with rows")
        try:
            return pl.read_ndjson(io.BytesIO(b"\n".join(lines)), infer_schema_length=None)
        except pl.exceptions.PolarsError:
            return _typed([json.loads(line) for line in lines])

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        row, line = 0, 1
        known = set(columns)
        for block in whole_rows(self.path, blocks.BLOCK_BYTES, end_of_lines):
            lines = count_byte(block, b"\n")
            chunk = self._taken_apart(block, lines, columns, row, line)
            is_small_file = row == 0 and lines <= FEW_LINES
            unread = _new_fields(block, known, line, 0 if is_small_file else len(block) // LOOKED_AT)
            known |= unread.keys()
            yield replace(chunk, unread=unread)
            row += len(chunk.rows) + len(chunk.broken)
            line += lines

    def _taken_apart(self, block: bytes, num_lines: int, columns: Columns, row: int, line: int) -> RawChunk:
        frame = _read_json(block, columns)
        if frame is not None and frame.height == num_lines:
            rows = np.arange(frame.height)
            split = cache(partial(block.split, b"\n"))  # only if one is asked for, and once for all that are
            return RawChunk(frame, row + rows, line + rows, lambda index: _text(split()[index]))
        lines = block.split(b"\n")
        filled = [index for index, each in enumerate(lines) if each.strip()]
        faults = {index: _fault_of_json(lines[index]) for index in filled} if frame is None else {}
        good = [index for index in filled if faults.get(index) is None]
        if frame is None:
            frame, refused = _read_in_halves([lines[index] for index in good], columns)
            # polars is stricter than Python's json in a few places.
            faults |= {good[index]: ("broken line", f"is not JSON that can be read ({why})") for index, why in refused}
            good = [index for index in good if faults[index] is None]
        row_of = {index: row + order for order, index in enumerate(filled)}
        broken = [
            BadRow(row_of[index], f"{self.place}{line + index}", fault[0], f"the line {fault[1]}", _text(lines[index]))
            for index, fault in faults.items()
            if fault is not None
        ]
        rows = np.array([row_of[index] for index in good], np.int64)
        numbers = line + np.array(good, np.int64)
        return RawChunk(frame, rows, numbers, lambda index: _text(lines[good[index]]), broken)


def _new_fields(block: bytes, known: Set[str], line: int, step: int) -> dict[str, int]:
    """Fields that are not known, each with its line, of one line every so many bytes: all would take too long."""
    found: dict[str, int] = {}
    start = 0
    while start < len(block):
        end = block.find(b"\n", start)
        for name in _fields(block[start:end]):
            if name not in known and name not in found:
                written = block.find(json.dumps(name).encode(), 0, start)  # perhaps lines before have it too
                found[name] = line + count_byte(block, b"\n", 0, start if written < 0 else written)
        start = block.find(b"\n", max(end, start + step)) + 1 or len(block)
    return found


def _fields(line: bytes) -> Iterable[str]:
    try:
        found = json.loads(line)
    except ValueError:
        return ()
    return found if isinstance(found, dict) else ()


def _read_json(block: bytes, columns: Columns) -> pl.DataFrame | None:
    """With columns of the types hoped for, or all of texts; None if polars can't."""
    typed = {name: blocks.TYPES[hope] for name, hope in columns.items()}
    for schema in (typed, dict.fromkeys(columns, pl.String())):
        try:
            return pl.read_ndjson(block, schema=schema)
        except pl.exceptions.PolarsError:
            continue
    return None


def _read_in_halves(lines: list[bytes], columns: Columns) -> tuple[pl.DataFrame, list[tuple[int, str]]]:
    """All lines that polars reads, and those it refuses, with its reason; halving finds a few among many."""
    frame = _read_json(b"\n".join(lines), columns)
    if frame is not None:
        return frame, []
    if len(lines) == 1:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String)), [(0, "a number too large, or not UTF-8")]
    middle = len(lines) // 2
    first, refused = _read_in_halves(lines[:middle], columns)
    second, also = _read_in_halves(lines[middle:], columns)
    return _stacked([first, second]), refused + [(middle + index, why) for index, why in also]


def _stacked(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """One below the other; a column of numbers or lists here and of texts there becomes one of texts."""
    if len({tuple(frame.dtypes) for frame in frames}) > 1:
        frames = [pl.DataFrame({name: _as_texts(column_of(frame, name)) for name in frame.columns}) for frame in frames]
    return pl.concat(frames)


def _as_texts(values: pl.Series) -> pl.Series:
    if not isinstance(values.dtype, pl.List):
        return values.cast(pl.String)
    inner = values.list.eval(pl.element().cast(pl.String).fill_null("null")).list.join(", ")
    return "[" + inner + "]"


def _fault_of_json(line: bytes) -> tuple[str, str] | None:
    """What kind of fault keeps a line from being a JSON object, and how to say so."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        found = json.loads(line.decode(), parse_constant=refuse)
    except UnicodeDecodeError as error:
        return "broken line", f"is not UTF-8 ({error.reason} at byte {error.start})"
    except ValueError as error:
        return "broken line", f"is not JSON ({error})"
    if not isinstance(found, dict):
        return "broken line", f"is not a JSON object but {type(found).__name__}"
    return None


def _typed(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Columns whose values are of several types become texts."""
    columns: dict[str, pl.Series] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pl.Series(name, values, strict=True)
        except (TypeError, pl.exceptions.PolarsError):
            texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
            columns[name] = pl.Series(name, texts, pl.String)
    return pl.DataFrame(columns)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode(errors="replace")
