"""From a recipe and the shape of some data to an objective ready to train, and the device it trains on."""

from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from recollect.config import Recipe
from recollect.errors import SettingError
from recollect.model.build import build_system
from recollect.predictor import Predictor
from recollect.records import FeatureSpec
from recollect.training.step import Objective


def make_fabric(log: Path | None, name: str) -> Fabric:
    """The GPU if there is one, else the CPU; with `log`, curves for TensorBoard go to `log/name`."""
    # Not "auto": it would choose Apple's, which has no float64, and times need it.
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    if log is None:
        return Fabric(accelerator=accelerator, devices=1)
    try:
        logger = TensorBoardLogger(root_dir=log, name=name.replace(" ", "-"))
    except ModuleNotFoundError as error:
        raise SettingError("logging needs tensorboard, which is not installed: pip install 'recollect[log]'") from error
    return Fabric(accelerator=accelerator, devices=1, loggers=[logger])


def make_objective(
    recipe: Recipe,
    input_specs: list[FeatureSpec],
    item_specs: list[FeatureSpec],
    *,
    key_dim: int,
    num_classes: int,
    label_classes: int,
    has_times: bool,
    seed: int,
) -> Objective:
    """A freshly initialised objective. Items without times have no ages and no recency, whatever the recipe says."""
    model = recipe.model
    ages = model.ages and has_times
    # The only global randomness there is: PyTorch initialises layers from it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        system = build_system(
            model.architecture,
            input_specs,
            item_specs if model.retrieve == "items" else [],
            key_dim=key_dim,
            num_classes=num_classes,
            label_classes=label_classes,
            num_retrieved=model.num_retrieved,
            width=model.width,
            hidden=model.hidden,
            heads=model.heads,
            latents=model.latents,
            blocks=model.blocks,
            ages=ages,
            recency=model.recency if has_times else None,
            similarity=model.similarity,
        )
    labels_only = model.retrieve == "labels"
    return Objective(system, recipe.step, num_classes, retrieve_labels_only=labels_only, ages=ages)


def make_predictor(objective: Objective, recipe: Recipe) -> Predictor:
    return Predictor(
        objective.system,
        temperature=recipe.train.last_temperature,
        retrieve=recipe.model.retrieve,
        ages=objective.ages,
    )
