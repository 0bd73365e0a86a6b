"""Which items an input may select: those whose label was known strictly before the moment of the prediction.

Knows times only. Of items in order of `known_at` the answer is one interval of positions; what came out of order, what
was corrected and what was erased are the exceptions.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from recollect.errors import SettingError
from recollect.records import Visible


@dataclass(frozen=True)
class Window:
    """How far back an input sees: the last `items`, or what became known less than `time` ago; None is no limit."""

    items: int | None = None
    time: int | float | None = None


EVERYTHING = Window()


def check_order(known_at: Shaped[Tensor, " items"]) -> None:
    before = (known_at[1:] < known_at[:-1]).nonzero()
    if len(before):
        row = int(before[0]) + 1
        raise SettingError(
            f"items must come in order of known_at, but item {row} has {known_at[row].item()} after "
            f"{known_at[row - 1].item()}: sort them before they are made a history"
        )


def visible_before(
    known_at: Shaped[Tensor, " items"], as_of: Shaped[Tensor, " batch"], window: Window = EVERYTHING
) -> Visible:
    """The interval of items with `known_at < as_of`, strictly: what is stamped with the same moment is invisible.

    `known_at` must be in order; whoever keeps it sees to that once, with `check_order`.
    """
    start, stop = _interval(known_at, as_of.contiguous(), window)
    if window.items is not None:
        start = torch.maximum(start, stop - window.items)
    return Visible(torch.minimum(start, stop), stop)


def _interval(
    known_at: Shaped[Tensor, " items"], as_of: Shaped[Tensor, " batch"], window: Window
) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
    """By time alone."""
    stop = torch.searchsorted(known_at, as_of)
    if window.time is None:
        return torch.zeros_like(stop), stop
    # Nanoseconds stay integers: a float subtracted from them would round to minutes.
    time = window.time if as_of.is_floating_point() else math.ceil(window.time)
    return torch.minimum(torch.searchsorted(known_at, as_of - time, right=True), stop), stop


@dataclass(frozen=True)
class Exceptions:
    """What a list in order of `known_at` can't say.

    The tail's items came out of order; they are in order among themselves, at positions from `tail_start` on, and each
    is younger than the first `tail_after` items of the list. `gone` (sorted) was erased. The items at `superseded`
    were corrected: they are visible up to `until`.
    """

    tail_start: int
    tail_known_at: Shaped[Tensor, " tail"]
    tail_after: Int[Tensor, " tail"]
    gone: Int[Tensor, " gone"]
    superseded: Int[Tensor, " superseded"]
    until: Shaped[Tensor, " superseded"]

    @property
    def none(self) -> bool:
        return not (len(self.tail_after) or len(self.gone) or len(self.superseded))


def visible_with(
    known_at: Shaped[Tensor, " items"],
    exceptions: Exceptions,
    as_of: Shaped[Tensor, " batch"],
    window: Window = EVERYTHING,
) -> Visible:
    """As `visible_before`, with exceptions. A window of items counts what is visible, wherever it is kept."""
    as_of = as_of.contiguous()
    if exceptions.none:
        return visible_before(known_at, as_of, window)
    start, stop = _interval(known_at, as_of, window)
    tail_start, tail_stop = _interval(exceptions.tail_known_at, as_of, window)
    replaced = exceptions.until.unsqueeze(0) < as_of.unsqueeze(1)  # [batch, superseded]
    if window.items is not None:
        seen = _Counter(exceptions, replaced, stop, tail_stop)
        least, least_tail = seen.last(window.items)
        start, tail_start = torch.maximum(start, least), torch.maximum(tail_start, least_tail)
    # What is replaced for every input of the batch is cheaper to leave out for all.
    for_all = replaced.all(0)
    gone = torch.cat([exceptions.gone, exceptions.superseded[for_all]]).unique()
    some = ~for_all & replaced.any(0)
    hidden = exceptions.superseded[some].masked_fill(~replaced[:, some], -1)
    offset = exceptions.tail_start
    tail = (torch.minimum(tail_start, tail_stop) + offset, tail_stop + offset)
    return Visible(
        torch.minimum(start, stop),
        stop,
        tail if len(exceptions.tail_after) else None,
        hidden if hidden.shape[1] else None,
        gone if len(gone) else None,
    )


@dataclass(frozen=True)
class _Counter:
    """Counts what each input sees of list and tail, from the newest backwards."""

    exceptions: Exceptions
    replaced: Shaped[Tensor, "batch superseded"]
    stop: Int[Tensor, " batch"]
    tail_stop: Int[Tensor, " batch"]

    def last(self, items: int) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
        """Where the last `items` visible ones begin, in the list and in the tail."""
        low, high = torch.zeros_like(self.stop), self.stop.clone()
        # The first position of the list from which on at most `items` are visible, younger ones of the tail included.
        while bool((low < high).any()):
            middle = (low + high) // 2
            fits = self._count(middle, self._tail_from(middle)) <= items
            high = torch.where(fits, middle, high)
            low = torch.where(fits, low, torch.minimum(middle + 1, high))
        # Of the tail's items right before that position, as many of the newest as still fit.
        tail_start = self._tail_from(low)
        while bool((more := (tail_start > 0) & (self._count(low, tail_start - 1) <= items)).any()):
            tail_start = tail_start - more.long()
        return low, tail_start

    def _tail_from(self, position: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The first item of the tail that is younger than the item at a position of the list."""
        return torch.minimum(torch.searchsorted(self.exceptions.tail_after, position, right=True), self.tail_stop)

    def _count(self, start: Int[Tensor, " batch"], tail_start: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        offset = self.exceptions.tail_start
        within = [(start, self.stop), (tail_start + offset, self.tail_stop + offset)]
        count = torch.zeros_like(start)
        for first, last in within:
            gone = torch.searchsorted(self.exceptions.gone, torch.stack([first, last]))
            there = (self.exceptions.superseded >= first.unsqueeze(1)) & (
                self.exceptions.superseded < last.unsqueeze(1)
            )
            # What was corrected and then erased is gone already.
            erased = torch.isin(self.exceptions.superseded, self.exceptions.gone)
            count += last - first - (gone[1] - gone[0]) - (there & self.replaced & ~erased).sum(1)
        return count


def without(visible: Visible, excluded: Int[Tensor, "batch excluded"]) -> Visible:
    """The same, less some positions for each input (-1 is none). A window counts them all the same."""
    hidden = excluded if visible.hidden is None else torch.cat([visible.hidden, excluded], dim=1)
    return replace(visible, hidden=hidden)
