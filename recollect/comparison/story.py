"""What of a comparison goes into the report beside the table: curves over time, calibration, drift of the labels, and
precedents. Plain values, ready for JSON; the page draws them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.comparison.verdict import OURS
from recollect.data.events import Events
from recollect.evaluation.metrics import (
    CONFIDENCE_BINS,
    MEASURES,
    Interval,
    LogProbs,
    accuracy,
    interval,
    per_bin,
    rows_by_bin,
)
from recollect.evaluation.output import moment
from recollect.evaluation.stream import Stream

AGE_BINS = 24
EXAMPLES = 12
LONGEST_VALUE = 300


def over_time(runs: Mapping[str, Sequence[LogProbs]], stream: Stream) -> dict[str, Any]:
    """Every measure in every bin, for each model: the mean over its seeds, the lowest and the highest.

    Of our model with one seed, the ends of the accuracy's 95% interval instead: how far chance may reach in a bin.
    """
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    groups = rows_by_bin(bins)
    times = stream.time[stream.asked]
    found: dict[str, Any] = {
        "starts": [moment(times[rows[0]]) for rows in groups],
        "rows": [len(rows) for rows in groups],
        "models": {},
    }
    for name, seeds in runs.items():
        curves = {}
        for measure, of_rows in MEASURES.items():
            values = np.stack([per_bin(of_rows, run, labels, bins) for run in seeds])
            curves[measure] = {
                "mean": _plain(values.mean(0)),
                "low": _plain(values.min(0)),
                "high": _plain(values.max(0)),
            }
        if name == OURS and len(seeds) == 1:
            ends = [_accuracy_interval(seeds[0][rows], labels[rows]) for rows in groups]
            curves["accuracy"] |= {"low": [each.low for each in ends], "high": [each.high for each in ends]}
        found["models"][name] = curves
    return found


def _accuracy_interval(log_probs: LogProbs, labels: NDArray[np.int64]) -> Interval:
    return interval(accuracy, log_probs, labels, np.zeros_like(labels), resamples=200)


def calibration(log_probs: LogProbs, labels: NDArray[np.int64]) -> list[dict[str, float]]:
    """How often answers of each confidence were right."""
    confidence, right = np.exp(log_probs.max(1)), log_probs.argmax(1) == labels
    bins = np.minimum((confidence * CONFIDENCE_BINS).astype(int), CONFIDENCE_BINS - 1)
    return [
        {
            "confidence": float(confidence[bins == each].mean()),
            "accuracy": float(right[bins == each].mean()),
            "rows": int((bins == each).sum()),
        }
        for each in np.unique(bins)
    ]


def label_rates(stream: Stream, classes: Sequence[str], most: int = 8) -> dict[str, Any]:
    """The share of each of the most common classes over time, before the cutoff too: the data's own drift."""
    count = 40
    edges = np.linspace(float(stream.time[0]), float(stream.time[-1]), count + 1)
    bins = np.clip(np.searchsorted(edges, stream.time.astype(float), side="right") - 1, 0, count - 1)
    common = np.argsort(-np.bincount(stream.labels, minlength=len(classes)), kind="stable")[:most]
    groups = rows_by_bin(bins)
    return {
        "starts": [moment(stream.time[rows[0]]) for rows in groups],
        "classes": {
            classes[code]: [float((stream.labels[rows] == code).mean()) for rows in groups] for code in common.tolist()
        },
    }


def precedent_story(
    stream: Stream,
    events: Events,
    classes: Sequence[str],
    answers: Mapping[str, NDArray[Any]],
    seed: int = 0,
) -> dict[str, Any]:
    """How old precedents are, how many share the attention over time, and some answers with theirs, right and wrong.

    `answers` holds, for every asked row, `log_probs`, `precedents` (rows of the stream, -1 for none) and `attention`.
    """
    asked, precedents, attention = stream.asked, answers["precedents"], answers["attention"]
    there = precedents >= 0
    ages = stream.time[asked][:, None] - stream.time[np.maximum(precedents, 0)]
    ages = np.where(there, ages, 0).astype(float) / unit_of(stream)[0]
    span = max(float(ages.max()), 1e-9)
    edges = np.concatenate([[0.0], np.geomspace(span / 1e5, span, AGE_BINS)])
    shares = attention / np.maximum(attention.sum(1, keepdims=True), 1e-12)
    entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(1)
    groups = rows_by_bin(stream.bins[asked])
    return {
        "unit": unit_of(stream)[1],
        "ages": {
            "edges": edges.tolist(),
            "shown": np.histogram(ages[there], edges)[0].tolist(),
            "attention": np.histogram(ages[there], edges, weights=attention[there])[0].tolist(),
        },
        "entropy": [float(entropy[rows].mean()) for rows in groups],
        "median_age": [float(np.median(ages[rows][there[rows]])) if there[rows].any() else None for rows in groups],
        "examples": _examples(stream, events, classes, answers, ages, seed),
    }


def _examples(
    stream: Stream,
    events: Events,
    classes: Sequence[str],
    answers: Mapping[str, NDArray[Any]],
    ages: NDArray[np.float64],
    seed: int,
) -> list[dict[str, Any]]:
    """Half of them answered right, half wrong, drawn over the whole time."""
    log_probs, labels = answers["log_probs"], stream.labels[stream.asked]
    right = log_probs.argmax(1) == labels
    generator = np.random.default_rng(seed)
    chosen = np.concatenate(
        [generator.permutation(np.flatnonzero(which))[: EXAMPLES // 2] for which in (right, ~right)]
    )
    found = []
    for place in np.sort(chosen).tolist():
        row = int(stream.asked[place])
        order = np.argsort(-answers["attention"][place], kind="stable")[:5]
        order = order[answers["precedents"][place][order] >= 0]
        predicted = int(log_probs[place].argmax())
        found.append(
            {
                "id": events.id[row],
                "time": moment(stream.time[row]),
                "input": raw_row(events, row),
                "label": classes[int(labels[place])],
                "predicted": classes[predicted],
                "probability": float(np.exp(log_probs[place, predicted])),
                "precedents": [
                    {
                        "id": events.id[int(answers["precedents"][place][slot])],
                        "age": float(ages[place, slot]),
                        "label": classes[int(stream.labels[answers["precedents"][place][slot]])],
                        "weight": float(answers["attention"][place, slot]),
                        "input": raw_row(events, int(answers["precedents"][place][slot])),
                    }
                    for slot in order.tolist()
                ],
            }
        )
    return found


def raw_row(events: Events, row: int) -> dict[str, Any]:
    """The columns of a row as people wrote them, long ones cut."""
    values = events.columns.row(row, named=True)
    return {name: _cut(value) for name, value in values.items() if not isinstance(value, (list, tuple, np.ndarray))}


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE] + " ..."
    return None if isinstance(value, float) and not np.isfinite(value) else value


def unit_of(stream: Stream) -> tuple[float, str]:
    """What ages are told in: days of moments, or plain numbers as they are."""
    return (86_400e9, "days") if np.issubdtype(stream.time.dtype, np.integer) else (1.0, "")


def _plain(values: NDArray[Any]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
