"""Rows whose id a row before them in the same table has."""

import numpy as np

from recollect.data.events import Events
from recollect.data.tables.raw import BadRow, RawChunk, Table


class MetIds:
    """The ids of a table met so far, each with what people are told of its row: its line, or its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def repeats(self, events: Events, chunk: RawChunk, table: Table) -> dict[int, BadRow]:
        """Of the events made of the next chunk, by their place among them, those whose id came before."""
        found = {}
        indices = np.searchsorted(chunk.rows, events.rows)
        for place, (name, number) in enumerate(zip(events.id, chunk.numbers[indices].tolist(), strict=True)):
            first = self._numbers.setdefault(name, number)
            if first != number:
                message = f"its id {name!r} is that of {table.place}{first}, and ids must differ"
                raw, row = chunk.raw_row(int(indices[place])), int(events.rows[place])
                found[place] = BadRow(row, f"{table.place}{number}", "id met before", message, raw)
        return found
