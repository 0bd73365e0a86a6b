"""The paper's recipe for reviews: its networks, its bag of tricks as switches, its splits and its baselines.

Takes any stream with a key for every row, and answers rows of it; knows neither files nor embedders, and judges no
answer.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float32
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from recollect.config import Dropouts, ModelSettings, Recipe, Scale, StepSettings, TrainSettings
from recollect.data.splits import Splits, SplitSizes, split_past
from recollect.evaluation.stream import Stream
from recollect.history.visibility import Window
from recollect.predictor import Predictor
from recollect.reproduction.fabric import make_fabric
from recollect.reproduction.stream_rows import Examples, look_up
from recollect.training.loop import Run, train
from recollect.training.objective import make_objective, make_predictor
from recollect.training.progress import Display

Architecture = Literal["perceiver", "mlp"]

Trick = Literal[
    "similarity_residual",
    "input_dropout",
    "item_dropout",
    "retrieval_rate",
    "temperature_decay",
    "weight_decay",
    "clipping",
    "rate_schedule",
    "entropy_bonus",
    "diversity",
    "similarity_term",
]
UNHELPFUL: frozenset[Trick] = frozenset({"entropy_bonus", "diversity", "similarity_term"})
"""What the paper tried on this data and left out; how strong, it doesn't say."""

BAG_OF_TRICKS: frozenset[Trick] = frozenset(get_args(Trick)) - UNHELPFUL

ASKED_AT_ONCE = 1024


@dataclass(frozen=True)
class Variant:
    """What of the paper's experiment is run.

    `retrieval`: by learned queries, by similarity alone (the paper's alpha = 0, nothing learned), or no context.
    """

    architecture: Architecture = "perceiver"
    retrieve: Literal["labels", "items"] = "labels"
    retrieval: Literal["learned", "similarity", "none"] = "learned"
    tricks: frozenset[Trick] = BAG_OF_TRICKS


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks, of the training and of the splits. `hidden` are the widths of the MLP's nets."""

    width: int
    latents: int
    heads: int
    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    validate_every: int
    validation_size: int
    splits: SplitSizes


# Where there are few reviews, the paper's proportions would leave one in forty to train on: the smaller scales give
# examples a larger share. With the input hidden nine times in ten the Perceiver answers the same to all for its first
# few hundred steps: small batches make more of them.
_FOR_FEW = SplitSizes(40_000, 20_000, 5_000, 10_000)

SIZES: dict[Scale, Sizes] = {
    "quick": Sizes(32, 4, 4, (64,), 10, 32, 100, 512, SplitSizes(4_000, 4_000, 500, 1_500)),
    "default": Sizes(64, 8, 4, (128, 128), 4, 64, 200, 2048, _FOR_FEW),
    "paper": Sizes(512, 128, 8, (512, 512), 100, 1024, 98, 20_000, SplitSizes()),
}


def reviews_recipe(variant: Variant, sizes: Sizes) -> Recipe:
    """The appendix's settings."""
    model = ModelSettings(
        variant.architecture,
        sizes.width,
        sizes.hidden,
        sizes.heads,
        sizes.latents,
        blocks=2,
        num_retrieved=4 if variant.retrieval != "none" else 0,
        retrieve=variant.retrieve,
        ages=False,
        dates=False,
        recency=None,
        similarity="only" if variant.retrieval == "similarity" else False,
    )
    step = StepSettings(estimator="greedy_baseline", pathwise="greedy", samples=1)
    return with_tricks(Recipe(model, step, TrainSettings(learning_rate=1e-3)), variant.tricks, temperature=0.01)


def with_tricks(recipe: Recipe, tricks: frozenset[Trick], *, temperature: float) -> Recipe:
    """A recipe with some tricks of the bag; without one it has what PyTorch, or no such trick, would have."""

    def has(trick: Trick) -> bool:
        return trick in tricks

    by_similarity = recipe.model.similarity == "only"
    return Recipe(
        recipe.model if by_similarity else replace(recipe.model, similarity=has("similarity_residual")),
        replace(
            recipe.step,
            dropouts=Dropouts(
                # cls_stage_dropout_rate and query_dropout_rate. Without context the input is all there is.
                input=0.9 if has("input_dropout") and recipe.model.num_retrieved else 0.0,
                item=0.1 if has("item_dropout") else 0.0,
            ),
            diversity_weight=0.1 if has("diversity") else 0.0,
            similarity_weight=0.1 if has("similarity_term") else 0.0,
        ),
        replace(
            recipe.train,
            retrieval_rate_factor=10.0 if has("retrieval_rate") else 1.0,
            weight_decay=1e-4 if has("weight_decay") else 0.0,
            scheduled=has("rate_schedule"),
            clip=1.0 if has("clipping") else None,
            first_temperature=temperature,
            last_temperature=temperature / 10 if has("temperature_decay") else temperature,
            entropy_bonus=0.01 if has("entropy_bonus") else 0.0,
        ),
    )


def run_paper_recipe(
    stream: Stream,
    keys: Float[Tensor, "rows key_dim"],
    variant: Variant,
    scale: Scale,
    seed: int,
    *,
    trainable: NDArray[np.int64] | None = None,
    asked: NDArray[np.int64] | None = None,
    display: Display | None = None,
) -> Float32[np.ndarray, "asked classes"]:
    """Train on rows of the past and answer the asked ones with frozen weights: log-probabilities of the classes.

    `keys` are those of all rows; in the paper the first 64 columns of the raw embedding. They are brought to unit
    length here: the paper's similarity is the cosine, and its temperatures are made for that. `trainable` are rows of
    the stream's past, by default all of it: whoever asks rows of the past too takes them out here. `asked` are, by
    default, all rows from the cutoff on.
    """
    keys = keys / keys.norm(dim=1, keepdim=True, dtype=torch.float32).clamp(min=1e-12).to(keys.dtype)
    sizes, fabric = SIZES[scale], make_fabric(None, "")
    splits = papers_splits(stream, scale, seed, trainable)
    predictor = learn(stream, keys, splits, variant, sizes, seed, fabric, display)
    return ask(predictor, stream, keys, stream.asked if asked is None else asked, len(splits.train_history), fabric)


def papers_splits(stream: Stream, scale: Scale, seed: int, trainable: NDArray[np.int64] | None = None) -> Splits:
    """What a run with this seed trains on, and what it looks up in training."""
    past = stream.past if trainable is None else np.intersect1d(trainable, stream.past)
    return split_past(past, SIZES[scale].splits, np.random.default_rng(seed))


def learn(
    stream: Stream,
    keys: Float[Tensor, "rows key_dim"],
    splits: Splits,
    variant: Variant,
    sizes: Sizes,
    seed: int,
    fabric: Fabric,
    display: Display | None = None,
) -> Predictor:
    """Train on the examples of a split, and keep the weights that were best on its validation examples."""
    recipe = reviews_recipe(variant, sizes)
    specs = list(stream.specs)
    objective = make_objective(
        recipe,
        specs,
        specs,
        key_dim=keys.shape[1],
        num_classes=stream.num_classes,
        label_classes=stream.num_classes,
        has_times=True,
        seed=seed,
    )

    def examples(rows: NDArray[np.int64], history: NDArray[np.int64]) -> Examples:
        items = variant.retrieve == "items"
        return Examples(stream, keys, rows, look_up(stream, keys, history, items=items, device=fabric.device))

    steps = sizes.epochs * math.ceil(len(splits.train) / sizes.batch_size)
    run = Run(
        steps,
        sizes.batch_size,
        seed,
        sizes.validate_every,
        min(sizes.validation_size, len(splits.validation)),
        bar=None if display is None else display.bar(f"paper {variant.retrieval} {variant.retrieve}", steps),
    )
    validation = examples(splits.validation, splits.validation_history)
    train(objective, examples(splits.train, splits.train_history), validation, recipe.train, run, fabric)
    return make_predictor(objective, recipe)


def ask(
    predictor: Predictor,
    stream: Stream,
    keys: Float[Tensor, "rows key_dim"],
    asked: NDArray[np.int64],
    window: int,
    fabric: Fabric,
) -> Float32[np.ndarray, "asked classes"]:
    """Answer rows as of their own times; each sees the last `window` rows of the whole stream known strictly before."""
    everything = np.arange(len(stream))
    lookup = look_up(
        stream, keys, everything, items=predictor.retrieve == "items", window=Window(window), device=fabric.device
    )
    source = Examples(stream, keys, asked, lookup)
    answers = [
        predictor.predict(source.inputs(asked[first : first + ASKED_AT_ONCE])).log_probs.cpu()
        for first in range(0, len(asked), ASKED_AT_ONCE)
    ]
    return torch.cat(answers).numpy() if answers else np.empty((0, stream.num_classes), np.float32)
