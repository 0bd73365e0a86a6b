"""One answer of what several heads say: the weighted sum of their logits. The hedge finds out who is right; a pool
can be surer than each of them, where they know different things.

Its weights are fitted once, on rows of the past that nothing was trained on, and then stay. Knows answers and labels.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.model.bounded import lowest
from recollect.model.neighbours import centred

STEPS = 200
SHRINKAGE = 30.0
"""How strongly all weights are held at the same: as if so many rows said that."""


def pooled(
    log_probs: Float[Tensor, "batch heads classes"], weights: Float[Tensor, " heads"]
) -> Float[Tensor, "batch classes"]:
    """Log-probabilities of the pool."""
    return F.log_softmax((weights.unsqueeze(1) * centred(log_probs)).sum(1), dim=1)


def even(heads: int) -> Float[Tensor, " heads"]:
    """The weights where nothing is known of the heads."""
    return torch.full((heads,), 1.0 / heads)


def fit_pool(log_probs: Float[Tensor, "rows heads classes"], labels: Int[Tensor, " rows"]) -> Float[Tensor, " heads"]:
    """The weights with the lowest nll on some rows, held at `even` ones; each label has a place in the answers."""
    rows, heads, classes = log_probs.shape
    logits, target = centred(log_probs).transpose(1, 2), F.one_hot(labels, classes).float()

    def gradient(weights: Float[Tensor, "heads 1"]) -> Float[Tensor, "heads 1"]:
        wrong = F.softmax((logits @ weights).squeeze(2), dim=1) - target
        return torch.einsum("rch,rc->h", logits, wrong).unsqueeze(1)

    columns, held = logits.reshape(rows * classes, heads), torch.full((heads,), SHRINKAGE)
    return lowest(gradient, columns, even(heads).unsqueeze(1), held, STEPS).squeeze(1)
