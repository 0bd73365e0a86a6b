"""The plain records that travel between layers: inputs' features, retrieved items and visible intervals.

They hold tensors and know nothing of where these came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Features = dict[str, Tensor]
"""Named features. Embedded and numeric ones are floats `[*lead, width]`, categorical ones integers `[*lead]`."""

TERMS = "terms"
"""Beside the features there may be the words of texts and the values of categories as integers `[*lead, terms]`, -1 for
none, in columns of this name. No network reads them, so no spec tells of them."""

FIRST_VALUE = 1 << 24
"""Words are hashed to integers below this, values of categories to such from there on."""

MOST_CLASSES_OF_TERMS = 10
"""With more classes there are no terms: what is fitted to them would take seconds."""

FeatureKind = Literal["embedded", "numeric", "categorical"]


@dataclass(frozen=True)
class FeatureSpec:
    """What a model must know of one named feature before it sees any data.

    `width` is the number of columns, or for a categorical feature the number of categories. `bands` > 0
    gives each numeric column that many Fourier frequencies, spread up to `max_frequency`.
    """

    name: str
    kind: FeatureKind
    width: int
    bands: int = 0
    max_frequency: float = 64.0


@dataclass(frozen=True)
class Items:
    """Retrieved items, ready for a classifier; one slot for each query of each chain.

    Empty slots have `filled` False, and whatever else stands there must not change any answer. `features` is
    empty where only labels are retrieved; `labels` is None where items carry none (the needle task); `ages`
    (as_of - time, in the model's unit of time) is None where the classifier is not told them. `wary` tells it that
    labels may follow another rule than that of its training; None is always.
    """

    filled: Bool[Tensor, "batch chains retrieved"]
    features: Features
    labels: Int[Tensor, "batch chains retrieved"] | None = None
    ages: Float[Tensor, "batch chains retrieved"] | None = None
    wary: Bool[Tensor, "batch #chains"] | None = None
    one_selection: bool = False
    """All chains have the same items in the same slots, and differ in which of them are filled and in `wary`."""

    def in_ways(self, ways: "Sequence[tuple[bool, bool]]") -> "Items":
        """The items of one chain shown in several ways, each a chain: with its slots filled or not, and wary or not."""

        def each(values: Tensor) -> Tensor:
            return values.expand(-1, len(ways), *values.shape[2:])

        shown, wary = torch.tensor(ways, device=self.filled.device).unbind(1)
        return Items(
            self.filled & shown[:, None],
            {name: each(value) for name, value in self.features.items()},
            None if self.labels is None else each(self.labels),
            None if self.ages is None else each(self.ages),
            wary.expand(self.filled.shape[0], -1),
            one_selection=True,
        )

    def selection(self) -> "Items":
        """What stands in the slots, once if that is the same in all chains."""
        if not self.one_selection:
            return self
        return Items(
            self.filled.any(1, keepdim=True),
            {name: value[:, :1] for name, value in self.features.items()},
            None if self.labels is None else self.labels[:, :1],
            None if self.ages is None else self.ages[:, :1],
        )


@dataclass(frozen=True)
class Visible:
    """The positions each input may select: `[start, stop)`, two integers instead of a row of a mask.

    The exceptions are few. `tail` is a second interval, among items that came out of order and were put behind all
    others. Within the intervals an input may not select what its row of `hidden` lists (-1 is nothing), and no input
    what the sorted positions `gone` list.
    """

    start: Int[Tensor, " batch"]
    stop: Int[Tensor, " batch"]
    tail: tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]] | None = None
    hidden: Int[Tensor, "batch hidden"] | None = None
    gone: Int[Tensor, " gone"] | None = None

    @property
    def intervals(self) -> list[tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]]:
        return [(self.start, self.stop)] if self.tail is None else [(self.start, self.stop), self.tail]

    def take(self, index: Int[Tensor, " rows"] | slice) -> "Visible":
        """Of some of the inputs."""
        return Visible(
            self.start[index],
            self.stop[index],
            None if self.tail is None else (self.tail[0][index], self.tail[1][index]),
            None if self.hidden is None else self.hidden[index],
            self.gone,
        )

    def sees(self, positions: Int[Tensor, "batch *rest"]) -> Bool[Tensor, "batch *rest"]:
        """Whether each input may select each of its positions."""

        def beside(values: Tensor) -> Tensor:
            return values.view(-1, *[1] * (positions.ndim - 1))

        seen = torch.zeros_like(positions, dtype=torch.bool)
        for start, stop in self.intervals:
            seen |= (positions >= beside(start)) & (positions < beside(stop))
        if self.hidden is not None:
            for hidden in self.hidden.unbind(1):
                seen &= positions != beside(hidden)
        if self.gone is not None and self.gone.numel():
            at = torch.searchsorted(self.gone, positions.contiguous()).clamp(max=self.gone.numel() - 1)
            seen &= self.gone[at] != positions
        return seen


STRETCH = 4096


@dataclass(frozen=True)
class Extents:
    """How far the keys of a table reach, for every STRETCH positions: the largest norm of a key, without its recency,
    and the earliest and the latest recency. Not finite where a key isn't."""

    norm: Float[Tensor, " stretches"]
    earliest: Float[Tensor, " stretches"]
    latest: Float[Tensor, " stretches"]


@dataclass(frozen=True)
class Clock:
    """From stored times, nanoseconds perhaps, to the model's: how many units after an origin."""

    origin: int | float = 0.0
    unit: int | float = 1.0

    def model_time(self, times: Shaped[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        # Subtracted first: a float64 of nanoseconds since 1970 is exact to half a microsecond only. Whole numbers from
        # whole numbers: an integer tensor minus a float is a float32.
        origin = self.origin if times.is_floating_point() else int(self.origin)
        return (times - origin).double() / self.unit


@dataclass(frozen=True)
class Answer:
    """What a classifier says, one answer per chain.

    `log_probs` covers the classes of training first, then any class met only among the retrieved items.
    `weights` is the classifier's attention on each slot where it has one, and sums to at most 1.
    """

    log_probs: Float[Tensor, "batch chains classes"]
    weights: Float[Tensor, "batch chains retrieved"] | None = None
