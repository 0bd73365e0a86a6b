"""What the newest rows of the past, which nothing was trained on, say of a choice: is one way of answering better than
another beyond doubt, do trees beside a network do harm, and how much does each head count in a pool of all?
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.heads import POOLED
from recollect.answering.live import Live
from recollect.inputs import Lookup
from recollect.model.pool import fit_pool
from recollect.model.trees import together
from recollect.predictor import Predictor

JUDGED = 1000
"""Rows that such a question is asked of, at most."""

AT_ONCE = 256

POOLED_ROWS = 2048
"""Rows that weights of a pool are fitted on, at most: the newest, before which heads have most to look back on."""


def spread(first: int, last: int) -> Int[Tensor, " judged"]:
    """Some of the positions from `first` to before `last`, evenly."""
    return torch.linspace(first, last - 1, min(last - first, JUDGED)).long()


def better(losses: Float[Tensor, " judged"], than: Float[Tensor, " judged"]) -> bool:
    """By more than two standard errors of the difference."""
    gained = than - losses
    if not len(gained):
        return False
    return float(gained.mean()) > 2 * float(gained.std(correction=0)) / math.sqrt(len(gained))


@torch.no_grad()
def trees_harm(predictor: Predictor, lookup: Lookup, held_out: Int[Tensor, " held_out"]) -> bool:
    """Whether the network by itself foretells items, at positions of a history, better than with trees beside it.

    With many classes there are too few rounds for trees to learn as much as a network does.
    """
    assert predictor.trees is not None
    alone, both = [torch.empty(0, 1)], [torch.empty(0, 1)]
    known = lookup.view.at("label", held_out) < predictor.trees.num_classes
    for part in held_out[known].split(AT_ONCE):
        inputs, labels = lookup.inputs_at(part), lookup.view.at("label", part).unsqueeze(1)
        by_network = predictor.predict(inputs, use_context=False, wary=False).log_probs
        alone.append(-by_network.gather(1, labels))
        both.append(-together(by_network, predictor.by_trees(inputs.features, by_network)).gather(1, labels))
    return better(torch.cat(alone).squeeze(1), torch.cat(both).squeeze(1))


def pool_by(live: Live, held_out: Int[Tensor, " held_out"]) -> tuple[float, ...] | None:
    """Weights of a pool of the heads, by items at positions of the history that a model is live over."""
    newest = held_out[-POOLED_ROWS:]
    newest = newest[live.lookup.view.at("label", newest) < live.num_classes]
    if not len(newest):
        return None
    said = live.said_of(newest).log_probs[:, :POOLED, : live.num_classes]
    return tuple(fit_pool(said, live.lookup.view.at("label", newest)).weights.tolist())
