"""Regressions over the newest items of a history, fitted anew as it grows: which one holds for which moment.

A fit follows from the items in order before a round number of them, so that it is the same whenever it is computed, and
those that were needed last are kept. Nothing of the model moves.
"""

from collections import OrderedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.history.key_table import TableView
from recollect.model.regression import Regression, regress

RENEWALS = 8
"""How often, while as many items come as a fit looks back on, it is made anew."""

MOST_CLASSES = 100
"""With more, a fit would take longer than the answers it is for."""

KEPT = 256


class Regressions:
    """Fits over one view of a history; to be forgotten when positions come to mean other items."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], Regression | None] = OrderedDict()

    def forget(self) -> None:
        self._kept.clear()

    def answers(
        self,
        keys: Float[Tensor, "batch key_dim"],
        plain: Float[Tensor, "batch classes"],
        stop: Int[Tensor, " batch"],
        window: int,
        view: TableView,
        plain_of_rows: Float[Tensor, "rows classes"],
        first: int,
    ) -> Float[Tensor, "batch classes"]:
        """What the last fit before each input's `stop`, the first position it does not see, makes of its plain answer;
        a fit looks back on `window` items, and on none before `first`."""
        found = plain
        rounds = (stop - first).clamp(min=0).div(window // RENEWALS, rounding_mode="floor")
        for number in rounds.unique().tolist():
            fit = self._fit(number, window, view, plain_of_rows, first)
            if fit is not None:
                # All rows, so that an answer's bits don't depend on whose fit is another.
                found = torch.where((rounds == number).unsqueeze(1), fit(keys, plain), found)
        return found

    def _fit(
        self, number: int, window: int, view: TableView, plain_of_rows: Float[Tensor, "rows classes"], first: int
    ) -> Regression | None:
        """None where there is nothing to fit."""
        classes = plain_of_rows.shape[1]
        if number == 0 or classes > MOST_CLASSES:
            return None
        if (window, number) not in self._kept:
            stop = first + number * (window // RENEWALS)
            positions = torch.arange(max(first, stop - window), stop)
            positions = positions[_counting(view, positions) & (view.at("label", positions) < classes)]
            plain = plain_of_rows[view.at("row", positions)]
            assert not bool(plain.isnan().any()), "a regression needs what the plain classifier says of all its items"
            labels = view.at("label", positions)
            fit = regress(view.at("key", positions).float(), plain, labels) if len(positions) else None
            self._kept[window, number] = fit
        self._kept.move_to_end((window, number))
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[window, number]


def _counting(view: TableView, positions: Int[Tensor, " items"]) -> Bool[Tensor, " items"]:
    """Items that are not erased, nor had been corrected when the last of them was known."""
    then = view.items.known_at[positions[-1]]
    return ~(torch.isin(positions, view.gone) | torch.isin(positions, view.superseded[view.until <= then]))
