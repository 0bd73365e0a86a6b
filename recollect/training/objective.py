"""From a recipe and the shape of some data to an objective ready to train, and from that to a predictor."""

from collections.abc import Sequence

import torch

from recollect.config import Recipe
from recollect.model.build import SlotGroup
from recollect.predictor import Predictor
from recollect.records import FeatureSpec
from recollect.trained import make_system
from recollect.training.step import Objective


def make_objective(
    recipe: Recipe,
    input_specs: Sequence[FeatureSpec],
    item_specs: Sequence[FeatureSpec],
    *,
    key_dim: int,
    num_classes: int,
    label_classes: int,
    has_times: bool,
    seed: int,
    groups: Sequence[SlotGroup] | None = None,
) -> Objective:
    """A freshly initialised objective. Items without times have no ages and no recency, whatever the recipe says.

    With `groups` slots share queries, and each group says how recent it starts.
    """
    # The only global randomness there is: PyTorch initialises layers from it.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        system = make_system(
            recipe,
            input_specs,
            item_specs,
            key_dim=key_dim,
            num_classes=num_classes,
            label_classes=label_classes,
            has_times=has_times,
            groups=groups,
        )
    ages = recipe.model.ages and has_times
    labels_only = recipe.model.retrieve == "labels"
    return Objective(system, recipe.step, num_classes, retrieve_labels_only=labels_only, ages=ages)


def make_predictor(objective: Objective, recipe: Recipe) -> Predictor:
    return Predictor(
        objective.system,
        temperature=recipe.train.last_temperature,
        retrieve=recipe.model.retrieve,
        ages=objective.ages,
    )
