"""From rows in order of time to a trained model: keys, a history of the past, queries that start sensibly, training.

Chooses from the data whatever the recipe leaves open: the unit of time, how sharply queries ask at first and how far
back each slot looks. Everything is fitted on what was known before the cutoff.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from lightning_fabric import Fabric
from torch import Tensor

from recollect.answering.live import Live, TrainedOn
from recollect.config import Recipe, with_model
from recollect.data.keys import KeyFunction
from recollect.data.splits import LEAST_PAST, held_out_from
from recollect.errors import SettingError
from recollect.evaluation.stream import Stream
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.inputs import Lookup
from recollect.model.build import SlotGroup
from recollect.records import TERMS, Clock
from recollect.trained import Trained
from recollect.training.batches import HistoryRows
from recollect.training.choose_keys import fit_keys
from recollect.training.grow import grow_trees
from recollect.training.judge import pool_by, spread, trees_harm
from recollect.training.key_refresh import learned_keys, set_sharpness, train_refreshing
from recollect.training.loop import Run
from recollect.training.objective import make_objective
from recollect.training.one_thread import one_thread
from recollect.training.progress import StepBar
from recollect.training.slots import RECENT_SHARE, select_beforehand, slot_groups
from recollect.training.step import Objective

WINDOW = 8192
KEY_DIM = 64
STEPS, MOST_STEPS = 1000, 3000
BATCH = 128
ROWS_PER_STEP = 16
"""More rows take more steps, up to a point: each is seen some eight times."""

FEW = 1000
"""Fewer rows than this are learned by a smaller network in fewer steps."""

STEPS_PER_ROW = 1.25
"""Where there are few. With half as many the plain network falls behind; with twice as many it learns them by heart."""


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
    """A trained model over the history of a stream, rows after the cutoff included: they are seen in their time.

    `held_out_loss` is the lowest there was on the newest part of the past, plain plus rehearsed.
    """

    objective: Objective
    model: Trained
    lookup: Lookup
    trained: Int[Tensor, " inputs"]
    held_out_loss: float

    def live(self) -> Live:
        """The model over its own history."""
        found = self.model.live()
        found.follow(self.lookup.view.source)
        return found


@dataclass(frozen=True)
class Keyed:
    """A history by certain keys, how slots ask it, and what its first items select."""

    keys: KeyFunction
    lookup: Lookup
    groups: list[SlotGroup]
    selected: Int[Tensor, "items retrieved"] | None = None


def sizes_for(rows: int) -> Sizes:
    """More rows take more steps, up to a point; few rows take few, and nothing of a fit then takes long."""
    if rows < FEW:
        return _few_sizes(rows)
    steps = max(STEPS, min(MOST_STEPS, rows // ROWS_PER_STEP))
    return Sizes(
        width=64,
        num_retrieved=32,
        steps=steps,
        batch_size=BATCH,
        patience=6,
        validate_every=steps // 12,
        validation_size=1024,
    )


def _few_sizes(rows: int) -> Sizes:
    """Steps by the number of rows, and a slot for every sixteen of them."""
    steps = max(24, min(STEPS, int(STEPS_PER_ROW * rows)))
    return Sizes(
        width=64 if rows >= FEW // 2 else 32,
        num_retrieved=min(32, max(4, rows // 32 * 2)),
        steps=steps,
        batch_size=max(16, 1 << (rows // 8).bit_length()),
        patience=6,
        validate_every=max(6, steps // 12),
        validation_size=1024,
    )


def history_of(stream: Stream, keys: KeyFunction, clock: Clock, window: int | None = WINDOW) -> Lookup:
    """All rows of a stream as items, in order of when their labels were known."""
    known_at = torch.from_numpy(stream.known_at)
    order = known_at.argsort(stable=True)
    features = stream.features
    if bool((known_at[1:] < known_at[:-1]).any()):  # else they are in order: no copy, and what is mapped stays on disk
        features = {name: value[order] for name, value in features.items()}
    history = MemoryHistory(
        features,
        keys(features),
        torch.from_numpy(stream.labels)[order],
        torch.from_numpy(stream.time)[order],
        known_at[order],
        keys.fingerprint,
    )
    view = KeyTable(clock, key_function=keys.fingerprint).follow(history)
    return Lookup(view, window=Window(items=window), columns=tuple(spec.name for spec in stream.specs))


def fit(
    stream: Stream,
    recipe: Recipe,
    *,
    seed: int = 0,
    sizes: Sizes | None = None,
    fabric: Fabric | None = None,
    bar: StepBar | None = None,
    key_refreshes: int = 0,
    least_past: int = LEAST_PAST,
    keys: KeyFunction | None = None,
) -> Fitted:
    """Train on what was known before the cutoff, with keys made anew by what was learned so many times meanwhile.
    `keys` are those to begin with, where there are some already.

    After the cutoff there may be nothing.
    """
    past = torch.from_numpy(stream.past)
    if len(past) < least_past:
        raise SettingError(
            f"{len(past)} labels are known to train on, {least_past} are needed: give more rows, or a later cutoff if "
            "there is one"
        )
    sizes = sizes or sizes_for(len(past))
    recipe = with_model(recipe, width=sizes.width, num_retrieved=sizes.num_retrieved)
    times = stream.time[stream.past]
    clock = Clock(_plain(times[0]), max(_plain(times[-1] - times[0]), 1))
    # Rows of the past in order of when they were known: the positions before the first that wasn't.
    known = int((stream.known_at < stream.cutoff).sum())
    split = held_out_from(known)
    trained, held_out = torch.arange(split), torch.arange(split, known)

    def keyed(keys: KeyFunction) -> Keyed:
        lookup = history_of(stream, keys, clock, sizes.window)
        return Keyed(keys, lookup, slot_groups(lookup, trained, sizes.num_retrieved, sizes.recent_share))

    def selecting(state: Keyed) -> Keyed:
        return replace(state, selected=select_beforehand(objective.system, state.lookup, known))

    def renewed() -> Keyed:
        state = keyed(learned_keys(objective.system, stream.read(past), stream.specs, first.keys.key_dim))
        set_sharpness(objective.system, [group.sharpness for group in state.groups])
        return selecting(state)

    def rows(state: Keyed) -> tuple[HistoryRows, HistoryRows | None]:
        training = HistoryRows(state.lookup, trained, state.selected)
        return training, replace(training, positions=held_out) if len(held_out) else None

    by_label = past[torch.from_numpy(stream.known_at)[past].argsort(stable=True)]
    grown = grow_trees(
        stream.features, stream.labels, by_label[:split], by_label[split:], stream.specs, stream.num_classes, seed
    )
    relevance = None if grown is None else grown.relevance
    first = keyed(keys or fit_keys(stream, by_label, len(held_out), KEY_DIM, relevance))
    objective = make_objective(
        recipe,
        stream.specs,
        stream.specs,
        key_dim=first.keys.key_dim,
        num_classes=stream.num_classes,
        label_classes=stream.num_classes,
        has_times=True,
        seed=seed,
        groups=first.groups,
    )
    settings = replace(recipe.train, patience=sizes.patience if len(held_out) else None)
    run = Run(
        sizes.steps,
        sizes.batch_size,
        seed=seed,
        validate_every=sizes.validate_every,
        validation_size=min(sizes.validation_size, len(held_out)),
        bar=bar,
    )
    refreshes = key_refreshes if sizes.num_retrieved else 0
    selected = selecting(first)
    # On two cores a step of these small networks takes half as long again with two threads.
    with one_thread():
        best, progress = train_refreshing(objective, selected, renewed, rows, refreshes, settings, run, fabric)
    if refreshes:
        set_sharpness(objective.system, [group.sharpness for group in best.groups])
    known_at = best.lookup.view.items.known_at
    until = _plain(known_at[min(split, known - 1)])
    trained_on = TrainedOn(until, split - TrainedOn(until).count(known_at))
    model = Trained(
        objective.system,
        recipe,
        tuple(best.groups),
        stream.specs,
        tuple(str(code) for code in range(stream.num_classes)),
        best.keys,
        clock,
        trained_on,
        sizes.window,
        trees=None if grown is None else grown.trees,
        terms=TERMS in stream.features,
    )
    if grown is not None and trees_harm(model.predictor, best.lookup, held_out[spread(0, len(held_out))]):
        model = replace(model, trees=None)
    fitted = Fitted(objective, model, best.lookup, trained, progress.best_loss)
    if not len(held_out) or not sizes.num_retrieved:  # a plain classifier has no heads to pool
        return fitted
    with one_thread():
        return replace(fitted, model=replace(model, pool=pool_by(fitted.live(), held_out)))


def _plain(value: Any) -> int | float:
    number: int | float = value.item()
    return number
