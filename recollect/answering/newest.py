"""What is fitted to the newest items of a history, made anew as it grows: which fit holds for which moment.

A fit follows from the items before a round number of them, so that it is the same whenever it is computed, and those
that were needed last are kept. Knows positions of items, not what is fitted to them.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.history.key_table import TableView
from recollect.records import Visible

RENEWALS = 8
"""How often, while as many items come as a fit looks back on, it is made anew."""

KEPT = 256

Fit = TypeVar("Fit")
Make = Callable[[Int[Tensor, " items"]], Fit | None]
"""Makes a fit of the items at some positions, none maybe, in order of when they were known; None where it can't."""

Say = Callable[[Fit], Float[Tensor, "batch _"]]
"""What a fit makes of some inputs: log-probabilities of the classes it knows."""


@dataclass(frozen=True)
class Untrained:
    """The items of a view that a model was not trained on; `first` is the position of the first of those in order."""

    view: TableView
    first: int

    def before_tail(self) -> Int[Tensor, " late"]:
        """For each item of the tail, how many of those in order come before it: it stands there once it is merged."""
        items, tail = self.view.items, self.view.tail
        start = torch.searchsorted(items.known_at, tail.known_at)
        stop = torch.searchsorted(items.known_at, tail.known_at, right=True)
        for place in (stop > start).nonzero().flatten().tolist():  # known at the same moment: as they were stored
            rows = items.row[start[place] : stop[place]]
            start[place] += torch.searchsorted(rows, tail.row[place])
        return start - self.first

    def between(self, before: Int[Tensor, " late"], start: int, stop: int) -> Int[Tensor, " items"]:
        """Positions of the items between two numbers of them, in order of when they were known, late ones in their
        places (`before` says where); less those that don't count."""
        late = before >= 0
        numbers = before[late] + torch.arange(int(late.sum()))
        skipped, up_to = int((numbers < start).sum()), int((numbers < stop).sum())
        in_order = torch.arange(start - skipped, stop - up_to) + self.first
        of_tail = self.view.tail_start + late.nonzero().flatten()[skipped:up_to]
        positions = torch.cat([in_order, of_tail])
        positions = positions[_counting(self.view, positions)]
        # As they would stand if none had been late: a sum in another order has other bits.
        positions = positions[self.view.at("row", positions).argsort()]
        return positions[self.view.at("known_at", positions).argsort(stable=True)]


class NewestFits(Generic[Fit]):
    """Fits over one history; to be forgotten when positions come to mean other items, or late ones come."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Fit] = OrderedDict()
        self._before: Int[Tensor, " late"] | None = None

    def forget(self) -> None:
        self._kept.clear()
        self._before = None

    def numbers(self, visible: Visible, window: int, untrained: Untrained) -> Int[Tensor, " batch"]:
        """The number of the last fit that an input may see the items of, 0 for none."""
        counts = (visible.stop - untrained.first).clamp(min=0)
        if visible.tail is not None:
            trained = int((self._places(untrained) < 0).sum())
            counts = counts + (visible.tail[1] - untrained.view.tail_start - trained).clamp(min=0)
        return counts.div(window // RENEWALS, rounding_mode="floor")

    def get(self, number: int, window: int, untrained: Untrained, make: Make[Fit]) -> Fit | None:
        """The fit of a number, over the `window` items before it; None where there is nothing to fit, or not yet."""
        if number <= 0:
            return None
        if (window, number) not in self._kept:
            made = make(self.items(number, window, untrained)[1])
            if made is None:
                return None
            self._kept[window, number] = made
        self._kept.move_to_end((window, number))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[window, number]

    def answers(
        self,
        plain: Float[Tensor, "batch classes"],
        visible: Visible,
        window: int,
        untrained: Untrained,
        make: Make[Fit],
        say: Say[Fit],
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        """What the last fit over items that an input may see says of it, and of how many classes; where there is none,
        the plain answer."""
        numbers = self.numbers(visible, window, untrained)
        found, classes = plain, torch.full_like(numbers, plain.shape[1])
        for number in numbers.unique().tolist():
            fit = self.get(number, window, untrained, make)
            if fit is not None:
                # All rows, so that an answer's bits don't depend on whose fit is another.
                said, mine = say(fit), numbers == number
                classes[mine] = said.shape[1]
                width = max(said.shape[1], found.shape[1])
                said, found = (F.pad(each, (0, width - each.shape[1]), value=-torch.inf) for each in (said, found))
                found = torch.where(mine.unsqueeze(1), said, found)
        return found, classes

    def items(self, number: int, window: int, untrained: Untrained) -> tuple[int, Int[Tensor, " items"]]:
        """How many items come before those of a fit, and their positions."""
        stop = number * (window // RENEWALS)
        start = max(0, stop - window)
        return start, untrained.between(self._places(untrained), start, stop)

    def _places(self, untrained: Untrained) -> Int[Tensor, " late"]:
        if self._before is None:
            self._before = untrained.before_tail()
        return self._before


def _counting(view: TableView, positions: Int[Tensor, " items"]) -> Bool[Tensor, " items"]:
    """Items that are not erased, nor had been corrected when the last of them was known."""
    if not len(positions):
        return torch.ones(0, dtype=torch.bool)
    then = view.at("known_at", positions).max()
    return ~(torch.isin(positions, view.gone) | torch.isin(positions, view.superseded[view.until <= then]))
