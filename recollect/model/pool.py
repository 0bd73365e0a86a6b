"""One answer of what several heads say: the weighted sum of their logits. The hedge finds out who is right; a pool
can be surer than each of them, where they know different things.

Knows answers and labels; not whose they are, nor when they were given.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.model.bounded import lowest
from recollect.model.neighbours import centred

STEPS = 200
SHRINKAGE = 30.0
"""How strongly weights and offsets are held where they start: as if so many rows spoke for that."""


@dataclass(frozen=True)
class Pool:
    """Weights of the heads, and an offset for each class."""

    weights: Float[Tensor, " heads"]
    offsets: Float[Tensor, " classes"]

    def __call__(self, log_probs: Float[Tensor, "batch heads classes"]) -> Float[Tensor, "batch classes"]:
        """Log-probabilities."""
        return F.log_softmax((self.weights.unsqueeze(1) * centred(log_probs)).sum(1) + self.offsets, dim=1)


def frozen(weights: Float[Tensor, " heads"], classes: int) -> Pool:
    """With offsets of nothing."""
    return Pool(weights, weights.new_zeros(classes))


def even(heads: int) -> Float[Tensor, " heads"]:
    """The weights where nothing is known of the heads."""
    return torch.full((heads,), 1.0 / heads)


def fit_pool(
    log_probs: Float[Tensor, "rows heads classes"],
    labels: Int[Tensor, " rows"],
    start: Float[Tensor, " heads"] | None = None,
    *,
    steps: int = STEPS,
    offsets: bool = False,
) -> Pool:
    """The pool with the lowest nll on some rows, held where it starts, at `even` weights or those given. Each label has
    a place in the answers."""
    _, heads, classes = log_probs.shape
    start = even(heads) if start is None else start
    logits, target = centred(log_probs).transpose(1, 2), F.one_hot(labels, classes).float()
    columns = logits.reshape(-1, heads)

    def gradient(found: Float[Tensor, "parameters 1"]) -> Float[Tensor, "parameters 1"]:
        said = (columns @ found[:heads]).view(-1, classes)
        wrong = F.softmax(said + found[heads:, 0] if offsets else said, dim=1) - target
        by_weight = columns.T @ wrong.view(-1, 1)
        return torch.cat([by_weight, wrong.sum(0).unsqueeze(1)]) if offsets else by_weight

    products = columns.T @ columns
    if offsets:
        # An offset's column has a one in the place of its class: its products need not be computed.
        across, own = logits.sum(0), torch.eye(classes) * len(labels)
        products = torch.cat([torch.cat([products, across.T], dim=1), torch.cat([across, own], dim=1)])
    first = F.pad(start, (0, len(products) - heads))
    found = lowest(gradient, products, first.unsqueeze(1), torch.full_like(first, SHRINKAGE), steps).squeeze(1)
    return Pool(found[:heads], found[heads:]) if offsets else frozen(found, classes)
