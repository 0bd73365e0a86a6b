"""Between which moments the items of a history happened, or their labels became known."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recollect.history.snapshot import Snapshot


@dataclass
class Extent:
    """Between which moments the labels of all items became known, less those erased; or, by `column`, the items
    happened. Of a history that grew only what is new is looked at."""

    column: Literal["known_at", "time"] = "known_at"
    _rows: int = 0
    _same: tuple[int, int] = (0, 0)
    """As long as this generation and number of erased rows are the same, rows stay what they were."""
    _bounds: tuple[float, float] | tuple[()] = ()

    def of(self, snapshot: Snapshot) -> tuple[float, float] | tuple[()]:
        same = (snapshot.generation, len(snapshot.erased))
        if same != self._same or snapshot.num_rows < self._rows:
            self._rows, self._same, self._bounds = 0, same, ()
        bounds = list(self._bounds)
        for first, part in snapshot.pieces(self.column, self._rows):
            erased = snapshot.erased[(snapshot.erased >= first) & (snapshot.erased < first + len(part))]
            left = np.delete(part, erased - first) if len(erased) else part
            bounds += [float(left.min()), float(left.max())] if len(left) else []
        self._rows = snapshot.num_rows
        self._bounds = (min(bounds), max(bounds)) if bounds else ()
        return self._bounds

    def next_whole(self, snapshot: Snapshot) -> float:
        """Where times are plain numbers: the next whole one after all there are."""
        return float(np.floor(max(self.of(snapshot), default=-1.0)) + 1)
