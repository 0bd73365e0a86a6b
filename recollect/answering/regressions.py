"""Regressions over the newest items of a history, fitted anew as it grows. Nothing of the model moves."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.newest import NewestFits, Untrained
from recollect.model.regression import Regression, regress
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS, Visible

MOST_CLASSES = 100
"""With more, a fit would take longer than the answers it is for."""


class Regressions:
    """Fits over one history; to be forgotten when positions come to mean other items, or late ones come."""

    def __init__(self) -> None:
        self._fits = NewestFits[Regression]()

    def forget(self) -> None:
        self._fits.forget()

    def answers(
        self,
        keys: Float[Tensor, "batch key_dim"],
        plain: Float[Tensor, "batch classes"],
        visible: Visible,
        window: int,
        untrained: Untrained,
        plain_of_items: Float[Tensor, "rows classes"],
        terms: Int[Tensor, "batch words"] | None = None,
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        """What the last fit over items that an input may see makes of its plain answer; a fit looks back on `window`
        items, and on none that were trained on. Also, for each input, of how many classes its fit speaks: those first
        met after training are among them. `plain_of_items` is by stored row. With `terms` of the inputs it reads words,
        which the history must have of its items."""
        if plain.shape[1] > MOST_CLASSES:
            return plain, torch.full((len(plain),), plain.shape[1])
        make = partial(_fitted, untrained, plain_of_items, terms is not None)
        return self._fits.answers(plain, visible, window, untrained, make, lambda fit: fit(keys, plain, terms))


def _fitted(
    untrained: Untrained,
    plain_of_items: Float[Tensor, "rows classes"],
    reads_words: bool,
    positions: Int[Tensor, " items"],
) -> Regression | None:
    view, known = untrained.view, plain_of_items.shape[1]
    if not len(positions):
        return None
    classes = max(known, int(view.at("label", positions).max()) + 1)
    if classes > MOST_CLASSES:
        classes = known
        positions = positions[view.at("label", positions) < known]
    if not len(positions):
        return None
    rows = view.at("row", positions)
    plain = plain_of_items[rows]
    assert not bool(plain.isnan().any()), "a regression needs what the plain classifier says of all its items"
    terms = view.source.fetch(rows, [TERMS])[TERMS] if reads_words and classes <= MOST_CLASSES_OF_TERMS else None
    return regress(view.at("key", positions).float(), plain, view.at("label", positions), classes, terms)
