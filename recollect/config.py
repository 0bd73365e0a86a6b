"""Settings as plain data: what a recipe is, and the three recipes there are.

Nothing here computes. Modules take plain arguments; only training and what stands above it reads these records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from recollect.errors import SettingError

FETCH_BUDGET = 32
"""Items fetched per input and step where the number of chains is left open."""

RecipeName = Literal["default", "paper", "no_context"]
Scale = Literal["quick", "default", "paper"]


@dataclass(frozen=True)
class ModelSettings:
    """Shape of the networks. `recency` is where that coordinate's query starts, in logits per unit of time; None: none.

    `dates` lets models see absolute time, as the paper does; `ages` shows the classifier how old each item is.
    `pointer` makes part of each class probability the attention on items of that class; `differences` shows the
    classifier how each item differs from the input.
    `similarity` mixes learned queries with the input's own key; "only" asks with that key and learns no query.
    """

    architecture: Literal["mlp", "perceiver", "precedents"] = "precedents"
    width: int = 128
    hidden: tuple[int, ...] = ()
    heads: int = 4
    latents: int = 128
    blocks: int = 2
    num_retrieved: int = 16
    retrieve: Literal["items", "labels"] = "items"
    ages: bool = True
    pointer: bool = True
    differences: bool = True
    dates: bool = False
    recency: float | None = 60.0
    similarity: bool | Literal["only"] = False


@dataclass(frozen=True)
class Dropouts:
    """Probabilities of hiding from the classifier the input, single slots, or all slots at once."""

    input: float = 0.0
    item: float = 0.0
    context: float = 0.0


@dataclass(frozen=True)
class RehearsalMix:
    """How often an input is rehearsed, and with what kind of rule; each its own probability.

    A share `trusting` of the inputs is never rehearsed, and the classifier is told which: so it learns to answer both
    as if nothing had changed and as if anything might have. `probability` is that of the others.
    A rule swaps its classes round, or merges them into one; it involves two classes, or three with `three`; it holds
    everywhere, or in a random half-space of keys with `region`; since ever, or since a random change point with
    `change_point`. With `novel` one of the classes is one that training has no label for.
    """

    probability: float = 0.0
    merge: float = 0.15
    three: float = 0.2
    region: float = 0.2
    change_point: float = 0.5
    novel: float = 0.05
    trusting: float = 0.0


@dataclass(frozen=True)
class StepSettings:
    """How one step estimates its gradient. The last two are terms of the paper's that it found unhelpful.

    `samples` is the number of chains drawn per input; None draws as many as fetch `FETCH_BUDGET` items, and at least 2.
    """

    estimator: Literal["greedy_baseline", "leave_one_out", "label_marginal", "multi_sample"] = "leave_one_out"
    pathwise: Literal["sampled", "greedy"] = "sampled"
    samples: int | None = None
    dropouts: Dropouts = Dropouts()
    rehearsal: RehearsalMix = RehearsalMix()
    diversity_weight: float = 0.0
    similarity_weight: float = 0.0


@dataclass(frozen=True)
class TrainSettings:
    """The optimiser and what changes over a run. `clip` bounds the gradient's norm, None for no bound."""

    learning_rate: float = 1e-3
    retrieval_rate_factor: float = 10.0
    weight_decay: float = 0.01
    scheduled: bool = True
    clip: float | None = 1.0
    clip_jointly: bool = True
    first_temperature: float = 1.0
    last_temperature: float = 1.0
    entropy_bonus: float = 0.0
    patience: int | None = None


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what is learned from given data, apart from sizes and seeds."""

    model: ModelSettings = ModelSettings()
    step: StepSettings = StepSettings()
    train: TrainSettings = TrainSettings()


def chains_for(settings: StepSettings, num_retrieved: int) -> int:
    """How many chains a step draws per input."""
    if settings.samples is None:
        return max(2, FETCH_BUDGET // max(1, num_retrieved))
    if settings.samples < 1:
        raise SettingError(f"samples is {settings.samples}: draw at least 1 chain, or leave it at None")
    return settings.samples


_PLAIN = TrainSettings(retrieval_rate_factor=1.0, scheduled=False, clip=None)

RECIPES: dict[RecipeName, Recipe] = {
    # Ours: attention over precedents, recency and ages, rehearsed drift.
    "default": Recipe(
        step=StepSettings(
            estimator="leave_one_out",
            dropouts=Dropouts(input=0.1, context=0.1),
            rehearsal=RehearsalMix(0.6, trusting=0.5),
        ),
        train=TrainSettings(learning_rate=2e-3),
    ),
    # The paper's synthetic settings; each experiment sets its own widths and learning rate.
    "paper": Recipe(
        model=ModelSettings("mlp", 512, (512,), ages=False, dates=True, recency=None),
        step=StepSettings(estimator="greedy_baseline", pathwise="greedy", samples=1),
        train=_PLAIN,
    ),
    # The plain classifier: the same nets without any slot.
    "no_context": Recipe(
        model=ModelSettings("mlp", 512, (512, 512), num_retrieved=0, ages=False, dates=True, recency=None),
        step=StepSettings(estimator="greedy_baseline", samples=1),
        train=_PLAIN,
    ),
}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        raise SettingError(f"there is no recipe {name!r}: choose from {', '.join(RECIPES)}")
    return RECIPES[name]


def recipe_from_json(plain: Mapping[str, Any]) -> Recipe:
    """What `dataclasses.asdict` made of a recipe, after a way through JSON."""
    model, step = dict(plain["model"]), dict(plain["step"])
    model["hidden"] = tuple(model["hidden"])
    step["dropouts"] = Dropouts(**step["dropouts"])
    step["rehearsal"] = RehearsalMix(**step["rehearsal"])
    return Recipe(ModelSettings(**model), StepSettings(**step), TrainSettings(**plain["train"]))


def with_model(recipe: Recipe, **changes: object) -> Recipe:
    """The same recipe with other model settings."""
    return replace(recipe, model=replace(recipe.model, **changes))  # type: ignore[arg-type]


def with_train(recipe: Recipe, **changes: object) -> Recipe:
    """The same recipe with other training settings."""
    return replace(recipe, train=replace(recipe.train, **changes))  # type: ignore[arg-type]


def with_step(recipe: Recipe, **changes: object) -> Recipe:
    """The same recipe with other step settings."""
    return replace(recipe, step=replace(recipe.step, **changes))  # type: ignore[arg-type]
