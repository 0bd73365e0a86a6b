"""Which items an input may select: those whose label was known strictly before the moment of the prediction.

Knows times only. In a history kept in order of `known_at` the answer is one interval of positions.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
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
    if bool((known_at[1:] < known_at[:-1]).any()):
        raise SettingError("items must come in order of known_at: sort them before they are made a history")


def visible_before(
    known_at: Shaped[Tensor, " items"], as_of: Shaped[Tensor, " batch"], window: Window = EVERYTHING
) -> Visible:
    """The interval of items with `known_at < as_of`, strictly: what is stamped with the same moment is invisible.

    `known_at` must be in order; whoever keeps it sees to that once, with `check_order`.
    """
    as_of = as_of.contiguous()
    stop = torch.searchsorted(known_at, as_of)
    start = torch.zeros_like(stop)
    if window.items is not None:
        start = torch.maximum(start, stop - window.items)
    if window.time is not None:
        # Nanoseconds stay integers: a float subtracted from them would round to minutes.
        time = window.time if as_of.is_floating_point() else math.ceil(window.time)
        start = torch.maximum(start, torch.searchsorted(known_at, as_of - time, right=True))
    return Visible(torch.minimum(start, stop), stop)
