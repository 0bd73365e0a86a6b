"""What runs come to: the summary that report.json holds, a table for the terminal and a figure over time.

Knows log-probabilities of a stream's asked rows by name of model, one run per seed; not how they came about.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from recollect.errors import SettingError
from recollect.evaluation.metrics import (
    MEASURES,
    LogProbs,
    Measure,
    accuracy,
    balanced_accuracy,
    mean_over_bins,
    per_bin,
    rows_by_bin,
)
from recollect.evaluation.output import moment
from recollect.evaluation.stream import Stream

Runs = Mapping[str, Sequence[LogProbs]]
"""By name of model, the log-probabilities of the asked rows, one array per seed."""

MEANS = ("accuracy", "balanced_accuracy", "auc", "nll", "ece")
COLUMNS = (*MEANS, "first_bin", "worst_bin", "in_distribution")
LESS_IS_BETTER = ("nll", "ece")
SHORT = {"accuracy": "acc", "balanced_accuracy": "bal", "first_bin": "first", "worst_bin": "worst"}
SHORT |= {"in_distribution": "before"}
"""How columns are headed where 80 characters have to do."""

ITEMS = "_items"
"""How names of models end that retrieve full items, where others retrieve labels alone."""

OURS = (
    "recollect",
    "recollect_items",
    "recollect_refit",
    "recollect_paper",
    "recollect_paper_items",
    "no_context",
    "similarity",
    "no_context_paper",
)

# Okabe and Ito's colours, told apart by colour-blind people; black and the two warmest are ours. Peers of one family
# share a colour and differ in how the line is broken.
BLUE, SKY, GREEN, PURPLE, GREY = "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#808080"
STYLES: dict[str, tuple[str, str]] = {
    "recollect": ("#D55E00", "-"),
    "recollect_items": ("#E69F00", "-"),
    "recollect_refit": ("#D55E00", "--"),
    "recollect_paper": ("#E69F00", "--"),
    "recollect_paper_items": ("#E69F00", ":"),
    "no_context": ("#000000", "-"),
    "similarity": ("#000000", "--"),
    "no_context_paper": ("#000000", ":"),
    "majority": (GREY, ":"),
    "previous_label": (GREY, "--"),
    "logreg_frozen": (BLUE, "-"),
    "logreg_refit_period": (BLUE, ":"),
    "logreg_refit_year": (BLUE, "--"),
    "lightgbm_frozen": (GREEN, "-"),
    "lightgbm_refit_period": (GREEN, ":"),
    "lightgbm_refit_year": (GREEN, "--"),
    "recent_neighbours": (PURPLE, "-"),
    "finetuned": (PURPLE, "--"),
    "arf": (SKY, "-"),
    "leveraging_bagging": (SKY, "--"),
    "hoeffding_adaptive": (SKY, ":"),
}


def summary(values: Sequence[float]) -> dict[str, Any]:
    """A mean over seeds as reports write it; a single seed has no deviation, which is not one of 0."""
    values = [float(value) for value in values]
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": values,
    }


def summarise(
    runs: Runs, stream: Stream, in_distribution: Mapping[str, Sequence[float]] | None = None
) -> dict[str, dict[str, Any]]:
    """`models` of a report: for each model the means over bins after the cutoff, and the accuracy of two single bins.

    Each is {"mean", "std", "seeds"} over seeds, or None where it is undefined, as AUC is where every bin has one class.
    `in_distribution` is handed in: accuracy on rows from before the cutoff that were held out, for models that have it.
    """
    labels, bins = _asked(stream)
    models: dict[str, dict[str, Any]] = {}
    for name, seeds in runs.items():
        _check(name, seeds, len(labels))
        found = {measure: [mean_over_bins(MEASURES[measure], run, labels, bins) for run in seeds] for measure in MEANS}
        by_bin = [per_bin(accuracy, run, labels, bins) for run in seeds]
        found["first_bin"] = [float(values[0]) for values in by_bin]
        found["worst_bin"] = [float(values.min()) for values in by_bin]
        found["in_distribution"] = list((in_distribution or {}).get(name, ()))
        models[name] = {column: _summary_or_none(found[column]) for column in COLUMNS}
    return models


def means_by_bin(runs: Runs, stream: Stream) -> dict[str, list[dict[str, Any]]]:
    """`bins` of a report: for each model, in each bin after the cutoff, the means over seeds; None where undefined.

    A bin goes by its number, the time of its first row that was asked, and how many were.
    """
    labels, bins = _asked(stream)
    groups = rows_by_bin(bins)
    firsts = [stream.asked[rows[0]] for rows in groups]
    models: dict[str, list[dict[str, Any]]] = {}
    for name, seeds in runs.items():
        means = {
            measure: np.mean([per_bin(MEASURES[measure], run, labels, bins) for run in seeds], axis=0)
            for measure in MEANS
        }
        models[name] = [
            {"bin": int(stream.bins[first]), "start": moment(stream.time[first]), "rows": len(rows)}
            | {
                measure: None if math.isnan(values[place]) else float(values[place])
                for measure, values in means.items()
            }
            for place, (first, rows) in enumerate(zip(firsts, groups, strict=True))
        ]
    return models


def results_table(models: Mapping[str, Mapping[str, Any]], title: str | None = None) -> Table:
    """One line per model, the best of each column in bold; the accuracy's deviation where there are several seeds.

    Lines, and deviations of all columns, would not fit 80 characters, nor does the calibration error beside deviations.
    """
    several = any(len(model["accuracy"]["seeds"]) > 1 for model in models.values())
    columns = [column for column in COLUMNS if not (several and column == "ece")]
    table = Table(title=title, box=None)
    table.add_column("model", no_wrap=True)
    best = {}
    for column in columns:
        table.add_column(SHORT.get(column, column), justify="right", no_wrap=True)
        means = [model[column]["mean"] for model in models.values() if model[column] is not None]
        best[column] = (min if column in LESS_IS_BETTER else max)(means, default=None)
    for name, model in models.items():
        ours = name in OURS or name.startswith("recollect_refit_")
        cells = [Text(name, style="bold" if ours else "")]
        for column in columns:
            value = model[column]
            if value is None:
                cells.append(Text("-", style="dim"))
                continue
            deviates = column == "accuracy" and len(value["seeds"]) > 1
            written = short_number(value["mean"]) + (f" ±{short_number(value['std'])}" if deviates else "")
            cells.append(Text(written, style="bold" if value["mean"] == best[column] else ""))
        table.add_row(*cells)
    return table


def draw_over_time(
    runs: Runs, stream: Stream, before: tuple[np.ndarray, Mapping[str, Sequence[float]]] | None = None
) -> Figure:
    """Accuracy and balanced accuracy in each bin after the cutoff, a line per model, a band over its seeds.

    Where some models retrieve labels alone and others full items, they stand side by side, everyone else in both.
    `before` are rows of the past, held out, and by name of model its accuracy on them, seed by seed: the first point of
    its line.
    """
    labels, bins = _asked(stream)
    first_rows = [stream.asked[rows[0]] for rows in rows_by_bin(bins)]
    held_out, earlier = before or (np.empty(0, np.int64), {})
    if len(held_out):
        first_rows = [held_out[len(held_out) // 2], *first_rows]
    times, cutoff = stream.time[first_rows], np.asarray(stream.cutoff)
    if np.issubdtype(times.dtype, np.integer):
        times, cutoff = times.astype("datetime64[ns]"), cutoff.astype("datetime64[ns]")
    columns = _columns(runs)
    figure = Figure(figsize=(4 + 7 * len(columns), 8), layout="constrained")
    grid = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for axes, (title, shown) in zip(grid.T, columns.items(), strict=True):
        for axis, measure in zip(axes, (accuracy, balanced_accuracy), strict=True):
            _draw(axis, shown, labels, bins, times, measure, earlier if measure is accuracy else {})
            axis.grid(alpha=0.25)
            if len(held_out):
                axis.axvline(cutoff, color=GREY, linewidth=0.8)
        axes[0].set_title(f"{title}; left of the line: the newest rows before the cutoff" if len(held_out) else title)
        axes[1].set_xlabel("start of the bin")
    grid[0, 0].set_ylabel("accuracy")
    grid[1, 0].set_ylabel("balanced accuracy")
    if np.issubdtype(times.dtype, np.datetime64):
        figure.autofmt_xdate()
    handles = {name: line for axis in grid[0] for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown_names = [name for name in runs if name in handles]
    figure.legend(
        [handles[name] for name in shown_names],
        shown_names,
        loc="outside right upper",
        frameon=False,
        fontsize=9,
        handlelength=3,
    )
    return figure


def _columns(runs: Runs) -> dict[str, Runs]:
    with_items = {name for name in runs if name.endswith(ITEMS)}
    if not with_items:
        return {"bin by bin": runs}
    with_labels = {name.removesuffix(ITEMS) for name in with_items}
    return {
        "labels only": {name: run for name, run in runs.items() if name not in with_items},
        "full items": {name: run for name, run in runs.items() if name not in with_labels},
    }


def _draw(
    axis: Axes,
    runs: Runs,
    labels: np.ndarray,
    bins: np.ndarray,
    times: np.ndarray,
    measure: Measure,
    earlier: Mapping[str, Sequence[float]],
) -> None:
    others = cycle([(colour, line) for line in ("-.", (0, (5, 1, 1, 1, 1, 1))) for colour in (BLUE, GREEN, PURPLE)])
    for name, seeds in runs.items():
        values = np.stack([per_bin(measure, run, labels, bins) for run in seeds])
        if len(times) > values.shape[1]:
            first = np.full(len(seeds), np.nan)
            first[: len(earlier.get(name, ()))] = earlier.get(name, ())
            values = np.column_stack([first, values])
        ours = name in OURS
        colour, line = STYLES.get(name) or next(others)
        middle, spread = values.mean(0), values.std(0)
        axis.plot(
            times,
            middle,
            color=colour,
            linestyle=line,
            linewidth=2.6 if ours else 1.1,
            zorder=3 if ours else 2,
            # A single bin is a point, which no line shows.
            marker="o" if len(times) < 20 else None,
            markersize=4 if ours else 2.5,
            label=name,
        )
        if len(seeds) > 1:
            axis.fill_between(times, middle - spread, middle + spread, color=colour, alpha=0.18, linewidth=0)


def _asked(stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    if not len(stream.asked):
        raise SettingError("no row comes after the cutoff, there is nothing to judge by: choose an earlier cutoff")
    return stream.labels[stream.asked], stream.bins[stream.asked]


def _check(name: str, seeds: Sequence[Float[np.ndarray, "_ _"]], rows: int) -> None:
    if not seeds:
        raise SettingError(f"{name} has no run: give the log-probabilities of one seed at least")
    for run in seeds:
        if len(run) != rows or np.isnan(run).any():
            raise SettingError(
                f"{name} must answer each of the {rows} rows from the cutoff on, but {len(run)} answers came, "
                f"{int(np.isnan(run).any(1).sum())} of them not a number: give one row of log-probabilities for each"
            )


def _summary_or_none(values: Sequence[float]) -> dict[str, Any] | None:
    # JSON knows no nan.
    return None if not values or any(math.isnan(value) for value in values) else summary(values)


def short_number(value: float) -> str:
    """.885 for 0.885: the nought before the point says nothing."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"
