"""Boosted trees grown by LightGBM and copied into tensors: answering with them then takes torch alone.

LightGBM is imported when the first trees are grown: it takes a second. Knows tables of numbers and labels, not whose.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from recollect.errors import SettingError
from recollect.model.encoders import FlatEncoder
from recollect.model.trees import Trees
from recollect.records import Features, FeatureSpec

SHRINKAGE = 1.0
"""How strongly the values of leaves are held at nothing where there are more than two classes. Trees of a rare class
meet hardly any curvature where it is not expected; unheld, single steps then go so far that all answers are wrong."""

SETTINGS = {
    "learning_rate": 0.1,
    "max_bin": 63,
    "verbose": -1,
    "num_threads": 1,
    # Row by row, since else it times both ways and takes the faster, which is not the same from run to run.
    "deterministic": True,
    "force_row_wise": True,
    "use_missing": False,
}

Rows = tuple[Float[np.ndarray, "_ columns"], Int[np.ndarray, " _"]]
"""A table as a `FlatEncoder` makes it, and the label of each row."""


@dataclass(frozen=True)
class Growth:
    """How large trees become and how many of them there are. For a tree no more than `many_columns` are tried, those of
    categories aside, which LightGBM puts together."""

    rounds: int
    depth: int
    leaves: int
    least_rows: int
    many_columns: int
    seed: int


@dataclass(frozen=True)
class Boosted:
    """Trees, and what splits by each column of the table gained in all."""

    trees: Trees
    gains: Float64[Tensor, " columns"]


def table_of(features: Features, specs: Sequence[FeatureSpec]) -> Float[np.ndarray, "rows columns"]:
    """Features side by side, as trees look at them."""
    with torch.no_grad():
        flat: Tensor = FlatEncoder(specs)(features, (len(next(iter(features.values()))),))
    return flat.numpy()


def boosted(
    rows: Rows,
    specs: Sequence[FeatureSpec],
    num_classes: int,
    growth: Growth,
    judges: tuple[Rows, int] | None = None,
) -> Boosted:
    """Trees of a table whose labels are below `num_classes` and not all the same; with `judges`, rows apart, growing
    stops when these have not been answered better for so many rounds."""
    lightgbm = _lightgbm()
    table, labels = rows
    of_categories = sum(spec.width for spec in specs if spec.kind == "categorical")
    settings: dict[str, Any] = {
        **SETTINGS,
        "seed": growth.seed,
        "num_leaves": growth.leaves,
        "max_depth": growth.depth,
        "min_data_in_leaf": growth.least_rows,
        "feature_fraction": min(1.0, growth.many_columns / max(1, table.shape[1] - of_categories)),
        "objective": "binary" if num_classes == 2 else "multiclass",
    }
    if num_classes > 2:
        settings |= {"num_class": num_classes, "lambda_l2": SHRINKAGE}
    grown, others, callbacks = lightgbm.Dataset(table, labels), [], []
    if judges is not None:
        judging, patience = judges
        others = [grown.create_valid(*judging)]
        callbacks = [lightgbm.early_stopping(patience, verbose=False)]
    booster = lightgbm.train(settings, grown, growth.rounds, valid_sets=others, callbacks=callbacks)
    best = booster.best_iteration or None
    kept = booster.dump_model(num_iteration=best)["tree_info"]
    known = torch.zeros(num_classes, dtype=torch.bool)
    known[torch.from_numpy(labels).unique()] = True
    trees = _as_tensors([each["tree_structure"] for each in kept], specs, known, growth.depth)
    return Boosted(trees, torch.from_numpy(booster.feature_importance("gain", best)))


@cache
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


def _as_tensors(
    roots: Sequence[dict[str, Any]], specs: Sequence[FeatureSpec], known: Bool[Tensor, " classes"], depth: int
) -> Trees:
    nodes = (1 << depth) - 1
    column = torch.zeros(len(roots), nodes, dtype=torch.long)
    threshold = torch.zeros(len(roots), nodes)
    value = torch.zeros(len(roots), nodes + 1)
    for tree, root in enumerate(roots):
        for place, node in _walk(root, 0, nodes):
            if place >= nodes:
                value[tree, place - nodes] = node["leaf_value"]
            elif "split_feature" in node:
                column[tree, place] = node["split_feature"]
                threshold[tree, place] = _at_most(node["threshold"])
    return Trees(specs, len(known), column, threshold, value, known)


def _walk(node: dict[str, Any], place: int, nodes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every node of the complete tree with its place; below an early leaf stands the same leaf again and again."""
    yield place, node
    if place < nodes:
        for side, child in enumerate(("left_child", "right_child")):
            yield from _walk(node.get(child, node), 2 * place + 1 + side, nodes)


def _at_most(threshold: float) -> float:
    """The largest float32 not above a threshold: the same float32 numbers are at most either of them."""
    near = np.float32(threshold)
    return float(near if float(near) <= threshold else np.nextafter(near, np.float32(-np.inf)))
