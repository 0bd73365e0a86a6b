"""How probable each label is in the last slot, given what the earlier slots took: one pass over the keys.

Only that slot's queries take part, so it costs one part in `num_retrieved` of the first pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.retrieval.leftover import leftover
from recollect.retrieval.scoring import Scores
from recollect.retrieval.selection import Chains


def last_slot_label_mass(
    queries: Float[Tensor, "batch retrieved key_dim"],
    scores: Scores,
    chains: Chains,
    labels: Int[Tensor, "batch items"] | Int[Tensor, " items"],
    num_labels: int,
) -> Float[Tensor, "batch chains labels"]:
    """Probability that the last slot of a chain shows each label; all zero where nothing is left to select.

    Differentiable in the queries. The naive equivalent sums the softmax over the items of each label.
    """
    by_input = labels if labels.ndim == 2 else labels.expand(queries.shape[0], -1)
    mass: Tensor = _LabelMass.apply(queries.float(), scores, chains, by_input, num_labels)  # type: ignore[no-untyped-call]
    return mass


class _LabelMass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, scores: Scores, chains: Chains, labels: Tensor, num_labels: int) -> Tensor:
        ctx.labels, ctx.left, ctx.shape = labels, None, queries.shape
        if scores.keys.num_items == 0:
            return queries.new_zeros(*chains.positions.shape[:2], num_labels)
        ctx.left = left = leftover(scores, chains, slice(-1, None))
        # [batch, labels] of what no chain took, then [batch, chains, labels].
        nobodys = queries.new_zeros(queries.shape[0], num_labels)
        for start, stop, weights, _ in left.walk():
            nobodys.scatter_add_(1, _tile_labels(labels, start, stop), weights.squeeze(1))
        mass = left.share * nobodys.unsqueeze(1)
        returned = left.returned.squeeze(2)
        mass.scatter_add_(2, labels.gather(1, left.picks).long().unsqueeze(1).expand_as(returned), returned)
        total = mass.sum(-1, keepdim=True)
        ctx.total = total.masked_fill(total == 0, 1.0)
        ctx.mass = mass / ctx.total
        result: Tensor = ctx.mass.clone()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        left, labels = ctx.left, ctx.labels
        if left is None:
            return grads[0].new_zeros(ctx.shape), None, None, None, None
        # d mass_y / d logit_i = p_i (1[label_i = y] - mass_y); [batch, chains, labels].
        centred = (grads[0] - (grads[0] * ctx.mass).sum(-1, keepdim=True)) / ctx.total
        nobodys = (centred * left.share).sum(1)
        gradient = torch.zeros_like(left.scores.queries)
        for start, stop, weights, _ in left.walk():
            weights.mul_(nobodys.gather(1, _tile_labels(labels, start, stop)).unsqueeze(1))
            left.scores.add_weighted_sum_(gradient, weights, start, stop)
        picked = labels.gather(1, left.picks).long().unsqueeze(1).expand(-1, centred.shape[1], -1)
        returned = (left.returned.squeeze(2) * centred.gather(2, picked)).sum(1, keepdim=True)
        gradient += returned @ left.picked_keys
        earlier = ctx.shape[1] - 1
        return F.pad(gradient * left.scores.scale, (0, 0, earlier, 0)), None, None, None, None


def _tile_labels(labels: Int[Tensor, "batch items"], start: int, stop: int) -> Int[Tensor, "batch tile"]:
    """Labels of a tile; label 0 stands where the tile runs past the last item, which no input sees."""
    tile = labels[:, start:stop].long()
    return F.pad(tile, (0, stop - start - tile.shape[1]))
