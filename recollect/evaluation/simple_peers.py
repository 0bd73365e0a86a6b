"""Peers that fit nothing: the majority, the previous label, and a vote of the nearest rows.

A label counts only if it was known strictly before the row that is asked about; the majority is that of the past. Also
what all peers share: how wide answers are, how common classes were, and the scale of columns.
"""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from recollect.errors import SettingError
from recollect.evaluation.metrics import previous_labels, rows_by_bin
from recollect.evaluation.stream import Stream

Answers = Float64[np.ndarray, "asked classes"]
"""Log-probabilities of the asked rows, in their order."""

Progress = Callable[[int, int], None]
"""Told (done, total) now and then."""

BLOCK = 256
"""Rows whose neighbours are looked for together."""


def answer_width(stream: Stream) -> int:
    """Room for every class of the stream: one first met late can be answered by those who have met it by then."""
    return max(stream.num_classes, int(stream.labels.max()) + 1)


def learnable_past(stream: Stream) -> Int[np.ndarray, " past"]:
    """The stream's past, which must not be empty."""
    if not len(stream.past):
        raise SettingError(
            "no label was known before the cutoff, there is nothing to learn from: choose a later cutoff"
        )
    return stream.past


def shares(stream: Stream) -> Float64[np.ndarray, " classes"]:
    """How common each class was in the past."""
    labels = stream.labels[learnable_past(stream)]
    return np.bincount(labels, minlength=answer_width(stream)) / len(labels)


def by_period(stream: Stream, every: int | float | None) -> list[Int[np.ndarray, " _"]]:
    """Places of the asked rows that peers who learn now and then answer with one model: those of a bin, or of each time
    `every` so long since the cutoff."""
    if every is None:
        return rows_by_bin(stream.bins[stream.asked])
    return rows_by_bin(((stream.time[stream.asked] - stream.cutoff) // every).astype(np.int64))


def past_scale(stream: Stream) -> tuple[Float64[np.ndarray, " columns"], Float64[np.ndarray, " columns"]]:
    """Mean and deviation of every column in the past; of a column that never changed, 1."""
    table = stream.table[learnable_past(stream)]
    deviation = table.std(0, dtype=np.float64)
    return table.mean(0, dtype=np.float64), np.where(deviation > 0, deviation, 1)


def majority(stream: Stream) -> Answers:
    """How common each class was in the past, the same for every row."""
    with np.errstate(divide="ignore"):
        return np.tile(np.log(shares(stream)), (len(stream.asked), 1))


def previous_label(stream: Stream) -> Answers:
    """The newest label known before each row, believed as often as that was right in the past."""
    past, asked = stream.past, stream.asked
    others = np.tile(shares(stream) > 0, (len(asked), 1))
    previous = previous_labels(stream.labels, stream.time, stream.known_at)
    told = past[previous[past] >= 0]
    right = int((previous[told] == stream.labels[told]).sum())
    # However often it was wrong, it remains the answer.
    belief = max((right + 1) / (len(told) + 2), 1 / max(2, others[:1].sum()) + 0.01)
    place = np.arange(len(asked)), previous[asked]
    others[place] = False
    rest = others.sum(1, keepdims=True)
    probs = (1 - belief) * others / np.maximum(rest, 1)
    probs[place] = np.where(rest[:, 0] > 0, belief, 1.0)
    with np.errstate(divide="ignore"):
        found: Answers = np.log(probs)
    return found


def recent_neighbours(stream: Stream, *, neighbours: int, recent: int, on_progress: Progress) -> Answers:
    """A vote of the nearest among the newest rows known before each row; of equally near ones the newer votes.

    Columns are standardised by the past. One vote more goes to the classes by their share among the newest, so that
    none of these is impossible.
    """
    width, asked = answer_width(stream), stream.asked
    mean, deviation = past_scale(stream)
    order = np.argsort(stream.known_at, kind="stable")
    stops = np.searchsorted(stream.known_at[order], stream.time[asked], side="left")
    starts = np.maximum(stops - recent, 0)
    found = np.empty((len(asked), width))
    for block in _blocks(stops, reach=recent):
        low, high = int(starts[block][0]), int(stops[block][-1])
        # In double precision: a value that stands for a missing one, such as 1e36, is squared in here.
        candidates = (stream.table[order[low:high]] - mean) / deviation
        inputs = (stream.table[asked[block]] - mean) / deviation
        of_class = (stream.labels[order[low:high], None] == np.arange(width)).astype(np.float32)
        position = np.arange(low, high)
        # Here time could leak: what became known at a row's own time or later stands in this block for others.
        visible = (position >= starts[block][:, None]) & (position < stops[block][:, None])
        # The input's own square is the same for all its candidates and left out.
        distance = (candidates**2).sum(1) - 2 * inputs @ candidates.T
        nearest = _nearest(np.where(visible, distance, np.inf), neighbours) & visible
        votes, common = (chosen.astype(np.float32) @ of_class for chosen in (nearest, visible))
        common /= common.sum(1, keepdims=True)
        with np.errstate(divide="ignore"):
            found[block] = np.log((votes + common) / (votes.sum(1, keepdims=True) + 1))
        on_progress(block.stop, len(asked))
    return found


def _nearest(distance: Float[np.ndarray, "rows candidates"], count: int) -> Bool[np.ndarray, "rows candidates"]:
    """Which candidates are among the `count` nearest; of those tied for the last places, the later."""
    if distance.shape[1] <= count:
        return np.ones(distance.shape, bool)
    last = np.partition(distance, count - 1, axis=1)[:, count - 1 : count]
    nearer, tied = distance < last, distance == last
    places = count - nearer.sum(1, keepdims=True)
    tied &= tied[:, ::-1].cumsum(1, dtype=np.int32)[:, ::-1] <= places
    nearer |= tied
    return nearer


def _blocks(stops: Int[np.ndarray, " asked"], *, reach: int) -> Iterator[slice]:
    """Rows to be taken together: not many, and not with candidates far apart, so that a block stays small."""
    start = 0
    while start < len(stops):
        end = min(start + BLOCK, int(np.searchsorted(stops, stops[start] + reach, side="right")))
        yield slice(start, end)
        start = end
