"""How the slots of a table's model ask at first, and what they select: the most recent items and the nearest ones."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recollect.inputs import Lookup
from recollect.model.build import SlotGroup
from recollect.model.system import RetrievalSystem
from recollect.retrieval.top import top_of_groups

PERPLEXITY = 32.0
"""Queries ask so sharply at first that their probability is spread over about so many items."""

SHARPENED = 128
"""Inputs by which that is measured."""

RECENT_SHARE = 0.5
"""Part of the slots that start as the most recent items; the others start as the nearest."""

HORIZON = 1000.0
"""The nearest slots prefer newer items: a logit is worth so many items of age at first."""

BARELY = 1e-3
TILE = 256


def slot_groups(
    lookup: Lookup, trained: Int[Tensor, " inputs"], slots: int, recent_share: float = RECENT_SHARE
) -> list[SlotGroup]:
    """Slots that start as the most recent items, and slots that start as the nearest; a group of none is left out."""
    items, recent = len(trained), round(recent_share * slots)
    sharpness = calibrated_sharpness(lookup, trained, min(SHARPENED, max(16, items // 6)))
    groups = [SlotGroup(recent, BARELY, float(items)), SlotGroup(slots - recent, sharpness, items / HORIZON)]
    return [group for group in groups if group.slots]


@torch.no_grad()
def select_beforehand(system: RetrievalSystem, lookup: Lookup, known: int) -> Int[Tensor, "items retrieved"]:
    """What the first `known` items select as inputs with the queries as they are."""
    if system.num_retrieved == 0:
        return torch.empty(known, 0, dtype=torch.long)
    assert system.group_sizes is not None
    found = []
    for first in range(0, known, TILE):
        inputs = lookup.inputs_at(torch.arange(first, min(first + TILE, known)))
        queries = system.distinct_queries(system.encode(inputs.features), inputs.own_keys)
        found.append(top_of_groups(queries, system.group_sizes, inputs.keys, inputs.visible))
    return torch.cat(found)


@torch.no_grad()
def calibrated_sharpness(lookup: Lookup, trained: Int[Tensor, " inputs"], sample: int = SHARPENED) -> float:
    """How much an input's own key has to be scaled for its perplexity over what it sees to be PERPLEXITY."""
    chosen = trained[torch.linspace(len(trained) // 3, len(trained) - 1, min(sample, len(trained))).long()]
    view = lookup.view
    seen = view.visible(view.at("time", chosen), lookup.window)
    keys = view.items.key.float()
    scale = (keys.shape[1] + 1) ** -0.5
    products = [
        keys[start:stop] @ own * scale
        for own, start, stop in zip(
            view.at("key", chosen).float(), seen.start.tolist(), seen.stop.tolist(), strict=True
        )
        if stop - start > PERPLEXITY
    ]
    low, high = -3.0, 9.0
    for _ in range(20):
        middle = (low + high) / 2
        entropies = [_entropy(math.exp(middle) * product) for product in products]
        if entropies and sum(entropies) / len(entropies) > math.log(PERPLEXITY):
            low = middle
        else:
            high = middle
    return math.exp(low) if products else 1.0


def _entropy(logits: Float[Tensor, " items"]) -> float:
    log_p = logits.log_softmax(0)
    return float(-(log_p.exp() * log_p).sum())
