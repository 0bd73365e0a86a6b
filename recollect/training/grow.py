"""Grows boosted trees on the past with LightGBM, and copies them into tensors: answering then takes torch alone.

LightGBM is imported when the first trees are grown: it takes a second.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from recollect.errors import SettingError
from recollect.model.encoders import FlatEncoder, column_places
from recollect.model.trees import Trees
from recollect.records import Features, FeatureSpec

DEPTH = 6
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
the two numbers that tell all behind the columns of a text. The zeros and ones of categories don't count: LightGBM puts
them together."""

SHRINKAGE = 1.0
"""How strongly the values of leaves are held at nothing where there are more than two classes. Trees of a rare class
meet hardly any curvature where it is not expected; unheld, single steps then go so far that all answers are wrong."""

SETTINGS = {
    "learning_rate": 0.1,
    "num_leaves": 31,
    "max_depth": DEPTH,
    "max_bin": 63,
    "verbose": -1,
    "num_threads": 1,
    # Row by row, since else it times both ways and takes the faster, which is not the same from run to run.
    "deterministic": True,
    "force_row_wise": True,
    "use_missing": False,
}


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
    encoder = FlatEncoder(specs)
    most = min(MOST_ROWS, MOST_NUMBERS // max(1, encoder.flat_width))

    def table(rows: Int[Tensor, " given"]) -> tuple[Float[np.ndarray, "some columns"], Int[np.ndarray, " some"]]:
        # In a refit there may be classes that the model has no place for.
        rows = rows[torch.from_numpy(labels)[rows] < num_classes][-most:]
        with torch.no_grad():
            flat: Tensor = encoder({name: value[rows] for name, value in features.items()}, (len(rows),))
        return flat.numpy(), labels[rows.numpy()]

    of_trained, targets = table(trained)
    of_held_out, foretold = table(held_out)
    if not len(foretold) or of_trained.size == 0 or bool((targets == targets[0]).all()):
        return None
    lightgbm = _lightgbm()
    settings: dict[str, Any] = {
        **SETTINGS,
        "seed": seed,
        "objective": "binary" if num_classes == 2 else "multiclass",
        "min_data_in_leaf": min(20, max(2, len(targets) // 50)),
        "feature_fraction": min(1.0, MANY_COLUMNS / max(1, encoder.flat_width - _of_categories(specs))),
    }
    if num_classes > 2:
        settings |= {"num_class": num_classes, "lambda_l2": SHRINKAGE}
    grown = lightgbm.Dataset(of_trained, targets)
    judged, stopping = grown.create_valid(of_held_out, foretold), lightgbm.early_stopping(PATIENCE, verbose=False)
    rounds = MOST_ROUNDS if num_classes == 2 else max(1, min(MOST_ROUNDS, MOST_TREES // num_classes))
    booster = lightgbm.train(settings, grown, rounds, valid_sets=[judged], callbacks=[stopping])
    best = booster.best_iteration or None
    kept = booster.dump_model(num_iteration=best)["tree_info"]
    known = torch.zeros(num_classes, dtype=torch.bool)
    known[torch.from_numpy(targets).unique()] = True
    trees = _as_tensors([each["tree_structure"] for each in kept], specs, known)
    return Grown(trees, _of_columns(torch.from_numpy(booster.feature_importance("gain", best)), specs))


def _of_categories(specs: Sequence[FeatureSpec]) -> int:
    return sum(spec.width for spec in specs if spec.kind == "categorical")


def _lightgbm() -> Any:
    """Without the warnings of what it imports beside: on a full disk joblib has one, and we tell that in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import lightgbm
        except OSError as error:  # the library it is made of
            raise SettingError(
                f"LightGBM can't be loaded ({error}): install the OpenMP library of your system, libgomp1 on Debian or "
                "libomp on macOS"
            ) from error
    return lightgbm


def _of_columns(gains: Float64[Tensor, " flat"], specs: Sequence[FeatureSpec]) -> Float64[Tensor, " columns"]:
    """What a feature's Fourier bands gained is shared by its columns."""
    return torch.cat([gains[own] + gains[bands].sum() / max(1, len(gains[own])) for bands, own in column_places(specs)])


def _as_tensors(
    roots: Sequence[dict[str, Any]], specs: Sequence[FeatureSpec], known: Bool[Tensor, " classes"]
) -> Trees:
    nodes = (1 << DEPTH) - 1
    column = torch.zeros(len(roots), nodes, dtype=torch.long)
    threshold = torch.zeros(len(roots), nodes)
    value = torch.zeros(len(roots), nodes + 1)
    for tree, root in enumerate(roots):
        for place, node in _walk(root, 0):
            if place >= nodes:
                value[tree, place - nodes] = node["leaf_value"]
            elif "split_feature" in node:
                column[tree, place] = node["split_feature"]
                threshold[tree, place] = _at_most(node["threshold"])
    return Trees(specs, len(known), column, threshold, value, known)


def _walk(node: dict[str, Any], place: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every node of the complete tree with its place; below an early leaf stands the same leaf again and again."""
    yield place, node
    if place < (1 << DEPTH) - 1:
        for side, child in enumerate(("left_child", "right_child")):
            yield from _walk(node.get(child, node), 2 * place + 1 + side)


def _at_most(threshold: float) -> float:
    """The largest float32 not above a threshold: the same float32 numbers are at most either of them."""
    near = np.float32(threshold)
    return float(near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf)))
