"""The paper's memory figure: peak memory of a training step against K, B, kappa, d and D, one at a time.

Lines are what `recollect plan` predicts, dots what was measured, each in a process of its own; for our retrieval and
for the dense one of the paper's equation.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from recollect.config import Scale
from recollect.console import plain_console
from recollect.evaluation.output import claim, finish, save_figure
from recollect.planning.plan import Method, predict
from recollect.planning.sizes import Sizes, show_bytes
from recollect.reproduction.memory_step import measure_apart

SYMBOLS = {
    "items": "K, items in the history",
    "batch": "B, batch",
    "retrieved": "κ, items retrieved",
    "key_dim": "d, key width",
    "feature_width": "D, feature width",
}
LARGE = 100_000_000
"""From here on the plan is held to its word; below, what every process has anyway weighs too much."""


@dataclass(frozen=True)
class Sweep:
    """A base point, the values each variable takes around it, and where the dense one is run too.

    That is along some of the variables, and up to so many predicted bytes: it takes far longer than ours.
    """

    base: Sizes
    values: dict[str, tuple[int, ...]]
    dense_along: tuple[str, ...]
    dense_up_to: int

    def points(self) -> list[tuple[str, int, Sizes]]:
        return [
            (variable, value, replace(self.base, **{variable: value}))  # type: ignore[arg-type]
            for variable, values in self.values.items()
            for value in values
        ]


# The history is large enough everywhere for its logits not to be kept.
SWEEPS: dict[Scale, Sweep] = {
    "quick": Sweep(
        Sizes(60_000, 256, 4, 64, 1024),
        {
            "items": (60_000, 120_000),
            "batch": (256, 512),
            "retrieved": (4, 8),
            "key_dim": (64, 256),
            "feature_width": (1024, 4096),
        },
        ("items",),
        250_000_000,
    ),
    "default": Sweep(
        Sizes(100_000, 128, 4, 64, 4096),
        {
            "items": (75_000, 100_000, 200_000, 300_000),
            "batch": (96, 128, 256, 384),
            "retrieved": (3, 4, 8, 12),
            "key_dim": (16, 64, 128, 256),
            "feature_width": (512, 4096, 8192, 12_288),
        },
        tuple(SYMBOLS),
        1_000_000_000,
    ),
    "paper": Sweep(
        Sizes(1_900_000, 256, 4, 64, 4096),
        {
            "items": (500_000, 1_000_000, 1_900_000),
            "batch": (128, 256, 512, 1024),
            "retrieved": (2, 4, 8, 16),
            "key_dim": (16, 64, 128, 256),
            "feature_width": (1024, 4096, 8192),
        },
        (),
        0,
    ),
}


def run(*, scale: Scale, out: Path, force: bool) -> None:
    """Measure every point, compare with the plan, and write the report."""
    claim(out, force=force)
    console = plain_console()
    report = {"scale": scale, **sweep(SWEEPS[scale], lambda line: console.print(line, highlight=False))}
    save_figure(draw(report), out, "memory")
    path = finish(out, report)
    print_table(report, console)
    console.print(f"report: {path}")


def sweep(plan: Sweep, say: Callable[[str], None]) -> dict[str, Any]:
    """All points of a sweep, measured and predicted, and how well the two agree."""
    done: dict[tuple[Sizes, Method], dict[str, int]] = {}
    points: list[dict[str, Any]] = []
    for variable, value, sizes in plan.points():
        methods: list[Method] = ["ours", "dense"]
        for method in methods:
            predicted = predict(sizes, method).above_runtime
            point = {"variable": variable, "value": value, "method": method, "predicted_bytes": predicted}
            if method == "ours" or (variable in plan.dense_along and predicted <= plan.dense_up_to):
                if (sizes, method) not in done:
                    done[sizes, method] = measure_apart(sizes, method)
                measured = done[sizes, method]["peak_bytes"]
                point |= {"measured_bytes": measured, "relative_error": round(predicted / measured - 1, 4)}
                say(f"{variable} {value}, {method}: predicted {show_bytes(predicted)}, measured {show_bytes(measured)}")
            points.append(point)
    # What the allocator holds back where it is left alone; by the second step it has settled.
    alone = measure_apart(plan.base, "ours", steps=2, gives_back=False)
    say(f"base point, allocator left alone: measured {show_bytes(alone['peak_bytes'])}")
    return {
        "base": asdict(plan.base),
        "runtime_bytes": alone["runtime_bytes"],
        "allocator_bytes": alone["peak_bytes"] - measure_of(done, plan.base),
        "points": points,
        "lines": lines(points),
        **worst(points),
    }


def measure_of(done: dict[tuple[Sizes, Method], dict[str, int]], sizes: Sizes) -> int:
    return (done.get((sizes, "ours")) or measure_apart(sizes, "ours"))["peak_bytes"]


def measured(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [point for point in points if "measured_bytes" in point]


def worst(points: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The largest relative error of all, and of those points that are large."""
    every = [(abs(point["relative_error"]), point["measured_bytes"]) for point in measured(points)]
    return {
        "worst_relative_error": max(error for error, _ in every),
        "worst_relative_error_when_large": max((error for error, size in every if size >= LARGE), default=0.0),
    }


def lines(points: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """A straight line through the measurements of each variable and method, and how well it fits."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for point in measured(points):
        found.setdefault(point["variable"], {}).setdefault(point["method"], {})
    for variable, methods in found.items():
        for method in methods:
            of_both = [p for p in measured(points) if (p["variable"], p["method"]) == (variable, method)]
            x, y = ([float(point[name]) for point in of_both] for name in ("value", "measured_bytes"))
            if len(x) > 1:
                methods[method] = line(x, y)
    return found


def line(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    slope, intercept = (float(value) for value in np.polyfit(x, y, 1))
    left = np.asarray(y) - (slope * np.asarray(x) + intercept)
    spread = float(np.square(np.asarray(y) - np.mean(y)).sum())
    return {"slope": slope, "intercept": intercept, "r2": 1.0 - float(np.square(left).sum()) / max(spread, 1.0)}


def draw(report: dict[str, Any]) -> Figure:
    """A column for each variable: both methods above, ours alone below, where dense would leave it flat."""
    variables = list(dict.fromkeys(point["variable"] for point in report["points"]))
    figure = Figure(figsize=(2.5 * len(variables), 5), layout="constrained")
    axes = figure.subplots(2, len(variables), squeeze=False, sharey="row", sharex="col")
    for column, variable in enumerate(variables):
        for row, methods in enumerate((["dense", "ours"], ["ours"])):
            for method in methods:
                points = [p for p in report["points"] if (p["variable"], p["method"]) == (variable, method)]
                draw_method(axes[row, column], points, method)
        axes[1, column].set_xlabel(SYMBOLS[variable], fontsize=9)
    for row, label in enumerate(("peak memory, MB", "ours alone, MB")):
        axes[row, 0].set_ylabel(label, fontsize=9)
        axes[row, 0].set_ylim(0, 1.07 * max(axis.dataLim.y1 for axis in axes[row]))
    axes[0, 0].legend(fontsize=8, loc="upper left")
    base = report["base"]
    around = ", ".join(f"{SYMBOLS[name].split(',')[0]} = {base[name]:,}" for name in SYMBOLS)
    figure.suptitle(f"Peak memory of a training step around {around}: the plan (lines), measured (dots)", fontsize=10)
    return figure


def draw_method(axis: Axes, points: Sequence[dict[str, Any]], method: str) -> None:
    colour = {"ours": "tab:blue", "dense": "tab:orange"}[method]
    ordered = sorted(points, key=lambda point: point["value"])
    last = ordered[-1]["value"]
    unit, ending = (1000, "k") if last >= 10_000 else (1, "")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}{ending if value else ''}")
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axis.set_xlim(0, 1.07 * last)
    axis.grid(alpha=0.3)
    axis.tick_params(labelsize=8)
    for points_of, marker, name in ((ordered, "-", "predicted_bytes"), (measured(ordered), "o", "measured_bytes")):
        x, y = [point["value"] for point in points_of], [point[name] / 1e6 for point in points_of]
        axis.plot(x, y, marker, color=colour, lw=1.3, ms=4.5, label=method if marker == "-" else None)


def print_table(report: dict[str, Any], console: Console) -> None:
    table = Table(title="a straight line through the measurements of each variable")
    for column in ("variable", "method", "bytes per unit", "r2", "worst error of the plan"):
        table.add_column(column)
    for variable, methods in report["lines"].items():
        for method, fitted in methods.items():
            errors = [
                abs(point["relative_error"])
                for point in measured(report["points"])
                if (point["variable"], point["method"]) == (variable, method)
            ]
            cells = [f"{fitted['slope']:,.0f}", f"{fitted['r2']:.4f}"] if fitted else ["", ""]
            table.add_row(SYMBOLS[variable], method, *cells, f"{max(errors):.1%}")
    console.print(table)
