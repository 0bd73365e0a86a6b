"""The plain records that travel between layers: inputs' features, retrieved items and visible intervals.

They hold tensors and know nothing of where these came from.
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float, Int
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
    (as_of - time, in the model's unit of time) is None where the classifier is not told them.
    """

    filled: Bool[Tensor, "batch chains retrieved"]
    features: Features
    labels: Int[Tensor, "batch chains retrieved"] | None = None
    ages: Float[Tensor, "batch chains retrieved"] | None = None


@dataclass(frozen=True)
class Visible:
    """The positions `[start, stop)` each input may select: two integers instead of a row of a mask."""

    start: Int[Tensor, " batch"]
    stop: Int[Tensor, " batch"]


@dataclass(frozen=True)
class Answer:
    """What a classifier says, one answer per chain.

    `log_probs` covers the classes of training first, then any class met only among the retrieved items.
    `weights` is the classifier's attention on each slot where it has one, and sums to at most 1.
    """

    log_probs: Float[Tensor, "batch chains classes"]
    weights: Float[Tensor, "batch chains retrieved"] | None = None
