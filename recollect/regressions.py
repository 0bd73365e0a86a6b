"""Regressions over the newest items of a history, fitted anew as it grows: which one holds for which moment.

A fit follows from the items before a round number of them, so that it is the same whenever it is computed, and those
that were needed last are kept. Nothing of the model moves.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.history.key_table import TableView
from recollect.model.regression import Regression, regress
from recollect.records import Visible

RENEWALS = 8
"""How often, while as many items come as a fit looks back on, it is made anew."""

MOST_CLASSES = 100
"""With more, a fit would take longer than the answers it is for."""

KEPT = 256


@dataclass(frozen=True)
class Untrained:
    """The items of a view that a model was not trained on, with what it says of each without context, by stored row.
    `first` is the position of the first of those in order."""

    view: TableView
    plain: Float[Tensor, "rows classes"]
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


class Regressions:
    """Fits over one history; to be forgotten when positions come to mean other items, or late ones come."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Regression | None] = OrderedDict()
        self._before: Int[Tensor, " late"] | None = None

    def forget(self) -> None:
        self._kept.clear()
        self._before = None

    def answers(
        self,
        keys: Float[Tensor, "batch key_dim"],
        plain: Float[Tensor, "batch classes"],
        visible: Visible,
        window: int,
        untrained: Untrained,
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        """What the last fit over items that an input may see makes of its plain answer; a fit looks back on `window`
        items, and on none that were trained on. Also, for each input, of how many classes its fit speaks: those first
        met after training are among them."""
        if self._before is None:
            self._before = untrained.before_tail()
        counts = (visible.stop - untrained.first).clamp(min=0)
        if visible.tail is not None:
            trained = int((self._before < 0).sum())
            counts = counts + (visible.tail[1] - untrained.view.tail_start - trained).clamp(min=0)
        found, rounds = plain, counts.div(window // RENEWALS, rounding_mode="floor")
        classes = torch.full_like(rounds, plain.shape[1])
        for number in rounds.unique().tolist():
            fit = self._fit(number, window, untrained, self._before)
            if fit is not None:
                # All rows, so that an answer's bits don't depend on whose fit is another.
                said, mine = fit(keys, plain), rounds == number
                classes[mine] = said.shape[1]
                width = max(said.shape[1], found.shape[1])
                said, found = (F.pad(each, (0, width - each.shape[1]), value=-torch.inf) for each in (said, found))
                found = torch.where(mine.unsqueeze(1), said, found)
        return found, classes

    def _fit(self, number: int, window: int, untrained: Untrained, before: Int[Tensor, " late"]) -> Regression | None:
        """None where there is nothing to fit."""
        if number == 0 or untrained.plain.shape[1] > MOST_CLASSES:
            return None
        if (window, number) not in self._kept:
            stop = number * (window // RENEWALS)
            self._kept[window, number] = _fitted(untrained, before, max(0, stop - window), stop)
        self._kept.move_to_end((window, number))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[window, number]


def _fitted(untrained: Untrained, before: Int[Tensor, " late"], start: int, stop: int) -> Regression | None:
    """To the items between two numbers of them, in order of when they were known, late ones in their places."""
    view, known = untrained.view, untrained.plain.shape[1]
    late = before >= 0
    numbers = before[late] + torch.arange(int(late.sum()))
    skipped, up_to = int((numbers < start).sum()), int((numbers < stop).sum())
    in_order = torch.arange(start - skipped, stop - up_to) + untrained.first
    of_tail = view.tail_start + late.nonzero().flatten()[skipped:up_to]
    positions = torch.cat([in_order, of_tail])
    positions = positions[_counting(view, positions)]
    if not len(positions):
        return None
    classes = max(known, int(view.at("label", positions).max()) + 1)
    if classes > MOST_CLASSES:
        classes = known
        positions = positions[view.at("label", positions) < known]
    if not len(positions):
        return None
    # As they would stand if none had been late: a sum in another order has other bits.
    positions = positions[view.at("row", positions).argsort()]
    positions = positions[view.at("known_at", positions).argsort(stable=True)]
    plain = untrained.plain[view.at("row", positions)]
    assert not bool(plain.isnan().any()), "a regression needs what the plain classifier says of all its items"
    return regress(view.at("key", positions).float(), plain, view.at("label", positions), classes)


def _counting(view: TableView, positions: Int[Tensor, " items"]) -> Bool[Tensor, " items"]:
    """Items that are not erased, nor had been corrected when the last of them was known."""
    then = view.at("known_at", positions).max()
    return ~(torch.isin(positions, view.gone) | torch.isin(positions, view.superseded[view.until <= then]))
