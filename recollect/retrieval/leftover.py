"""The distributions over what earlier slots left to choose, of all chains at once: one pass over the keys.

Chains of one input differ only by the few items they took. So the pass leaves out what any chain took, and what only
others took is added to each chain afterwards. Nothing is ever subtracted: at temperature 0.001 a taken item may
hold all but a millionth of the mass, and the difference would be rounding error.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.retrieval.kernels import exponentials
from recollect.retrieval.scoring import Scores
from recollect.retrieval.selection import Chains


@dataclass(frozen=True)
class Leftover:
    """Weights, in proportion to probabilities, of what was selectable at the slots of `scores`.

    An item that no chain took has weight 2 ** (logit - shift), from `walk`, times the chain's `share`. An item of
    `picks` that others took has the weight `returned`.
    """

    scores: Scores
    shift: Float[Tensor, "batch retrieved"]
    gone: Int[Tensor, "batch retrieved gone"]
    share: Float[Tensor, "batch chains retrieved"]
    picks: Int[Tensor, "batch picks"]
    picked_keys: Float[Tensor, "batch picks key_dim"]
    returned: Float[Tensor, "batch chains retrieved picks"]

    def walk(
        self,
    ) -> Iterator[tuple[int, int, Float[Tensor, "batch retrieved items"], Float[Tensor, "batch retrieved"]]]:
        """Tiles as (start, stop, weights, their sum); an empty slot and a hidden or taken item have weight 0."""
        row, slot, which = (self.gone >= 0).nonzero(as_tuple=True)
        position, order = self.gone[row, slot, which].sort()
        row, slot = row[order], slot[order]
        starts = torch.tensor([start for start, _ in self.scores.tiles()], device=position.device)
        first_gone = [*torch.searchsorted(position, starts).tolist(), position.numel()]
        exponentials_ = exponentials(self.scores.compiled)
        for tile, (start, stop, logits) in enumerate(self.scores.walk_masked()):
            here = slice(first_gone[tile], first_gone[tile + 1])
            logits[row[here], slot[here], position[here] - start] = -torch.inf
            mass = exponentials_(logits.flatten(0, 1), self.shift.flatten())
            yield start, stop, logits, mass.view_as(self.shift)

    def expected_keys(self) -> Float[Tensor, "batch chains retrieved key_dim"]:
        """E_p[key] for every chain and slot, 0 where the slot is empty.

        Divided by the mass the pass itself found, not by the normaliser of the selection: at temperature 0.001 logits
        are so large that their last bits show in a probability, and a key minus its expectation would not vanish
        where one item has all the mass.
        """
        total, mass = torch.zeros_like(self.scores.queries), torch.zeros_like(self.shift)
        for start, stop, weights, tile_mass in self.walk():
            mass += tile_mass
            self.scores.add_weighted_sum_(total, weights, start, stop)
        totals = self.share.unsqueeze(-1) * total.unsqueeze(1) + self.returned @ self.picked_keys.unsqueeze(1)
        masses = self.share * mass.unsqueeze(1) + self.returned.sum(-1)
        return totals / masses.masked_fill(masses == 0, 1.0).unsqueeze(-1)


def leftover(scores: Scores, chains: Chains, slots: slice) -> Leftover:
    """What was selectable at some of the slots of chains that were chosen from `scores`."""
    _, num_chains, retrieved = chains.positions.shape
    slot = torch.arange(retrieved, device=chains.positions.device)
    # Everything taken before the last slot, slot by slot, so that of equal picks the earliest comes first.
    picks = chains.positions[:, :, :-1].transpose(1, 2).flatten(1)
    taken_at = slot[:-1].repeat_interleave(num_chains)
    before = (picks >= 0).unsqueeze(1) & (taken_at < slot[slots, None])  # [batch, retrieved, picks]
    shared = scores.slots(slots)
    normaliser, filled = chains.normaliser[:, :, slots], chains.filled[:, :, slots]
    # No weight of `walk` exceeds 1 and none vanishes that matters to a chain: the smallest normaliser is the shift.
    # With an infinite one, an empty slot has no weights at all.
    shift = normaliser.masked_fill(~filled, torch.inf).amin(1)
    share = (shift.unsqueeze(1) - normaliser).exp2().masked_fill(~filled, 0.0)
    keys = scores.keys.at(picks.clamp(min=0)).masked_fill((picks < 0).unsqueeze(-1), 0.0)
    logits = shared.scaled @ keys.transpose(1, 2)
    others = before.unsqueeze(1) & _taken_by_others(chains.positions, picks, slot[slots])
    returned = (logits.unsqueeze(1) - normaliser.unsqueeze(-1)).exp2().masked_fill(~others, 0.0)
    gone = picks.unsqueeze(1).masked_fill(~before, -1)
    return Leftover(shared, shift, gone, share, picks.clamp(min=0), keys, returned)


def _taken_by_others(
    positions: Int[Tensor, "batch chains retrieved"],
    picks: Int[Tensor, "batch picks"],
    slots: Int[Tensor, " slots"],
) -> Bool[Tensor, "batch chains slots picks"]:
    """Which picks a chain itself has not taken before a slot, each counted once however many chains took it."""
    retrieved = positions.shape[2]
    same = positions.unsqueeze(-1) == picks[:, None, None, :]
    slot = torch.arange(retrieved, device=positions.device).view(-1, 1)
    taken_at = torch.where(same, slot, retrieved).amin(2)  # [batch, chains, picks]
    repeated = (picks.unsqueeze(1) == picks.unsqueeze(2)).tril(-1).any(2)
    return (taken_at.unsqueeze(2) >= slots.view(-1, 1)) & ~repeated[:, None, None, :]


def untouched(scores: Scores, normaliser: Float[Tensor, "batch retrieved"]) -> Leftover:
    """The distributions before anything is taken, as one chain; the normaliser is +inf where nothing is visible."""
    batch, retrieved, _ = scores.queries.shape
    none = torch.empty(batch, 0, dtype=torch.int64, device=scores.queries.device)
    return Leftover(
        scores,
        normaliser,
        gone=none.unsqueeze(1).expand(-1, retrieved, -1),
        share=scores.queries.new_ones(batch, 1, retrieved),
        picks=none,
        picked_keys=scores.queries.new_empty(batch, 0, scores.keys.width),
        returned=scores.queries.new_empty(batch, 1, retrieved, 0),
    )
