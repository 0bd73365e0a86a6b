"""Which rows of the past train, which are looked up, and which rows of any time are asked: the splits of the paper.

Knows rows by their numbers and times, not what is in them. That no input sees a later item is not decided here but by
whoever looks items up: a split only says which items there are.
"""

from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.errors import SettingError

Rows = NDArray[np.int64]
"""Numbers of rows, in order, none twice."""

HELD_OUT = 0.15
"""The newest part of the past: it decides when to stop, and is the first that heads are judged by."""

LEAST_PAST = 20
"""With fewer rows nothing is held out: three rows or less would tell nothing."""


def held_out_from(known: int) -> int:
    """Of so many rows of the past, in order, the first that nothing is fitted to."""
    return int((1 - HELD_OUT) * known) if known >= LEAST_PAST else known


def known_before_the_newest(past: Rows, time: NDArray[Any], known_at: NDArray[Any]) -> tuple[Rows, Rows]:
    """For whatever is fitted to labels before a model is trained: rows to fit it to, in order of when their labels were
    known, and the newest rows of the past, to judge it by. When the first of these happened, all of the others were
    known. `past` is in order of time."""
    split = held_out_from(len(past))
    newest = past[split:]
    if not len(newest):
        return past[np.argsort(known_at[past], kind="stable")], newest
    first = past[known_at[past] < time[newest[0]]]
    return first[np.argsort(known_at[first], kind="stable")], newest


@dataclass(frozen=True)
class SplitSizes:
    """Examples to be predicted, and items to be looked up by them; the paper's numbers."""

    train: int = 100_000
    train_history: int = 1_900_000
    validation: int = 20_000
    validation_history: int = 1_900_000

    def fitted_to(self, rows: int) -> "SplitSizes":
        """The same, or smaller in proportion if there are fewer rows than that."""
        sizes = [getattr(self, field.name) for field in fields(self)]
        if sum(sizes) <= rows:
            return self
        scaled = SplitSizes(*(size * rows // sum(sizes) for size in sizes))
        if min(getattr(scaled, field.name) for field in fields(self)) == 0:
            raise SettingError(f"{rows} rows of the past are too few to be split as {self}: give more rows")
        return scaled


@dataclass(frozen=True)
class Splits:
    """Rows of the past: two sets of examples, and for each a history of its own. No row is in two of them."""

    train: Rows
    train_history: Rows
    validation: Rows
    validation_history: Rows

    def __post_init__(self) -> None:
        for field in fields(self):
            rows = getattr(self, field.name)
            if not bool((rows[1:] > rows[:-1]).all()):
                raise SettingError(f"the rows of {field.name} are not in order, or some come twice: sort them")
        for one, other in combinations(fields(self), 2):
            both = np.intersect1d(getattr(self, one.name), getattr(self, other.name), assume_unique=True)
            if len(both):
                raise SettingError(
                    f"row {both[0]} is in {one.name} and in {other.name}: a row may be an example or an item of one "
                    "history, of training or of validation, not both"
                )

    @property
    def examples(self) -> Rows:
        """All rows whose labels the weights, or the choice among them, have seen as targets."""
        return np.union1d(self.train, self.validation)


def split_past(past: Rows, sizes: SplitSizes, generator: np.random.Generator) -> Splits:
    """Rows of the past drawn at random into the four parts; what the sizes leave over is in none."""
    sizes = sizes.fitted_to(len(past))
    shuffled = generator.permutation(past)
    counts = [getattr(sizes, field.name) for field in fields(sizes)]
    parts = np.split(shuffled, np.cumsum(counts))[:-1]
    return Splits(*(np.sort(part) for part in parts))


def equal_bins(time: NDArray[Any], count: int = 100) -> NDArray[np.int64]:
    """Which of `count` periods of equal length, over the whole span of time, each row falls into."""
    if len(time) == 0:
        return np.empty(0, np.int64)
    first, last = time.min().item(), time.max().item()
    # Whole nanoseconds are counted by Python, whose integers do not overflow.
    steps = [(last - first) * step for step in range(1, count)]
    edges = [first + (step // count if isinstance(step, int) else step / count) for step in steps]
    return np.searchsorted(np.array(edges, time.dtype), time, side="right")


def quarters(time: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which quarter of a year each row falls into, the first one being 0; of times in nanoseconds since 1970."""
    months = time.astype("datetime64[ns]").astype("datetime64[M]").astype(np.int64)
    found: NDArray[np.int64] = months // 3
    return found - found.min() if len(found) else found


def draw_from_bins(bins: NDArray[np.int64], generator: np.random.Generator, *, per_bin: int) -> Rows:
    """Up to `per_bin` rows of every bin, drawn at random."""
    shuffled = generator.permutation(len(bins))
    # Of a shuffled bin the first so many: a stable sort leaves the rows of a bin as they were shuffled.
    shuffled = shuffled[np.argsort(bins[shuffled], kind="stable")]
    _, starts, counts = np.unique(bins[shuffled], return_index=True, return_counts=True)
    place = np.arange(len(shuffled)) - np.repeat(starts, counts)
    return np.sort(shuffled[place < per_bin])
