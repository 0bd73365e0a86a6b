"""How good answers are: measures of log-probabilities against labels, per period and in all, with their uncertainty.

Knows arrays in order of time and nothing of models or streams. A label may be of a class that the answers do not reach,
first met after the model was made: such a row counts as wrong, and its class as answered with probability 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

LogProbs = Float[np.ndarray, "rows classes"]
Labels = Int[np.ndarray, " rows"]
Measure = Callable[[LogProbs, Labels], float]

FLOOR = 1e-6
"""The least probability that log-loss believes: no single row costs more than 13.8."""

CONFIDENCE_BINS = 15
COVERED = 0.9


def accuracy(log_probs: LogProbs, labels: Labels) -> float:
    return float(_right(log_probs, labels).mean())


def _right(log_probs: LogProbs, labels: Labels) -> Float[np.ndarray, " rows"]:
    right: Float[np.ndarray, " rows"] = (log_probs.argmax(1) == labels).astype(np.float64)
    return right


def balanced_accuracy(log_probs: LogProbs, labels: Labels) -> float:
    """The mean over the classes present of the share of their rows that are answered right.

    nan where all labels are the same: whoever answers nothing else would be perfect there.
    """
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    right = log_probs.argmax(1) == labels
    return float(np.mean([right[labels == label].mean() for label in present]))


def auc(log_probs: LogProbs, labels: Labels) -> float:
    """Area under the ROC curve: of class 1 where there are two, else each class present against the rest, averaged.

    nan where all labels are the same.
    """
    present = np.unique(labels)
    if len(present) < 2:
        return float("nan")
    log_probs = _widened(log_probs, labels)
    judged = [1] if log_probs.shape[1] == 2 else present
    return float(np.mean([_area(log_probs[:, label], labels == label) for label in judged]))


def nll(log_probs: LogProbs, labels: Labels) -> float:
    """Mean negative log-likelihood, probabilities clipped from below at `FLOOR`."""
    return float(_losses(log_probs, labels).mean())


def _losses(log_probs: LogProbs, labels: Labels) -> Float[np.ndarray, " rows"]:
    of_label = _widened(log_probs, labels)[np.arange(len(labels)), labels]
    losses: Float[np.ndarray, " rows"] = -np.clip(of_label.astype(np.float64), np.log(FLOOR), 0.0)
    return losses


def brier(log_probs: LogProbs, labels: Labels) -> float:
    """Mean squared distance of the probabilities from the truth, summed over all classes: 0 to 2."""
    return float(_distances(log_probs, labels).mean())


def _distances(log_probs: LogProbs, labels: Labels) -> Float[np.ndarray, " rows"]:
    probs = np.exp(_widened(log_probs, labels).astype(np.float64))
    probs[np.arange(len(labels)), labels] -= 1
    squares: Float[np.ndarray, " rows"] = (probs**2).sum(1)
    return squares


def ece(log_probs: LogProbs, labels: Labels) -> float:
    """Expected calibration error: the gap between confidence and accuracy in 15 equally wide bins of confidence."""
    confidence = np.exp(log_probs.max(1).astype(np.float64))
    right = log_probs.argmax(1) == labels
    bins = np.minimum((confidence * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
    return float(np.abs(np.bincount(bins, right - confidence, minlength=CONFIDENCE_BINS)).sum() / len(labels))


def coverage(log_probs: LogProbs, labels: Labels) -> float:
    """How often the label is among the most probable classes that together have 90% at least: .9 if well calibrated."""
    probs = np.exp(_widened(log_probs, labels).astype(np.float64))
    order = np.argsort(-probs, axis=1, kind="stable")
    sorted_probs = np.take_along_axis(probs, order, axis=1)
    # A class belongs to the set if those before it have less than 90%.
    inside = sorted_probs.cumsum(1) - sorted_probs < COVERED
    place = (order == labels[:, None]).argmax(1)
    return float(np.take_along_axis(inside, place[:, None], axis=1).mean())


def kappa(log_probs: LogProbs, labels: Labels) -> float:
    """Cohen's kappa: accuracy beyond what answers of the same frequencies, given at random, would have."""
    answers = log_probs.argmax(1)
    width = max(log_probs.shape[1], int(labels.max()) + 1)
    answered, were = (np.bincount(values, minlength=width) / len(labels) for values in (answers, labels))
    return _beyond(float((answers == labels).mean()), float(answered @ were))


def kappa_temporal(log_probs: LogProbs, labels: Labels, previous: Labels) -> float:
    """Accuracy beyond that of repeating the newest label known at the time: see `previous_labels`."""
    return _beyond(accuracy(log_probs, labels), float((previous == labels).mean()))


MEASURES: dict[str, Measure] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "auc": auc,
    "nll": nll,
    "brier": brier,
    "ece": ece,
    "kappa": kappa,
    "coverage": coverage,
}

BY_ROW: dict[Measure, Callable[[LogProbs, Labels], Float[np.ndarray, " rows"]]] = {
    accuracy: _right,
    nll: _losses,
    brier: _distances,
}
"""Measures that are means over rows: a row is judged once, however often it is drawn."""


def previous_labels(
    labels: Labels, time: Shaped[np.ndarray, " rows"], known_at: Shaped[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """For every row the label that became known last, strictly before the row's time; -1 where there is none."""
    order = np.argsort(known_at, kind="stable")
    known = np.searchsorted(known_at[order], time, side="left")
    return np.where(known > 0, labels[order][known - 1], -1)


def scores(log_probs: LogProbs, labels: Labels, previous: Labels | None = None) -> dict[str, float]:
    """Every measure by name; `kappa_temporal` too where the previous labels are given."""
    found = {name: measure(log_probs, labels) for name, measure in MEASURES.items()}
    if previous is not None:
        found["kappa_temporal"] = kappa_temporal(log_probs, labels, previous)
    return found


def scores_by_bin(
    log_probs: LogProbs, labels: Labels, bins: Labels, previous: Labels | None = None, *, cumulative: bool = False
) -> list[dict[str, int | float]]:
    """Every measure in each bin, or from the first row to the end of each bin, with its number and how many rows."""
    found: list[dict[str, int | float]] = []
    for rows in rows_by_bin(bins):
        number = int(bins[rows[0]])
        if cumulative:
            rows = np.flatnonzero(bins <= number)
        told = None if previous is None else previous[rows]
        found.append({"bin": number, "rows": len(rows), **scores(log_probs[rows], labels[rows], told)})
    return found


def rows_by_bin(bins: Labels) -> list[Int[np.ndarray, " _"]]:
    """The rows of each bin that has any, bins in order; rows stay in theirs."""
    order = np.argsort(bins, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(bins[order])) + 1)


def per_bin(measure: Measure, log_probs: LogProbs, labels: Labels, bins: Labels) -> Float[np.ndarray, " bins"]:
    """One measure in each bin. The first is `[0]` and the worst, where more is better, `np.nanmin`."""
    return np.array([measure(log_probs[rows], labels[rows]) for rows in rows_by_bin(bins)])


def mean_over_bins(measure: Measure, log_probs: LogProbs, labels: Labels, bins: Labels) -> float:
    """Each bin counts the same, however many rows it has; bins where the measure is undefined do not count."""
    values = per_bin(measure, log_probs, labels, bins)
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """First minus second; `p_value` is two-sided: how often resampling alone turns its sign."""

    p_value: float


def interval(
    measure: Measure,
    log_probs: LogProbs,
    labels: Labels,
    bins: Labels,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A bootstrap interval of the mean over bins; for all rows as one, give one bin."""
    found = _of_rows(measure, log_probs, labels, bins)
    drawn = np.array([found(rows) for rows in _drawn(bins, resamples, seed)])
    return Interval(found(slice(None)), *_ends(drawn, level))


def intervals(
    log_probs: LogProbs, labels: Labels, previous: Labels, *, resamples: int, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Every measure of all rows as one with its bootstrap interval; the same draws judge all of them."""
    one_bin = np.zeros(len(labels), np.int64)
    drawn = [
        scores(log_probs[rows], labels[rows], previous[rows])
        for rows in _drawn(one_bin, resamples=resamples, seed=seed)
    ]
    return {
        name: Interval(value, *_ends(np.array([each[name] for each in drawn]), level))
        for name, value in scores(log_probs, labels, previous).items()
    }


def paired_difference(
    measure: Measure,
    first: LogProbs,
    second: LogProbs,
    labels: Labels,
    bins: Labels,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Difference:
    """The difference of two runs' means over bins: both are judged on the same resampled rows, so luck cancels."""

    one, other = (_of_rows(measure, run, labels, bins) for run in (first, second))

    def difference(rows: Int[np.ndarray, " _"] | slice) -> float:
        return one(rows) - other(rows)

    drawn = np.array([difference(rows) for rows in _drawn(bins, resamples, seed)])
    drawn = drawn[~np.isnan(drawn)]
    turned = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p_value = min(1.0, 2 * float(turned + 1) / (len(drawn) + 1))
    return Difference(difference(slice(None)), *_ends(drawn, level), p_value=p_value)


def mcnemar(first: LogProbs, second: LogProbs, labels: Labels) -> float:
    """McNemar's exact test that two runs are right equally often: the p-value, two-sided.

    It looks at rows that only one of the two got right, and takes rows as independent of each other: where errors
    come in streaks it is too sure, and `paired_difference` is to be believed.
    """
    one, other = (run.argmax(1) == labels for run in (first, second))
    only_first, only_second = int((one & ~other).sum()), int((other & ~one).sum())
    total, fewer = only_first + only_second, min(only_first, only_second)
    # Factorials as logarithms: of thousands of rows they are beyond any float.
    factorial = np.concatenate([[0.0], np.log(np.arange(1, total + 1)).cumsum()])
    chosen = np.arange(fewer + 1)
    ways = factorial[total] - factorial[chosen] - factorial[total - chosen]
    return min(1.0, 2 * float(np.exp(ways - total * np.log(2)).sum()))


def _widened(log_probs: LogProbs, labels: Labels) -> Float[np.ndarray, "rows _"]:
    missing = int(labels.max()) + 1 - log_probs.shape[1]
    if missing <= 0:
        return log_probs
    return np.pad(log_probs, ((0, 0), (0, missing)), constant_values=-np.inf)


def _area(scores: Float[np.ndarray, " rows"], positive: Shaped[np.ndarray, " rows"]) -> float:
    """The chance that a positive row scores above a negative one; a tie is worth one half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]
    positives = int(positive.sum())
    negatives = len(positive) - positives
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _beyond(found: float, by_chance: float) -> float:
    return (found - by_chance) / (1 - by_chance) if by_chance < 1 else float("nan")


def _of_rows(
    measure: Measure, log_probs: LogProbs, labels: Labels, bins: Labels
) -> Callable[[Int[np.ndarray, " _"] | slice], float]:
    """The mean over bins by rows drawn from them, of each bin as many as it has."""
    if measure not in BY_ROW:
        return lambda rows: mean_over_bins(measure, log_probs[rows], labels[rows], bins[rows])
    _, bin_of, counts = np.unique(bins, return_inverse=True, return_counts=True)
    shares = BY_ROW[measure](log_probs, labels) / (counts[bin_of] * len(counts))
    return lambda rows: float(shares[rows].sum())


def _drawn(bins: Labels, resamples: int, seed: int) -> Iterator[Int[np.ndarray, " _"]]:
    """Rows drawn again, bin by bin, in blocks: neighbours in time tend to be right or wrong together.

    A block is as long as the square root of its bin and may run over the bin's end to its start.
    """
    generator = np.random.default_rng(seed)
    groups = rows_by_bin(bins)
    for _ in range(resamples):
        parts = []
        for rows in groups:
            length = int(len(rows) ** 0.5)
            starts = generator.integers(len(rows), size=-(-len(rows) // length))
            parts.append(rows[(starts[:, None] + np.arange(length)).ravel()[: len(rows)] % len(rows)])
        yield np.concatenate(parts)


def _ends(drawn: Float[np.ndarray, " resamples"], level: float) -> tuple[float, float]:
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return float("nan"), float("nan")
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
