"""Pools of the heads that are fitted anew to the newest items of a history, as it grows. Nothing of the model moves.

A pool asks what the heads said of each of its items, so it holds only once all of these have been answered.
"""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.item_record import Told
from recollect.answering.newest import RENEWALS, NewestFits, Untrained
from recollect.model.pool import Pool, fit_pool, frozen
from recollect.records import Visible

MOST_CLASSES = 32
"""With more, a fit would take longer than the answers it is for, and what the heads said much memory."""

STEPS = 30


def pools_for(classes: int) -> bool:
    """Whether there are any."""
    return classes <= MOST_CLASSES


class Pools:
    """Fits over one history; to be forgotten when positions come to mean other items, or late ones come."""

    def __init__(self) -> None:
        self._fits = NewestFits[Pool]()

    def forget(self) -> None:
        self._fits.forget()

    def answers(
        self,
        said: Float[Tensor, "batch heads classes"],
        start: Float[Tensor, " heads"],
        visible: Visible,
        window: int,
        untrained: Untrained,
        told: Told,
    ) -> Float[Tensor, "batch classes"]:
        """What the last pool fitted to items that an input may see makes of what the heads say; the weights that fits
        `start` from, where there is none."""
        found = frozen(start, said.shape[2])(said)
        if not pools_for(said.shape[2]):
            return found
        make = partial(_fitted, untrained, told, start)
        numbers = self._fits.numbers(visible, window, untrained)
        for number in numbers.unique().tolist():
            fit = self._fits.get(number, window, untrained, make)
            if fit is None:
                # Someone is in a hurry: the last pool that is complete stands in.
                fit = self._fits.get(self._complete(number, window, untrained, told), window, untrained, make)
            if fit is not None:
                # All rows, so that an answer's bits don't depend on whose fit is another.
                found = torch.where((numbers == number).unsqueeze(1), fit(said), found)
        return found

    def _complete(self, number: int, window: int, untrained: Untrained, told: Told) -> int:
        """The number of the last fit before the first item of this one that heads have not been asked of."""
        start, positions = self._fits.items(number, window, untrained)
        before = int(told.there[untrained.view.at("row", positions)].cumprod(0).sum())
        return (start + before) // (window // RENEWALS)


def _fitted(
    untrained: Untrained, told: Told, start: Float[Tensor, " heads"], positions: Int[Tensor, " items"]
) -> Pool | None:
    """None where heads have not been asked of all the items yet."""
    view = untrained.view
    rows, labels = view.at("row", positions), view.at("label", positions)
    if not bool(told.there[rows].all()):
        return None
    known = labels < told.log_probs.shape[2]
    if not bool(known.any()):
        return frozen(start, told.log_probs.shape[2])
    return fit_pool(told.log_probs[rows[known]], labels[known], start, steps=STEPS, offsets=True)
