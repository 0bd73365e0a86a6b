"""Figures of the needle task: the paper's three panels for each recipe, and a look at exploration."""

from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

PANELS = (
    ("loss", "classification loss"),
    ("selection_loss", "selection loss"),
    ("entropy", "selection entropy"),
)


def draw_panels(curves: list[dict[str, Any]]) -> Figure:
    """Classification loss, selection loss and entropy against steps, one row per recipe, one colour per K."""
    recipes = list(dict.fromkeys(curve["recipe"] for curve in curves))
    sizes = sorted({curve["history_size"] for curve in curves})
    colours = matplotlib.colormaps["viridis"]
    figure = Figure(figsize=(12, 3.2 * len(recipes)))
    axes = figure.subplots(len(recipes), 3, squeeze=False)
    for row, recipe in enumerate(recipes):
        for column, (key, title) in enumerate(PANELS):
            axis = axes[row][column]
            for curve in curves:
                if curve["recipe"] != recipe:
                    continue
                colour = colours(sizes.index(curve["history_size"]) / max(1, len(sizes) - 1))
                steps = [point["step"] for point in curve["curve"]]
                values = [point[key] for point in curve["curve"]]
                name = f"K={curve['history_size']}{' shared' if curve['shared'] else ''}"
                first = curve["seed"] == curves[0]["seed"]
                axis.plot(steps, values, color=colour, label=name if first else None, lw=1.2)
            axis.set(title=f"{recipe}: {title}", xlabel="step", xscale="log")
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.grid(alpha=0.3)
        axes[row][0].legend(fontsize=7)
    figure.tight_layout()
    return figure


def draw_entropy(curves: list[dict[str, Any]]) -> Figure:
    """Why entropy falls too early: the part of the queries that all inputs share grows while nothing is learned."""
    figure = Figure(figsize=(12, 3.4))
    axes = figure.subplots(1, 3)
    chosen = [curve for curve in curves if not curve["shared"] and curve["seed"] == curves[0]["seed"]]
    largest = {
        recipe: max(c["history_size"] for c in chosen if c["recipe"] == recipe)
        for recipe in dict.fromkeys(curve["recipe"] for curve in chosen)
    }
    for curve in chosen:
        if curve["history_size"] != largest[curve["recipe"]]:
            continue
        name = f"{curve['recipe']}, K={curve['history_size']}"
        steps = [point["step"] for point in curve["curve"]]
        for axis, key in zip(axes, ("entropy", "selection_loss", "common_part"), strict=True):
            axis.plot(steps, [point[key] for point in curve["curve"]], label=name)
    for axis, title in zip(
        axes, ("selection entropy", "selection loss", "share of the queries common to all inputs"), strict=True
    ):
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    return figure
