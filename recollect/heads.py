"""All the ways a model can answer, side by side, and how much each of them counts.

The network answers without its precedents, trusting them, and wary of them; labels of near items answer by a vote and
by correcting the network. The hedge weighs these heads by what each would have said of items whose labels are known by
now. Nothing here learns: the weights follow from the model and the visible history alone, so they replay exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.history.visibility import Window
from recollect.inputs import Inputs, Lookup
from recollect.model.neighbours import corrected, nearest, vote
from recollect.predictor import TILE_ROWS, Predictor
from recollect.records import Visible

HEADS = ("no_context", "trusting", "wary", "vote", "corrected_recent", "corrected")
WITHOUT_A_RECORD = "wary"
"""The head that answers where nothing is known yet of how the heads did."""

NEIGHBOURS = 32
CORRECTING = 64
RECENT = Window(items=1024)
LONG = Window(items=8192)


@dataclass(frozen=True)
class HeadAnswers:
    """What every head says, and the items not trained on that are near each input: by how the heads did on these, and
    on all that came before, their answers are weighed."""

    log_probs: Float[Tensor, "batch heads classes"]
    near: Int[Tensor, "batch near"]
    closeness: Float[Tensor, "batch near"]

    @staticmethod
    def joined(parts: Sequence["HeadAnswers"]) -> "HeadAnswers":
        """One below the other; a part that met no new class says of it that it is impossible."""
        classes = max(part.log_probs.shape[2] for part in parts)
        padded = [F.pad(part.log_probs, (0, classes - part.log_probs.shape[2]), value=-torch.inf) for part in parts]
        return HeadAnswers(
            torch.cat(padded),
            torch.cat([part.near for part in parts]),
            torch.cat([part.closeness for part in parts]),
        )

    def first(self, count: int) -> "HeadAnswers":
        return HeadAnswers(self.log_probs[:count], self.near[:count], self.closeness[:count])


@dataclass(frozen=True)
class Heads:
    """The heads of one model over one view of a history.

    `plain` is what the network says of each item without context, by position, and `untrained_from` the first position
    that it was not trained on: only from there on do its answers tell how far it is to be corrected.
    """

    predictor: Predictor
    lookup: Lookup
    plain: Float[Tensor, "items classes"]
    untrained_from: int

    @torch.no_grad()
    def answers(self, inputs: Inputs) -> HeadAnswers:
        """What every head says of some inputs; at least one."""
        # By tiles of one size, so that an answer's bits don't depend on its company; the last row fills the rest.
        tiles = []
        for first in range(0, len(inputs), TILE_ROWS):
            index = torch.arange(first, first + TILE_ROWS, device=inputs.rows.device).clamp(max=len(inputs) - 1)
            tiles.append(self._tile(inputs.take(index)))
        return HeadAnswers.joined(tiles).first(len(inputs))

    def _tile(self, inputs: Inputs) -> HeadAnswers:
        system = self.predictor.system
        state = system.encode(inputs.features)
        everyone = torch.ones(len(inputs), dtype=torch.bool, device=inputs.rows.device)
        positions, _ = self.predictor.select(state, inputs, with_probability=False)
        items, _ = inputs.show(positions, features=self.predictor.retrieve == "items", ages=self.predictor.ages)
        nothing = replace(items, filled=torch.zeros_like(items.filled), wary=~everyone)
        said = [
            system.classify(state, shown, everyone).log_probs[:, 0]
            for shown in (nothing, replace(items, wary=~everyone), replace(items, wary=everyone))
        ]
        classes = max(self.plain.shape[1], *(answer.shape[1] for answer in said))
        said = [F.pad(answer, (0, classes - answer.shape[1]), value=-torch.inf) for answer in said]
        plain = said[0]
        positions, weights = nearest(inputs.own_keys, inputs.keys, within(inputs.visible, LONG), NEIGHBOURS)
        said.append(vote(self._labels(positions), weights, classes))
        for window in (RECENT, LONG):
            seen = within(inputs.visible, window)
            seen = replace(seen, start=seen.start.clamp(min=self.untrained_from).minimum(seen.stop))
            positions, weights = nearest(inputs.own_keys, inputs.keys, seen, CORRECTING)
            of_items = F.pad(self.plain[positions.clamp(min=0)], (0, classes - self.plain.shape[1]), value=-30.0)
            said.append(corrected(plain, of_items, self._labels(positions), weights))
        return HeadAnswers(torch.stack(said, dim=1), positions, weights)

    def _labels(self, positions: Int[Tensor, "batch neighbours"]) -> Int[Tensor, "batch neighbours"]:
        return self.lookup.view.at("label", positions)


def within(visible: Visible, window: Window) -> Visible:
    """No more than the last so many items of what is visible already; the tail, which is small, stays."""
    assert window.items is not None
    return replace(visible, start=visible.start.maximum(visible.stop - window.items))
