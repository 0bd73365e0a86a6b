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
    wary: Bool[Tensor, " batch"] | None = None

    @staticmethod
    def joined(parts: "Sequence[Items]") -> "Items":
        """One below the other; all of them have the same fields."""

        def below(values: Sequence[Tensor | None]) -> Tensor | None:
            there = [value for value in values if value is not None]
            return torch.cat(there) if there else None

        filled = torch.cat([part.filled for part in parts])
        features = {name: torch.cat([part.features[name] for part in parts]) for name in parts[0].features}
        labels, ages, wary = (below([getattr(part, name) for part in parts]) for name in ("labels", "ages", "wary"))
        return Items(filled, features, labels, ages, wary)


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
