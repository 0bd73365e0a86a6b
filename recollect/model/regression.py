"""A regression of the newest labels on keys, on the plain answer and on words, if there are some. Where a change is
spread over all of key space, 64 neighbours are too few to tell its direction; a line through thousands of items does.

Knows keys, words, labels and what the plain classifier said of each item; nothing of other features, of time or of what
made keys.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.model.bounded import lowest
from recollect.model.neighbours import centred
from recollect.model.word_regression import WordWeights, fit_with_words

STEPS = 20
SHRINKAGE = 10.0
"""How strongly weights of keys are held at nothing: as if so many items more spoke against each. The weights of the
plain answer are held at what leaves it as it is, by one item."""


@dataclass(frozen=True)
class Regression:
    """Class logits are linear in a key, less `mean` and by its `scale`, in the plain logits and in one, and in words
    where it was fitted with them. There may be more classes than the plain answer has: those first met after it was
    made."""

    mean: Float[Tensor, " key_dim"]
    scale: Float[Tensor, ""]
    weights: Float[Tensor, "columns classes"]
    words: WordWeights | None = None

    def __call__(
        self,
        keys: Float[Tensor, "batch key_dim"],
        plain: Float[Tensor, "batch classes"],
        terms: Int[Tensor, "batch words"] | None = None,
    ) -> Float[Tensor, "batch _"]:
        """Log-probabilities by keys, plain answers and words."""
        logits = _columns((keys - self.mean) / self.scale, plain) @ self.weights
        if self.words is not None and terms is not None:
            logits = logits + self.words(terms)
        return F.log_softmax(logits, dim=1)


def regress(
    keys: Float[Tensor, "items key_dim"],
    plain: Float[Tensor, "items known"],
    labels: Int[Tensor, " items"],
    classes: int,
    terms: Int[Tensor, "items words"] | None = None,
) -> Regression:
    """Fitted to items, of which there is at least one, with labels of so many classes, at least those that are known;
    with `terms` to their words as well.

    Begun anew each time and stopped after STEPS, the weights follow from these items alone. Of a class that the plain
    answer knows nothing of they begin, and are held, at its share of the items.
    """
    mean = keys.mean(0)
    scale = (keys - mean).square().mean().sqrt().clamp(min=1e-12)
    columns = _columns((keys - mean) / scale, plain)
    key_dim, known = keys.shape[1], plain.shape[1]
    start = F.pad(torch.eye(known, device=keys.device), (0, classes - known, key_dim, 1))
    counts = torch.bincount(labels, minlength=classes)[known:]
    start[-1, known:] = ((counts + 0.5) / len(labels)).log()
    held = F.pad(keys.new_full((key_dim,), SHRINKAGE), (0, known + 1), value=1.0)
    target = F.one_hot(labels, classes).to(columns.dtype)

    def gradient(weights: Float[Tensor, "columns classes"]) -> Float[Tensor, "columns classes"]:
        return columns.T @ (F.softmax(columns @ weights, dim=1) - target)

    weights = lowest(gradient, columns.T @ columns, start, held, STEPS)
    found = None if terms is None else fit_with_words(columns, weights, start, held, terms, labels)
    return Regression(mean, scale, weights) if found is None else Regression(mean, scale, *found)


def _columns(
    keys: Float[Tensor, "rows key_dim"], plain: Float[Tensor, "rows classes"]
) -> Float[Tensor, "rows columns"]:
    return torch.cat([keys, centred(plain), keys.new_ones(len(keys), 1)], dim=1)
