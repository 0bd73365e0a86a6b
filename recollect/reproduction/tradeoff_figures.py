"""The trade-off as a table and as panels: accuracy against time and memory of a prediction and of a training step."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter
from rich.table import Table

from recollect.planning.sizes import show_bytes

COLOURS = ("#56B4E9", "#0072B2", "#009E73", "#D55E00", "#CC79A7")
TIMES = {
    "times_prediction": ("ms_per_prediction", "CPU time of a prediction"),
    "times_step": ("ms_per_step", "CPU time of a step of training"),
}
BYTES = {
    "prediction_bytes": "peak memory of a tile of predictions, MB",
    "step_bytes": "peak memory of a step of training, MB",
}

Point = dict[str, Any]


def tradeoff_table(points: Sequence[Point], name: str) -> Table:
    """One line for each number of slots and window; the first has none, and all others are compared with it."""
    table = Table(title=f"{name}: what history costs and what it brings")
    for column in ("slots", "K", "accuracy", "ms/input", "ms/step", "+ tile", "+ step", "table"):
        table.add_column(column, justify="right")
    plain = points[0]
    for point in points:
        means = {name: value["mean"] for name, value in point.items() if isinstance(value, dict)}
        added = [max(0, round(means[part] - plain[part]["mean"])) for part in ("prediction_bytes", "step_bytes")]
        table.add_row(
            str(point["slots"]),
            window_name(point["window"]),
            f"{means['accuracy']:.3f}",
            f"{means['ms_per_prediction']:.2f} ({means['times_prediction']:.1f}x)",
            f"{means['ms_per_step']:.1f} ({means['times_step']:.1f}x)",
            *(show_bytes(each) for each in (*added, round(means["table_bytes"]))),
        )
    return table


def window_name(window: int | None) -> str:
    if window is None:
        return "all"
    return f"{window:,}" if window else "-"


def draw(points: Sequence[Point], name: str) -> Figure:
    """A line for each window through its numbers of slots, which stand beside the markers.

    Times are ratios: what a machine does besides shifts milliseconds from one point to the next, and ratios hardly.
    """
    figure = Figure(figsize=(10.5, 8.4), layout="constrained")
    (above, below) = figure.subplots(2, 2, sharey=True)
    for axis, (ratio, (measure, label)) in zip(above, TIMES.items(), strict=True):
        _draw_panel(axis, points, [point[ratio]["mean"] for point in points])
        axis.set_xlabel(f"{label}, no context = 1 ({points[0][measure]['mean']:.2g} ms)")
    for axis, (measure, label) in zip(below, BYTES.items(), strict=True):
        _draw_panel(axis, points, [point[measure]["mean"] / 1e6 for point in points])
        axis.set_xlabel(label)
    for axis in (above[0], below[0]):
        axis.set_ylabel("accuracy after the cutoff, mean over periods")
    handles, names = above[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
    figure.suptitle(f"{name}: accuracy against time and memory; numbers are the slots", fontsize=11)
    return figure


def _draw_panel(axis: Axes, points: Sequence[Point], costs: Sequence[float]) -> None:
    plain, *others = zip(points, costs, strict=True)
    axis.plot(plain[1], plain[0]["accuracy"]["mean"], "k*", ms=11, label="no context")
    axis.axhline(plain[0]["accuracy"]["mean"], color="black", lw=0.8, ls=":")
    for window, colour in zip(dict.fromkeys(point["window"] for point, _ in others), COLOURS, strict=False):
        same = [(point, cost) for point, cost in others if point["window"] == window]
        heights = [point["accuracy"]["mean"] for point, _ in same]
        axis.plot(
            [cost for _, cost in same], heights, "o-", color=colour, ms=5, lw=1.2, label=f"K = {window_name(window)}"
        )
        for (point, cost), height in zip(same, heights, strict=True):
            axis.annotate(
                str(point["slots"]), (cost, height), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colour
            )
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.margins(x=0.1)
    axis.grid(alpha=0.3)
