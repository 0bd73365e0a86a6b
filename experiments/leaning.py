"""What answers that lean to the rarer class would do to the reviews: a look at answers that a run has kept.

    python experiments/leaning.py runs/reviews-2012-default --reviews FILE --cutoff 2012

The answer is the class with the largest probability times `w + (1 - w) / (classes * share)`, the share of a class among
the last 2,000 labels known. Were the probabilities true, that would make the most of `w` times accuracy and `1 - w`
times balanced accuracy; with `w` = 1 it is the most probable class. For each model, the mean over its seeds. It looks
past the cutoff, so nothing is chosen by it. Prints one JSON object as its last line.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.data.reviews import Rule, read_reviews, start_of
from recollect.data.splits import quarters
from recollect.evaluation.metrics import LogProbs, accuracy, balanced_accuracy, mean_over_bins, per_bin

NEWEST = 2000
WEIGHTS = (1.0, 0.9, 0.8, 0.7, 0.5)
MODELS = ("recollect", "logreg_refit_year")


def shares_before(labels: NDArray[np.int64], classes: int = 2) -> NDArray[np.float64]:
    """Of the last labels before each row, how many are of each class."""
    counts = np.cumsum(np.eye(classes)[labels], axis=0)
    before = np.concatenate([np.zeros((1, classes)), counts[:-1]])
    earlier = np.concatenate([np.zeros((NEWEST, classes)), before[:-NEWEST]])
    found = before - earlier + 1
    shares: NDArray[np.float64] = found / found.sum(1, keepdims=True)
    return shares


def kept_answers(folder: Path, model: str) -> list[LogProbs]:
    found = [path for path in sorted(folder.glob(f"parts/*/{model}*.npz")) if path.stem in _names(model)]
    if not found:
        raise SystemExit(f"{folder} has no answers of {model}: run `recollect reproduce reviews --out {folder}` first")
    return [np.load(path)["log_probs"] for path in found]


def _names(model: str) -> set[str]:
    return {model, *(f"{model}-{seed}" for seed in range(100))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--cutoff", type=int, default=2014)
    arguments = parser.parse_args()
    rows, _ = read_reviews(arguments.reviews)
    rule = Rule(start_of(arguments.cutoff))
    everyone = rows.labels(rule)
    asked = np.flatnonzero(rows.time >= rule.cutoff)
    labels, bins, shares = everyone[asked], quarters(rows.time)[asked], shares_before(everyone)[asked]
    found: dict[str, dict[str, list[float]]] = {}
    for model in MODELS:
        runs, found[model] = kept_answers(arguments.folder, model), {}
        for weight in WEIGHTS if model == "recollect" else WEIGHTS[:1]:
            leaning = np.log(weight + (1 - weight) / (shares.shape[1] * shares))
            scored = [
                (
                    mean_over_bins(accuracy, run + leaning, labels, bins),
                    mean_over_bins(balanced_accuracy, run + leaning, labels, bins),
                    float(per_bin(accuracy, run + leaning, labels, bins)[0]),
                )
                for run in runs
            ]
            measured = np.mean(scored, axis=0).round(4).tolist()
            found[model][str(weight)] = measured
            print(f"{model}, w = {weight}: accuracy {measured[0]}, balanced {measured[1]}, first quarter {measured[2]}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
