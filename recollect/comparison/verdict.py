"""What a comparison comes to, in words: did history help, against whom, by how much, and what would refitting do?

Knows answers and labels by bin; nothing of how they came about. May well say no.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.evaluation.metrics import Difference, LogProbs, accuracy, mean_over_bins, paired_difference

OURS = "recollect"
RULES = ("majority", "previous_label")
LEARNING = ("arf", "leveraging_bagging", "hoeffding_adaptive", "recent_neighbours")
CLEAR = 0.005
"""Differences of less than half a point of accuracy are called small."""


@dataclass(frozen=True)
class Verdict:
    """One word, one sentence, and the figures behind it."""

    helps: bool
    headline: str
    lines: list[str]
    differences: dict[str, Difference]


def judge(runs: Mapping[str, Sequence[LogProbs]], labels: NDArray[np.int64], bins: NDArray[np.int64]) -> Verdict:
    """Our first seed against everyone else's; the frozen models decide, the others tell what else there is."""
    ours = runs[OURS][0]
    names = [name for name in runs if name not in (OURS, "recollect_refit")]
    found = {name: mean_over_bins(accuracy, runs[name][0], labels, bins) for name in runs}
    differences = {
        name: paired_difference(accuracy, ours, runs[name][0], labels, bins, resamples=300) for name in names
    }
    frozen = [name for name in names if name.endswith("_frozen") or name in ("no_context", "majority")]
    best_frozen = max(frozen, key=lambda name: found[name])
    against = differences[best_frozen]
    lines = []
    if against.low > 0 and against.value >= CLEAR:
        helps = True
        headline = (
            f"Yes: with its weights frozen and its history growing, Recollect was right {_points(against.value)} more "
            f"often than the best frozen model ({best_frozen})."
        )
    elif against.high < 0:
        helps = False
        headline = (
            f"No: keep your frozen model. {best_frozen} was right {_points(-against.value)} more often than Recollect."
        )
    else:
        helps = False
        headline = (
            f"No clear gain: Recollect and the best frozen model ({best_frozen}) differ by "
            f"{_points(abs(against.value))}, which may be chance. Keep your frozen model."
        )
    which = "Recollect (its first seed)" if len(runs[OURS]) > 1 else "Recollect"
    lines.append(
        f"{which} {found[OURS]:.3f}, {best_frozen} {found[best_frozen]:.3f}: a difference of "
        f"{100 * against.value:+.1f} points, 95% interval {100 * against.low:+.1f} to {100 * against.high:+.1f}."
    )
    refitted = [name for name in names if "_refit_" in name or name == "finetuned"]
    if refitted:
        best = max(refitted, key=lambda name: found[name])
        gained = found[best] - found[best_frozen]
        lines.append(
            f"Refitting would have bought {100 * gained:+.1f} points over that frozen model "
            f"({best}, {found[best]:.3f}); history bought {100 * against.value:+.1f} without refitting."
        )
    for rule in RULES:
        if rule in differences and differences[rule].value < 0:
            helps = False
            headline = f"No: always answering the {rule.replace('_', ' ')} does better than Recollect here."
    online = [name for name in names if name in LEARNING]
    if online:
        best = max(online, key=lambda name: found[name])
        lines.append(f"Best of those that learn from every label: {best}, {found[best]:.3f}.")
    if "recollect_refit" in found:
        gained = found["recollect_refit"] - found[OURS]
        lines.append(f"Training Recollect anew as well would have changed it by {100 * gained:+.1f} points.")
    return Verdict(helps, headline, lines, differences)


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"
