"""Parquet files, unpacked a few row groups at a time; columns keep the types they have.

Where a file has numbers for the texts of a column of names, these are read, and each different text once. Knows nothing
of what columns mean.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import polars as pl
import polars.selectors as cs
import pyarrow as pa
import pyarrow.parquet as pq

from recollect.data.tables.ahead import two_at_a_time
from recollect.data.tables.raw import Columns, NumberedRows, RawChunk, check_columns, check_types, column_of, numbered
from recollect.errors import DataError

FEW_BYTES = 2
"""That a row takes on average where texts are written as numbers. Where it takes more, most texts differ, or the
dictionary was given up for its length, and it is quicker to read texts."""


@dataclass(frozen=True)
class ParquetTable(NumberedRows):
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def first_rows(self, count: int) -> pl.DataFrame:
        with self._errors():
            return self._scan().head(count).collect()

    def chunks(self, columns: Columns, chunk_rows: int) -> Iterator[RawChunk]:
        with self._errors():
            scan = self._scan()
            schema = scan.collect_schema()
            check_columns(self.name, columns, schema.names())
            metadata = pq.read_metadata(self.path)
            groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
            runs = _runs(groups, chunk_rows)
            named: list[str] = []
            if max(groups, default=0) <= 2 * chunk_rows:  # none is cut: Arrow unpacks a whole one
                texts = [name for name, hope in columns.items() if hope == "name" and schema[name] == pl.String]
                named = _numbered_texts(metadata, texts)
            others = [name for name in columns if name not in named]
            selected = scan.select(cs.by_name(*others))  # a name is not a pattern

            def unpacked(run: range) -> RawChunk:
                frames = [selected.slice(run.start, len(run)).collect()] if others else []
                if named:
                    inside = [group for group, stop in enumerate(accumulate(groups)) if run.start < stop <= run.stop]
                    frames.append(self._names(metadata, inside, named))
                found = {name: column_of(frame, name) for frame in frames for name in frame.columns}
                return numbered(pl.DataFrame({name: found[name] for name in columns}), run.start)

            # Only the pages that hold these rows are unpacked, however long their row group is. polars unpacks a group
            # with one thread, so two are unpacked at a time.
            yield from two_at_a_time(unpacked, runs)

    def _names(self, metadata: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]) -> pl.DataFrame:
        """As Categorical; a file of its own for each thread, since one can't be read by two."""
        with pq.ParquetFile(self.path, metadata=metadata, read_dictionary=names) as file:
            table = file.read_row_groups(groups, names, use_threads=False)
        for column in table.columns:
            for piece in column.chunks:
                piece.dictionary.validate(full=True)  # Arrow takes texts for UTF-8, polars relies on it
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _scan(self) -> pl.LazyFrame:
        return pl.scan_parquet(self.path, glob=False, hive_partitioning=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (PermissionError, FileNotFoundError):
            raise  # nothing that a copy would mend
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowException, OSError) as error:
            with suppress(pa.ArrowException, OSError):  # unless this can't be read either
                schema = pq.read_schema(self.path)
                check_types(self.name, schema, schema.names)
            raise DataError(f"{self.path} can't be read as Parquet ({error}): copy it again") from error


def _numbered_texts(metadata: pq.FileMetaData, names: Sequence[str]) -> list[str]:
    """Those of these columns that are written as numbers, with a short dictionary, in every row group."""
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}

    def is_numbered(name: str) -> bool:
        # To Arrow, a name with a point may be one inside of another, and an empty one is none.
        if name not in places or "." in name or not name:
            return False
        parts = (metadata.row_group(group).column(places[name]) for group in range(metadata.num_row_groups))
        return all(
            {"RLE_DICTIONARY", "PLAIN_DICTIONARY"} & set(part.encodings)
            and part.total_uncompressed_size <= FEW_BYTES * part.num_values
            for part in parts
        )

    return [name for name in names if is_numbered(name)]


def _runs(groups: Iterable[int], chunk_rows: int) -> Iterator[range]:
    """The rows to read at once: whole groups, since a page that two chunks share is unpacked twice.

    Groups of up to twice the rows asked for are taken as they are, so memory has an end; longer ones are cut.
    """
    start = stop = 0
    for rows in groups:
        if stop > start and stop + rows - start > chunk_rows:
            yield range(start, stop)
            start = stop
        stop += rows
        while stop - start > 2 * chunk_rows:
            yield range(start, start + chunk_rows)
            start += chunk_rows
    if stop > start:
        yield range(start, stop)
