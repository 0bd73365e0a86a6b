"""From rows in order of time to a trained model: keys, a history of the past, queries that start sensibly, training.

Chooses from the data whatever the recipe leaves open: the unit of time, how sharply queries ask at first and how far
back each slot looks. Everything is fitted on what was known before the cutoff.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from lightning_fabric import Fabric
from torch import Tensor

from recollect.config import Recipe, with_model
from recollect.data.keys import KeyFunction, fit_pca
from recollect.errors import SettingError
from recollect.evaluation.stream import Stream
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.inputs import Lookup
from recollect.live import Live, TrainedOn
from recollect.model.build import SlotGroup
from recollect.model.system import RetrievalSystem
from recollect.records import Clock
from recollect.retrieval.top import top_of_groups
from recollect.trained import Trained
from recollect.training.batches import HistoryRows
from recollect.training.loop import Run, train
from recollect.training.objective import make_objective
from recollect.training.progress import StepBar
from recollect.training.step import Objective

HELD_OUT = 0.15
"""The newest part of the past: it decides when to stop, and is the first that heads are judged by."""

PERPLEXITY = 32.0
"""Queries ask so sharply at first that their probability is spread over about so many items."""

RECENT_SHARE = 0.5
"""Part of the slots that start as the most recent items; the others start as the nearest."""

HORIZON = 1000.0
"""The nearest slots prefer newer items: a logit is worth so many items of age at first."""

BARELY = 1e-3
WINDOW = 8192
KEY_DIM = 64
TILE = 256
LEAST_PAST = 20


@dataclass(frozen=True)
class Sizes:
    """How large the network is and how much it is trained; chosen from the data by `sizes_for`.

    `recent_share` of the slots hold the most recent items, the others the nearest; `window` is how many of the last
    items an input sees, None for all of them.
    """

    width: int
    num_retrieved: int
    steps: int
    batch_size: int
    patience: int
    validate_every: int
    validation_size: int
    recent_share: float = RECENT_SHARE
    window: int | None = WINDOW


@dataclass(frozen=True)
class Fitted:
    """A trained model over the history of a stream, rows after the cutoff included: they are seen in their time."""

    objective: Objective
    model: Trained
    lookup: Lookup
    trained: Int[Tensor, " inputs"]

    def live(self) -> Live:
        """The model over its own history."""
        found = self.model.live()
        found.follow(self.lookup.view.source)
        return found


def sizes_for(rows: int) -> Sizes:
    """More rows take more steps, up to a point; few rows are seen many times and stopped early."""
    steps = int(min(1500, max(200, 20 * math.sqrt(rows))))
    return Sizes(
        width=64,
        num_retrieved=32,
        steps=steps,
        batch_size=256,
        patience=6,
        validate_every=max(20, steps // 12),
        validation_size=1024,
    )


def history_of(stream: Stream, keys: KeyFunction, clock: Clock, window: int | None = WINDOW) -> Lookup:
    """All rows of a stream as items, in order of when their labels were known."""
    known_at = torch.from_numpy(stream.known_at)
    order = known_at.argsort(stable=True)
    features = {name: value[order] for name, value in stream.features.items()}
    history = MemoryHistory(
        features,
        keys(features),
        torch.from_numpy(stream.labels)[order],
        torch.from_numpy(stream.time)[order],
        known_at[order],
        keys.fingerprint,
    )
    view = KeyTable(clock, key_function=keys.fingerprint).follow(history)
    return Lookup(view, window=Window(items=window))


def fit(
    stream: Stream,
    recipe: Recipe,
    *,
    seed: int = 0,
    sizes: Sizes | None = None,
    fabric: Fabric | None = None,
    bar: StepBar | None = None,
) -> Fitted:
    """Train on what was known before the cutoff."""
    past = torch.from_numpy(stream.past)
    if len(past) < LEAST_PAST:
        raise SettingError(
            f"{len(past)} labels are known before the cutoff: choose a later one, {LEAST_PAST} are needed"
        )
    sizes = sizes or sizes_for(len(past))
    recipe = with_model(recipe, width=sizes.width, num_retrieved=sizes.num_retrieved)
    before = {name: value[past] for name, value in stream.features.items()}
    keys = fit_pca(before, stream.specs, KEY_DIM, sphere=True, fewer=True)
    times = stream.time[stream.past]
    clock = Clock(_plain(times[0]), max(_plain(times[-1] - times[0]), 1))
    lookup = history_of(stream, keys, clock, sizes.window)
    # Rows of the past in order of when they were known: the positions before the first that wasn't.
    known = int((lookup.view.items.known_at < stream.cutoff).sum())
    split = int((1 - HELD_OUT) * known)
    trained, held_out = torch.arange(split), torch.arange(split, known)
    groups = slot_groups(lookup, trained, recipe.model.num_retrieved, sizes.recent_share)
    objective = make_objective(
        recipe,
        stream.specs,
        stream.specs,
        key_dim=keys.key_dim,
        num_classes=stream.num_classes,
        label_classes=stream.num_classes,
        has_times=True,
        seed=seed,
        groups=groups,
    )
    rows = HistoryRows(lookup, trained, selected=select_beforehand(objective.system, lookup, known))
    settings = replace(recipe.train, patience=sizes.patience)
    run = Run(
        sizes.steps,
        sizes.batch_size,
        seed=seed,
        validate_every=sizes.validate_every,
        validation_size=min(sizes.validation_size, len(held_out)),
        bar=bar,
    )
    train(objective, rows, replace(rows, positions=held_out), settings, run, fabric)
    known_at = lookup.view.items.known_at
    until = _plain(known_at[split])
    trained_on = TrainedOn(until, split - TrainedOn(until).count(known_at))
    model = Trained(
        objective.system,
        recipe,
        tuple(groups),
        stream.specs,
        tuple(str(code) for code in range(stream.num_classes)),
        keys,
        clock,
        trained_on,
        sizes.window,
    )
    return Fitted(objective, model, lookup, trained)


def _plain(value: Any) -> int | float:
    number: int | float = value.item()
    return number


def slot_groups(
    lookup: Lookup, trained: Int[Tensor, " inputs"], slots: int, recent_share: float = RECENT_SHARE
) -> list[SlotGroup]:
    """Slots that start as the most recent items, and slots that start as the nearest; a group of none is left out."""
    items, recent = len(trained), round(recent_share * slots)
    groups = [
        SlotGroup(recent, BARELY, float(items)),
        SlotGroup(slots - recent, calibrated_sharpness(lookup, trained), items / HORIZON),
    ]
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
def calibrated_sharpness(lookup: Lookup, trained: Int[Tensor, " inputs"], sample: int = 128) -> float:
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
