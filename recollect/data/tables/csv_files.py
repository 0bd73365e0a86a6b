"""CSV files, taken apart by polars block by block.

Values come as texts, or as the numbers that are hoped for. Only a block that polars refuses, or whose lines do not add
up, is gone through row by row, to name the broken ones. Knows nothing of what columns mean.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.tables import blocks
from recollect.data.tables.blocks import count_byte, end_of_records, whole_rows
from recollect.data.tables.numbers import as_numbers, says_missing
from recollect.data.tables.raw import BadRow, Columns, RawChunk, check_columns, column_of
from recollect.errors import DataError


@dataclass(frozen=True)
class Csv:
    """Comma, semicolon or tab between values, names in the first row, quotes around values where needed.

    Empty lines are no rows; a row of another number of values than there are names is a broken one.
    """

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def place(self) -> str:
        return f"{self.name}:"

    def header(self, block: bytes) -> tuple[list[str], str, int]:
        """The names, what separates them, and how many bytes the header takes."""
        size = block.find(b"\n") + 1
        while size < len(block) and block.count(b'"', 0, size) % 2:
            size = block.find(b"\n", size) + 1 or len(block)
        try:
            text = block[:size].decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.place}1: the names of the columns are not UTF-8: write the file as UTF-8"
            ) from error
        separator = max(",;\t", key=re.sub(r'"[^"]*"', "", text).count)  # names may hold them, in quotes
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [])
        names = [name.strip() or f"column {index + 1}" for index, name in enumerate(names)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"{self.place}1: two columns are called {twice[0]}: give each a name of its own")
        return names, separator, size

    def first_rows(self, count: int) -> pl.DataFrame:
        frames: list[pl.DataFrame] = []
        broken: list[BadRow] = []
        for chunk in self._chunks({}, blocks.FIRST_BYTES):
            frames.append(chunk.frame)
            broken += chunk.broken
            if sum(frame.height for frame in frames) >= count:
                break
        if any(frame.height for frame in frames):
            return _with_types(pl.concat(frames).head(count))
        if broken:
            raise DataError(f"{broken[0].place}: {broken[0].message}, and no other row can be read: mend the file")
        what = "no row below the names of its columns" if self.path.stat().st_size else "nothing in it"
        raise DataError(f"{self.path} has {what}: give a table with rows")

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        return self._chunks(columns, blocks.BLOCK_BYTES)

    def _chunks(self, columns: Columns, block_bytes: int) -> Iterator[RawChunk]:
        row, line = 0, 1
        names: list[str] = []
        separator = ","
        for block in whole_rows(self.path, block_bytes, end_of_records):
            if not names:
                names, separator, size = self.header(block)
                check_columns(self.name, columns, names)
                line += block.count(b"\n", 0, size)
                block = block[size:]
            lines = count_byte(block, b"\n")
            chunk = self._taken_apart(block, lines, names, columns, separator, row, line)
            yield chunk
            row += len(chunk.rows) + len(chunk.broken)
            line += lines

    def _taken_apart(
        self, block: bytes, lines: int, names: list[str], columns: Columns, separator: str, row: int, line: int
    ) -> RawChunk:
        frame = _read_csv(block, names, columns, separator)
        numbers = None if frame is None else _line_numbers(frame, block, lines, separator, line)
        if frame is None or numbers is None:
            return self._one_by_one(block, names, separator, row, line)
        return RawChunk(frame, row + np.arange(frame.height), numbers, lambda index: frame.row(index, named=True))

    def _one_by_one(self, block: bytes, names: list[str], separator: str, row: int, line: int) -> RawChunk:
        # Bytes that are not UTF-8 become lone surrogates, which are found again below.
        lines = block.decode(errors="surrogateescape").split("\n")[:-1]
        good: list[list[str]] = []
        rows: list[int] = []
        numbers: list[int] = []
        broken: list[BadRow] = []
        for start, fields, fault in _records(lines, separator):
            if not fields and fault is None:
                continue  # an empty line
            if fault is None and len(fields) != len(names):
                fault = f"has {len(fields)} values, there are {len(names)} columns"
            if fault is None and not _is_text("".join(fields)):
                fault = "is not UTF-8"
            if fault is not None:
                found = [field.encode(errors="surrogateescape").decode(errors="replace") for field in fields]
                kind = "wrong number of values" if fault.startswith("has ") else "broken line"
                broken.append(BadRow(row, f"{self.place}{line + start}", kind, f"the row {fault}", found))
            else:
                good.append(fields)
                rows.append(row)
                numbers.append(line + start)
            row += 1
        frame = pl.DataFrame(good, schema=dict.fromkeys(names, pl.String), orient="row")
        raw_row: Callable[[int], Any] = lambda index: frame.row(index, named=True)  # noqa: E731
        return RawChunk(frame, np.array(rows, np.int64), np.array(numbers, np.int64), raw_row, broken)


def _read_csv(block: bytes, names: list[str], columns: Columns, separator: str) -> pl.DataFrame | None:
    """With numbers where they are hoped for, or all of texts; None if polars can't."""
    texts = dict.fromkeys(names, blocks.TYPES["text"])
    numbers = {name: blocks.TYPES["number"] for name, hope in columns.items() if hope == "number"}
    for schema in (texts | numbers, texts):
        try:
            return pl.read_csv(block, has_header=False, schema=schema, separator=separator, raise_if_empty=False)
        except pl.exceptions.PolarsError:
            continue
    return None


def _line_numbers(frame: pl.DataFrame, block: bytes, lines: int, separator: str, line: int) -> NDArray[np.int64] | None:
    """The line each row begins in; None if rows and lines, or values and separators, do not add up.

    polars fills rows that are too short, and takes empty lines for rows: both have nothing in the last column.
    """
    # Numbers hold neither. Under names of our own: theirs might be patterns.
    found = [values for values in frame.get_columns() if values.dtype == pl.String]
    texts = pl.DataFrame([values.alias(f"{index}") for index, values in enumerate(found)])
    inside = None
    if lines != frame.height:
        inside = texts.select(pl.sum_horizontal(pl.all().str.count_matches("\n", literal=True))).to_series()
        if lines != frame.height + inside.sum():
            return None
    if frame.height and frame[:, -1].null_count():
        within = texts.select(pl.all().str.count_matches(separator, literal=True).sum()).sum_horizontal().sum()
        if count_byte(block, separator.encode()) != frame.height * (frame.width - 1) + within:
            return None
        if frame.width == 1:
            return None  # a lone value that is missing is written as an empty line
    numbers = np.arange(line, line + frame.height)
    if inside is not None:
        numbers[1:] += inside.fill_null(0).cast(pl.Int64).to_numpy()[:-1].cumsum()
    return numbers


def _records(lines: list[str], separator: str) -> Iterator[tuple[int, list[str], str | None]]:
    """Index of its first line, values and perhaps the fault of each row.

    Where a quote is never closed, only the line it is in is given up, and reading goes on below it.
    """
    # For the whole process: Python's own limit of 128 KB is too small for texts.
    csv.field_size_limit(max(blocks.LONGEST_ROW, csv.field_size_limit()))
    start = 0
    while start < len(lines):
        reader = csv.reader((line + "\n" for line in lines[start:]), delimiter=separator, strict=True)
        begin = start
        try:
            for fields in reader:
                yield begin, fields, None
                begin = start + reader.line_num
            return
        except csv.Error as error:
            yield begin, [lines[begin]], f"can't be taken apart ({error})"
            start = begin + 1


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_types(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of texts that are all whole numbers, all numbers, or all true or false, as such, if they are there."""

    def typed(values: pl.Series) -> pl.Series:
        values = values.set(values == "", None)
        present = values.drop_nulls()
        if present.is_empty():
            return values
        if present.str.to_lowercase().is_in(["true", "false"]).all():
            return values.str.to_lowercase() == "true"
        numbers = as_numbers(values)
        missing = values.is_null() | says_missing(values)
        return values if (numbers.is_null() & ~missing).any() or missing.all() else numbers

    return pl.DataFrame({name: typed(column_of(frame, name)) for name in frame.columns})
