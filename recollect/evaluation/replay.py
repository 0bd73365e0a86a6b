"""Answers to the rows of a history in order of time, each as of its own moment, as a service would have given them.

Test, then learn: a row is answered from what was known strictly before it, and counts for the heads' weights from the
moment its label became known. Knows heads and one view of a history; nothing of how they were trained.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.heads import HEADS, WITHOUT_A_RECORD, HeadAnswers, Heads
from recollect.model.hedge import adjusted, fixed_share, item_losses, mixed

CHUNK = 512


@dataclass(frozen=True)
class Replayed:
    """Rows by position with what was answered: by each head, by the hedge, and with which weights."""

    positions: Int[Tensor, " rows"]
    log_probs: Float[Tensor, "rows classes"]
    heads: Float[Tensor, "rows heads classes"]
    weights: Float[Tensor, "rows heads"]

    def head(self, name: str) -> Float[Tensor, "rows classes"]:
        return self.heads[:, HEADS.index(name)]


def replay(heads: Heads, on_progress: Callable[[int, int], None] | None = None) -> Replayed:
    """Answer everything that the model was not trained on."""
    view = heads.lookup.view
    positions = torch.arange(heads.untrained_from, len(view.items))
    parts = []
    for first in range(0, len(positions), CHUNK):
        parts.append(heads.answers(heads.lookup.inputs_at(positions[first : first + CHUNK])))
        if on_progress is not None:
            on_progress(min(first + CHUNK, len(positions)), len(positions))
    answers = HeadAnswers.joined(parts)
    weights = weights_at(heads, answers, view.at("time", positions))
    return Replayed(positions, mixed(answers.log_probs, weights), answers.log_probs, weights)


def weights_at(heads: Heads, answers: HeadAnswers, as_of: Shaped[Tensor, " rows"]) -> Float[Tensor, "rows heads"]:
    """How much each head counts for each row, from the answers to all rows that were not trained on."""
    view = heads.lookup.view
    known_at = view.items.known_at[heads.untrained_from :]
    losses = item_losses(answers.log_probs, view.items.label[heads.untrained_from :])
    # Strictly before, like everything else: a label known at the very moment doesn't count yet.
    overall = fixed_share(losses, prior())[torch.searchsorted(known_at, as_of)]
    near = (answers.near - heads.untrained_from).clamp(min=0)
    return adjusted(overall, losses[near], answers.closeness)


def prior() -> Float[Tensor, " heads"]:
    """Before anything is known, half of all weight is with the head that answers without a record."""
    weights = torch.full((len(HEADS),), 0.5 / (len(HEADS) - 1))
    weights[HEADS.index(WITHOUT_A_RECORD)] = 0.5
    return weights
