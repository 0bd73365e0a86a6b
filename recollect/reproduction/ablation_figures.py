"""The ablation as a table and as bars: how far each recipe with something taken away is from the full one."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

COLUMNS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "nll": "nll", "first_bin": "first bin"}
SHORT = {"accuracy": "acc", "balanced_accuracy": "bal", "nll": "nll", "first_bin": "first"}
"""How columns are headed where 80 characters have to do."""

BARS = {"accuracy": "#D55E00", "balanced_accuracy": "#56B4E9"}
BAR_HEIGHT = 0.38

Variants = Mapping[str, Mapping[str, Any]]
"""By what was taken away, the means over seeds and the differences to the first one, which has everything."""


def ablation_table(title: str, variants: Variants) -> Table:
    """One line for each thing taken away: every measure, and beside it the difference that it made."""
    table = Table(title=f"{title}: what is taken away, and the difference it makes", box=None)
    table.add_column("without")
    for column in SHORT.values():
        table.add_column(column, justify="right", no_wrap=True)
        table.add_column("±", justify="right", no_wrap=True)
    for index, (name, entry) in enumerate(variants.items()):
        cells = []
        for measure in COLUMNS:
            cells.append(_short(f"{entry[measure]['mean']:.3f}"))
            cells.append("" if index == 0 else _short(f"{entry['difference'][measure]['mean']:+.3f}"))
        table.add_row("(nothing)" if index == 0 else name, *cells)
    return table


def _short(number: str) -> str:
    """.885 for 0.885: the nought before the point says nothing."""
    return number.replace("0.", ".", 1)


def draw(groups: Mapping[str, Variants]) -> Figure:
    """A panel for each group, as high as it has bars; what costs most when taken away is at the top."""
    heights = [len(variants) - 1 for variants in groups.values()]
    figure = Figure(figsize=(9, 1.2 + sum(0.9 + 0.36 * height for height in heights)), layout="constrained")
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[height + 2.5 for height in heights])
    for axis, (title, variants) in zip(axes[:, 0], groups.items(), strict=True):
        _draw_group(axis, title, variants)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(BARS), frameon=False, fontsize=9)
    return figure


def _draw_group(axis: Axes, title: str, variants: Variants) -> None:
    full, *others = variants
    others.sort(key=lambda name: variants[name]["difference"]["accuracy"]["mean"])
    for number, (measure, colour) in enumerate(BARS.items()):
        places = [place + (number - 0.5) * BAR_HEIGHT for place in range(len(others))]
        found = [variants[name]["difference"][measure] for name in others]
        widths = [100 * each["mean"] for each in found]
        spread = [100 * each["std"] for each in found] if len(found[0]["seeds"]) > 1 else None
        label = f"{measure.replace('_', ' ')}, mean over bins after the cutoff"
        bars = axis.barh(places, widths, BAR_HEIGHT, xerr=spread, color=colour, label=label, error_kw={"lw": 0.8})
        axis.bar_label(bars, [f"{width:+.1f}" for width in widths], padding=3, fontsize=7)
    axis.set_yticks(range(len(others)), [f"without {name}" for name in others], fontsize=8)
    axis.invert_yaxis()
    axis.axvline(0, color="black", lw=0.8)
    axis.margins(x=0.14, y=0.02)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.set_xlabel("percentage points more or less than with everything", fontsize=8)
    axis.tick_params(axis="x", labelsize=8)
    scores = ", ".join(f"{COLUMNS[measure]} {variants[full][measure]['mean']:.3f}" for measure in BARS)
    axis.set_title(f"{title} (with everything: {scores})", fontsize=10, loc="left")
