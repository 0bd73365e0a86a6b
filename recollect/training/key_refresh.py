"""Keys made anew while training: the layer by which the classifier reads an input becomes the function that makes keys.

The paper leaves this open: keys are made once, by a function that knows nothing of the task. Here training stops every
now and then, what the network has learned of the features becomes new keys, and it goes on with what these select. No
item is rewritten: only keys are computed again, in memory or by `HistoryWriter.rekey`. What is fitted is fitted on the
past, and which keys are kept is decided by its held-out rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from jaxtyping import Float64
from lightning_fabric import Fabric
from torch import Tensor

from recollect.config import TrainSettings
from recollect.data.key_fitting import fit_projection
from recollect.data.keys import KeyFunction
from recollect.errors import SettingError
from recollect.model.encoders import column_places
from recollect.model.precedents import PrecedentClassifier
from recollect.model.query_generator import OwnKeyQueries
from recollect.model.system import RetrievalSystem
from recollect.records import Features, FeatureSpec
from recollect.training.batches import BatchSource
from recollect.training.loop import Progress, Run, train
from recollect.training.step import Objective

Keyed = TypeVar("Keyed")
"""Whatever depends on the keys: the function itself, the lookup, selections."""


def learned_keys(system: RetrievalSystem, past: Features, specs: Sequence[FeatureSpec], key_dim: int) -> KeyFunction:
    """Keys by which items are near each other that the classifier reads alike, as wide as the ones before."""
    return fit_projection(past, specs, reading_weights(system, specs), key_dim, sphere=True)


def reading_weights(system: RetrievalSystem, specs: Sequence[FeatureSpec]) -> Float64[Tensor, "columns width"]:
    """The classifier's first layer as a map of the features' columns; what it makes of Fourier bands is left out, since
    keys are linear in the features."""
    classifier = system.classifier
    if not isinstance(classifier, PrecedentClassifier):
        raise SettingError("keys are learned by the layer that reads inputs, which only precedents have: leave them be")
    weight = classifier.embed_input.weight.detach().double().cpu()
    return torch.cat([weight[:, own] for _, own in column_places(specs)], dim=1).T.contiguous()


def set_sharpness(system: RetrievalSystem, sharpness: Sequence[float]) -> None:
    """How sharply each group of slots asks from now on."""
    assert isinstance(system.query_generator, OwnKeyQueries)
    with torch.no_grad():
        system.query_generator.log_sharpness.copy_(torch.tensor(list(sharpness)).log().unsqueeze(1))


def train_refreshing(
    objective: Objective,
    first: Keyed,
    renewed: Callable[[], Keyed],
    rows: Callable[[Keyed], tuple[BatchSource, BatchSource | None]],
    refreshes: int,
    settings: TrainSettings,
    run: Run,
    fabric: Fabric | None = None,
) -> tuple[Keyed, Progress]:
    """Train in equal parts, with keys made anew between them; returns the keys that the best weights were found with.

    `rows` are those of training and of validation with given keys. The parts are one run that is stopped and resumed:
    optimiser and schedules go on as if nothing had happened.
    """
    if refreshes == 0:
        return first, train(objective, *rows(first), settings, run, fabric)
    every = -(-run.steps // (refreshes + 1))
    states = [first]
    with TemporaryDirectory() as folder:
        run = replace(run, checkpoints=Path(folder), checkpoint_every=run.steps)
        while True:
            part = replace(run, stop_after=min(run.steps, every * len(states)))
            progress = train(objective, *rows(states[-1]), settings, part, fabric)
            if progress.step == run.steps or progress.patience_ended(settings, run.validate_every):
                return states[max(0, progress.best_step - 1) // every], progress
            states.append(renewed())
