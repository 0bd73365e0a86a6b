"""Answers to the rows of a history in order of time, each as of its own moment, as a service would have given them.

Test, then learn: a row is answered from what was known strictly before it, and counts for the heads' weights from the
moment its label became known. All of that is `Live`'s; here it is asked for everything that was not trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.heads import HEADS
from recollect.answering.live import Answers, Live, Progress


@dataclass(frozen=True)
class Replayed:
    """Rows by position with what was answered."""

    positions: Int[Tensor, " rows"]
    answers: Answers

    @property
    def log_probs(self) -> Float[Tensor, "rows classes"]:
        return self.answers.log_probs

    def head(self, name: str) -> Float[Tensor, "rows classes"]:
        return self.answers.head(name)


def replay(live: Live, on_progress: Progress | None = None, positions: Int[Tensor, " rows"] | None = None) -> Replayed:
    """Answer everything that the model was not trained on, or these rows of it; at least one."""
    if positions is None:
        positions = torch.arange(live.untrained_from, len(live.lookup.view.items))
    return Replayed(positions, live.answer_items(positions, on_progress))


def hedged_by(
    live: Live, replayed: Replayed, kept: Sequence[str] = HEADS, *, nearby: bool = True
) -> Float[Tensor, "rows classes"]:
    """What the hedge would have answered with some of the heads only, or by their overall record alone.

    Nothing is asked again: the heads' answers are those of the replay.
    """
    as_of = live.lookup.view.at("time", replayed.positions)
    log_probs, _ = live.mix(replayed.answers.said, as_of, kept, nearby=nearby)
    return log_probs
