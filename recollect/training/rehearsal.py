"""Simulated drift: targets and retrieved labels relabelled together by a random rule per input.

Before the cutoff the input alone is almost always enough, and a classifier learns to ignore its precedents. Under a
rule drawn anew for every input, recent labels are the only way to be right. It costs nothing: labels change after the
fetch. Knows labels, keys and times; nothing of models.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from recollect.config import RehearsalMix


@dataclass(frozen=True)
class Rules:
    """One rule per input: where each class goes, in which half-space and since when."""

    becomes: Int[Tensor, "batch labels"]
    direction: Float[Tensor, "batch key_dim"]
    threshold: Float[Tensor, " batch"]
    since: Float[Tensor, " batch"]
    active: Bool[Tensor, " batch"]

    def relabel(
        self,
        labels: Int[Tensor, "batch *items"],
        keys: Float[Tensor, "batch *items key_dim"],
        times: Float[Tensor, "batch *items"],
    ) -> Int[Tensor, "batch *items"]:
        """New labels for items; those outside the region or from before the change keep theirs."""
        batch = labels.shape[0]
        shape = (batch, *[1] * (labels.ndim - 1))
        flat = labels.reshape(batch, -1)
        known = self.becomes.shape[1]
        moved = self.becomes.gather(1, flat.clamp(max=known - 1)).view_as(labels)
        side = (keys * self.direction.view(*shape, -1)).sum(-1) > self.threshold.view(shape)
        holds = side & (times >= self.since.view(shape)) & self.active.view(shape) & (labels < known)
        return torch.where(holds, moved, labels)


def draw_rules(
    mix: RehearsalMix,
    targets: Int[Tensor, " batch"],
    own_keys: Float[Tensor, "batch key_dim"],
    oldest: Float[Tensor, " batch"],
    as_of: Float[Tensor, " batch"],
    shown: Bool[Tensor, " batch"],
    num_classes: int,
    generator: Generator,
) -> Rules:
    """A rule for every input, active for a share `mix.probability` of those that are shown any item.

    Where none is shown nothing is relabelled: the answer without context would be trained on noise.
    """
    batch, device = targets.shape[0], targets.device

    def chance(probability: float) -> Bool[Tensor, " batch"]:
        return torch.rand(batch, generator=generator, device=device) < probability

    becomes = _permutations_and_merges(mix, targets, num_classes, chance, generator)
    direction = torch.randn(own_keys.shape, generator=generator, device=device)
    direction = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-12)
    # A half-space through a point near the input, so that it lies on either side of the border equally often.
    spread = own_keys.std(0, correction=0).norm() if batch > 1 else own_keys.new_ones(())
    offset = torch.randn(batch, generator=generator, device=device) * spread / own_keys.shape[1] ** 0.5
    threshold = (own_keys * direction).sum(1) - offset
    threshold = torch.where(chance(mix.region), threshold, -torch.inf)
    # Squared: recent changes are the hard ones, and the ones that matter.
    back = torch.rand(batch, generator=generator, device=device, dtype=torch.float64).square()
    since = as_of - back * (as_of - oldest)
    since = torch.where(chance(mix.change_point), since, -torch.inf)
    return Rules(becomes, direction, threshold, since, chance(mix.probability) & shown)


def _permutations_and_merges(
    mix: RehearsalMix,
    targets: Int[Tensor, " batch"],
    num_classes: int,
    chance: Callable[[float], Tensor],
    generator: Generator,
) -> Int[Tensor, "batch labels"]:
    """Where each label goes: the target's class and one or two others turn round, or all become one of them."""
    batch, device = targets.shape[0], targets.device
    # The label after the last class stands for one that training has never seen.
    labels = num_classes + 1
    order = torch.rand(batch, labels, generator=generator, device=device)
    order[torch.arange(batch, device=device), targets] = 2.0
    novel = chance(mix.novel)
    order[:, num_classes] = torch.where(novel, 1.5, -1.0)
    involved = order.argsort(dim=1, descending=True)
    three = chance(mix.three) & (num_classes + novel.long() >= 3)
    first = involved[:, 0]
    second = torch.where(num_classes + novel.long() >= 2, involved[:, 1], first)
    third = torch.where(three, involved[:, min(2, labels - 1)], first)
    becomes = torch.arange(labels, device=device).repeat(batch, 1)
    # A turn: first -> second -> third -> first (with two classes, third is first again).
    becomes.scatter_(1, first[:, None], second[:, None])
    becomes.scatter_(1, second[:, None], third[:, None])
    becomes = torch.where(three[:, None], becomes.scatter(1, third[:, None], first[:, None]), becomes)
    into = torch.where(chance(0.5), first, second)[:, None]
    merged = becomes
    for label in (first, second, third):
        merged = merged.scatter(1, label[:, None], into)
    return torch.where(chance(mix.merge)[:, None], merged, becomes)
