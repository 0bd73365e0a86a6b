"""What a comparison comes to, in words: did history help, against whom, by how much, and what would refitting do?

Knows answers and labels by bin; nothing of how they came about. May well say no.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.evaluation.metrics import Difference, LogProbs, accuracy, mean_over_bins, paired_difference

OURS = "recollect"
PLAIN = "no_context"
RULES = ("majority", "previous_label")
LEARNING = ("arf", "leveraging_bagging", "hoeffding_adaptive", "recent_neighbours")
CLEAR = 0.005
"""Differences of less than half a point of accuracy are called small."""

UNEVEN = 3
"""Where a period has so many times the rows of a usual one, it is told how many of all rows were right, too."""

Accuracies = Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """One word, one sentence, and the figures behind it. `refits` says how far apart refits may be, where asked."""

    helps: bool
    headline: str
    lines: list[str]
    differences: dict[str, Difference]
    refits: dict[str, str] | None = None


def judge(
    runs: Mapping[str, Sequence[LogProbs]],
    labels: NDArray[np.int64],
    bins: NDArray[np.int64],
    refits: Mapping[str, str] | None = None,
    never_refitted: Collection[str] = (),
) -> Verdict:
    """Our first seed against everyone else's; what stays frozen and rules of thumb decide, the others are told of.

    `refits` holds our models that are trained anew, shortest span first, with the span as people write it.
    `never_refitted` are peers that should have been, but too few rows were known each time: they tell nothing of
    refitting.
    """
    refits = refits or {}
    names = [name for name in runs if name != OURS and name not in refits]
    found = {name: mean_over_bins(accuracy, runs[name][0], labels, bins) for name in runs}
    of_all = {name: accuracy(runs[name][0], labels) for name in runs}
    differences = {
        name: paired_difference(accuracy, runs[OURS][0], runs[name][0], labels, bins, resamples=300) for name in names
    }

    def best_of(chosen: Sequence[str]) -> str | None:
        return max(chosen, key=lambda name: found[name], default=None)

    frozen = best_of([name for name in names if name.endswith("_frozen") or name in (PLAIN, "majority")])
    rule = best_of([name for name in names if name in RULES])
    refitted = best_of(
        [name for name in names if ("_refit_" in name or name == "finetuned") and name not in never_refitted]
    )
    learning = best_of([name for name in names if name in LEARNING])
    helps, headline = _decided(frozen, rule, found, differences)
    if helps and frozen is not None and of_all[OURS] <= of_all[frozen]:
        helps = False
        headline = (
            f"No clear answer: in the mean over periods Recollect was right {_points(differences[frozen].value)} more "
            f"often than {_best(frozen)}, but of all rows {_points(of_all[frozen] - of_all[OURS])} less often."
        )
    better = best_of([name for name in (refitted, learning) if name and _clearly_better(differences[name])])
    if better is not None:
        headline = _with_what_is_better(helps, headline, better, differences[better])
    lines = []
    which = "Recollect (its first seed)" if len(runs[OURS]) > 1 else "Recollect"
    for name in dict.fromkeys([frozen, best_of([name for name in names if name.endswith("_frozen")])]):
        if name is not None:
            gap = differences[name]
            lines.append(
                f"{which} {found[OURS]:.3f}, {_called(name)} {found[name]:.3f}: a difference of "
                f"{100 * gap.value:+.1f} points, 95% interval {100 * gap.low:+.1f} to {100 * gap.high:+.1f}."
            )
    rows = np.unique(bins, return_counts=True)[1]
    if frozen is not None and rows.max() > UNEVEN * np.median(rows):
        lines.append(
            f"Periods count alike, but hold {rows.min():,} to {rows.max():,} rows: of all rows {which} answered "
            f"{of_all[OURS]:.3f} right, {_called(frozen)} {of_all[frozen]:.3f}."
        )
    if refitted is not None and frozen is not None:
        same = frozen if refitted == "finetuned" else best_of(_refitted_too(names, never_refitted))
        lines.append(_bought(refitted, frozen, same, found))
    if never_refitted:
        who = ", ".join(sorted(never_refitted))
        lines.append(f"Never refitted, since too few rows were known in the span looked back on: {who}.")
    told = best_of([name for name in names if name in (*LEARNING, "previous_label")])
    if told is not None:
        lines.append(f"Best of those that learn from every label: {told}, {found[told]:.3f}.")
    apart, line = _how_far_apart(found, refits)
    return Verdict(helps, headline, lines + line, differences, apart)


def _refitted_too(names: Collection[str], never_refitted: Collection[str]) -> list[str]:
    """The frozen models of those families that were refitted as well."""
    families = {name.split("_refit_")[0] for name in names if "_refit_" in name and name not in never_refitted}
    return [name for name in names if name.endswith("_frozen") and name.removesuffix("_frozen") in families]


def _bought(refitted: str, frozen: str, same: str | None, found: Accuracies) -> str:
    """Over the best frozen model that was refitted too, `same`: where another is better still, that is no price of
    refitting."""
    if same is None:
        return f"What refitting buys is not known: {refitted} ({found[refitted]:.3f}) has no frozen model beside it."
    over = "the best of what stays frozen" if same == frozen else same
    line = (
        f"Refitting would have bought {100 * (found[refitted] - found[same]):+.1f} points over {over} ({refitted}, "
        f"{found[refitted]:.3f}); history bought {100 * (found[OURS] - found[same]):+.1f} without refitting."
    )
    if same == frozen or frozen in RULES:
        return line
    return f"{line} But {_called(frozen)}, the best of what stays frozen, was not refitted."


def _decided(
    frozen: str | None, rule: str | None, found: Accuracies, differences: Mapping[str, Difference]
) -> tuple[bool, str]:
    """Whether history helps: it has to beat the best that stays frozen and the best rule of thumb, both clearly."""
    rivals = [name for name in (frozen, rule) if name is not None]
    if not rivals:
        return False, "No verdict: nothing stays frozen here to compare Recollect with."
    unbeaten = [name for name in rivals if not _clearly_worse(differences[name])]
    if not unbeaten and not any(name.endswith("_frozen") for name in differences):
        least = min(rivals, key=lambda name: differences[name].value)
        return False, (
            f"No verdict: Recollect was right {_points(differences[least].value)} more often than {_called(least)}, "
            "but no frozen model was asked, and that may be better: add --peer logreg_frozen or --peer lightgbm_frozen."
        )
    if not unbeaten:
        against = min(rivals, key=lambda name: differences[name].value) if frozen is None else frozen
        return True, (
            f"Yes: with its weights frozen and its history growing, Recollect was right "
            f"{_points(differences[against].value)} more often than {_best(against)}."
        )
    rival = max(unbeaten, key=lambda name: found[name])
    gap = differences[rival]
    advice = "" if rival in RULES or rival == PLAIN else " Keep your frozen model."
    if not _clearly_better(gap):
        return False, (
            f"No clear difference: Recollect and {_best(rival)} differ by {_points(abs(gap.value))}, "
            f"which may be chance or is too little to matter.{advice}"
        )
    if rival in RULES:
        return False, f"No: {_called(rival)} does better than Recollect here, by {_points(-gap.value)}."
    return False, f"No: {_called(rival)} was right {_points(-gap.value)} more often than Recollect.{advice}"


def _with_what_is_better(helps: bool, headline: str, better: str, gap: Difference) -> str:
    """A yes is only half of the truth where something else does better still."""
    what = "which is simpler" if better == "recent_neighbours" else _kind(better)
    if not helps:
        return f"{headline} Of the others {better}, {what}, was right {_points(-gap.value)} more often than Recollect."
    gain = headline.removeprefix("Yes: ")
    return (
        f"Yes, history helps over what stays frozen, but {better}, {what}, does better still: it was right "
        f"{_points(-gap.value)} more often than Recollect. {gain[0].upper()}{gain[1:]}"
    )


def _kind(name: str) -> str:
    if name in LEARNING:
        return "which learns from every label"
    return "which is trained further every period" if name == "finetuned" else "which is fitted anew every period"


def _how_far_apart(found: Accuracies, refits: Mapping[str, str]) -> tuple[dict[str, str] | None, list[str]]:
    """The longest span between refits of our model, never being the longest, that costs less than half a point."""
    if not refits:
        return None, []
    spans = {**refits, OURS: "never"}
    best = max(spans, key=lambda name: found[name])
    longest = [name for name in spans if found[name] >= found[best] - CLEAR][-1]
    told = ", ".join(f"{span} {found[name]:.3f}" for name, span in spans.items())
    advice = "needs no refitting" if longest == OURS else f"can go {spans[longest]} between refits"
    cost = "" if longest == best else f" for less than half a point below {spans[best]}"
    line = f"Recollect {advice}{cost}. By span between refits: {told}."
    return {"best": spans[best], "longest": spans[longest]}, [line]


def _clearly_worse(ours_less_theirs: Difference) -> bool:
    return ours_less_theirs.low > 0 and ours_less_theirs.value >= CLEAR


def _clearly_better(ours_less_theirs: Difference) -> bool:
    return ours_less_theirs.high < 0 and -ours_less_theirs.value >= CLEAR


def _best(name: str) -> str:
    return f"the best frozen model ({name})" if name.endswith("_frozen") else _called(name)


def _called(name: str) -> str:
    """People know their own models by name; what is ours, or no model, is told as what it is."""
    if name == PLAIN:
        return f"our own network without history ({PLAIN})"
    return f"always answering the {name.replace('_', ' ')}" if name in RULES else name


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"
