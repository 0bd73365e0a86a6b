"""Grows boosted trees on the past, to stay beside the network: which rows they are grown on and when that stops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from recollect.model.boosting import Growth, Rows, boosted, table_of
from recollect.model.encoders import FlatEncoder, column_places
from recollect.model.trees import Trees
from recollect.records import Features, FeatureSpec

DEPTH, LEAVES = 6, 31
MOST_ROUNDS = 200
MOST_TREES = 600
"""With many classes there are fewer rounds: each round has a tree for every class."""

PATIENCE = 15
"""Growing stops when the held-out rows have not been answered better for so many rounds."""

MOST_ROWS = 200_000
MOST_NUMBERS = 1 << 26
"""In the table that trees are grown on: a quarter of a gigabyte, and a full one with all that is made of it."""

MANY_COLUMNS = 512
"""Of more columns than this only so many are tried for a tree, or wide embeddings would take minutes. Fewer would hide
the two numbers that tell all behind the columns of a text."""


@dataclass(frozen=True)
class Grown:
    """Trees, and how much each column of the features told them of the labels: what splits by it gained in all."""

    trees: Trees
    relevance: Float64[Tensor, " columns"]


def grow_trees(
    features: Features,
    labels: Int[np.ndarray, " rows"],
    trained: Int[Tensor, " trained"],
    held_out: Int[Tensor, " held_out"],
    specs: Sequence[FeatureSpec],
    num_classes: int,
    seed: int,
) -> Grown | None:
    """Trees grown on the rows `trained`, oldest first, and stopped by those `held_out`.

    None where nothing is held out, since they would learn the others by heart, and where the rows don't differ in
    anything or all have one label. Of very many rows the newest are taken.
    """
    most = min(MOST_ROWS, MOST_NUMBERS // max(1, FlatEncoder(specs).flat_width))

    def read(rows: Int[Tensor, " given"]) -> Rows:
        # In a refit there may be classes that the model has no place for.
        rows = rows[torch.from_numpy(labels)[rows] < num_classes][-most:]
        return table_of({name: value[rows] for name, value in features.items()}, specs), labels[rows.numpy()]

    (table, targets), judges = read(trained), read(held_out)
    if not len(judges[1]) or table.size == 0 or bool((targets == targets[0]).all()):
        return None
    growth = Growth(
        rounds=MOST_ROUNDS if num_classes == 2 else max(1, min(MOST_ROUNDS, MOST_TREES // num_classes)),
        depth=DEPTH,
        leaves=LEAVES,
        least_rows=min(20, max(2, len(targets) // 50)),
        many_columns=MANY_COLUMNS,
        seed=seed,
    )
    found = boosted((table, targets), specs, num_classes, growth, (judges, PATIENCE))
    return Grown(found.trees, _of_columns(found.gains, specs))


def _of_columns(gains: Float64[Tensor, " flat"], specs: Sequence[FeatureSpec]) -> Float64[Tensor, " columns"]:
    """What a feature's Fourier bands gained is shared by its columns."""
    return torch.cat([gains[own] + gains[bands].sum() / max(1, len(gains[own])) for bands, own in column_places(specs)])
