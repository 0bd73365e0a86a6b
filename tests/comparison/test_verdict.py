"""The verdict says yes only where history clearly helps."""

import numpy as np
import pytest

from recollect.comparison.verdict import judge

LABELS = np.tile([0, 1], 400)
BINS = np.repeat(np.arange(4), 200)


def answers(right: float, seed: int = 0) -> list[np.ndarray]:
    chance = np.random.default_rng(seed).random(len(LABELS))
    said = np.where(chance < right, LABELS, 1 - LABELS)
    return [np.log(np.where(said[:, None] == np.arange(2), 0.8, 0.2))]


def wrong_at(*rows: int) -> list[np.ndarray]:
    """Right everywhere else."""
    said = LABELS.copy()
    said[list(rows)] = 1 - said[list(rows)]
    return [np.log(np.where(said[:, None] == np.arange(2), 0.8, 0.2))]


def test_a_clear_gain_is_a_yes_and_tells_what_refitting_would_buy() -> None:
    runs = {"recollect": answers(0.9), "no_context": answers(0.6, 1), "logreg_refit_period": answers(0.7, 2)}
    runs["logreg_frozen"] = answers(0.6, 3)
    verdict = judge(runs, LABELS, BINS)
    assert verdict.helps
    assert verdict.headline.startswith("Yes: ")
    assert any("Refitting would have bought" in line for line in verdict.lines)
    assert verdict.differences["no_context"].low > 0.2


def test_repeating_the_last_label_is_learning_from_every_label() -> None:
    runs = {"recollect": answers(0.9), "no_context": answers(0.6, 1), "logreg_frozen": answers(0.6, 3)}
    runs |= {"recent_neighbours": answers(0.65, 4), "previous_label": answers(0.75, 5)}
    assert any("learn from every label: previous_label" in line for line in judge(runs, LABELS, BINS).lines)


def test_a_few_rows_of_many_periods_make_no_yes_against_the_many_of_one() -> None:
    """Periods count alike; but then it has to be told, and whoever is right less often is not called better."""
    few = np.concatenate([np.repeat(np.arange(9), 5), np.full(755, 9)])
    runs = {"recollect": wrong_at(*range(45, 145)), "logreg_frozen": wrong_at(*range(40))}
    verdict = judge(runs, LABELS, few)
    assert verdict.differences["logreg_frozen"].low > 0.5
    assert not verdict.helps
    assert verdict.headline.startswith("No clear answer: in the mean over periods Recollect was right ")
    assert "of all rows Recollect answered 0.875 right, logreg_frozen 0.950." in " ".join(verdict.lines)
    assert not any("Periods count alike" in line for line in judge(runs, LABELS, BINS).lines)


def test_without_a_frozen_model_there_is_no_yes() -> None:
    """Our own network without its history may be much worse than what people have."""
    runs = {"recollect": answers(0.9), "no_context": answers(0.6, 1), "majority": answers(0.5, 2)}
    verdict = judge(runs, LABELS, BINS)
    assert not verdict.helps
    assert verdict.headline.startswith("No verdict: Recollect was right ")
    assert "--peer logreg_frozen" in verdict.headline


def test_who_was_never_refitted_tells_nothing_of_refitting() -> None:
    runs = {"recollect": answers(0.9), "logreg_frozen": answers(0.6, 1), "logreg_refit_period": answers(0.6, 1)}
    lines = judge(runs, LABELS, BINS, never_refitted=["logreg_refit_period"]).lines
    assert not any("Refitting would have bought" in line for line in lines)
    assert any("Never refitted" in line and "logreg_refit_period" in line for line in lines)


def test_what_refitting_buys_is_told_of_those_that_were_refitted() -> None:
    """Another family, frozen and better, says nothing of it."""
    runs = {"recollect": wrong_at(*range(16)), "lightgbm_frozen": wrong_at(*range(40))}
    runs |= {"logreg_frozen": wrong_at(*range(320)), "logreg_refit_period": wrong_at(*range(240))}
    told = " ".join(judge(runs, LABELS, BINS).lines)
    assert "Refitting would have bought +10.0 points over logreg_frozen (logreg_refit_period, 0.700); " in told
    assert "; history bought +38.0 without refitting. But lightgbm_frozen, the best of what stays frozen, was " in told
    both = judge(runs | {"lightgbm_refit_year": wrong_at(*range(32))}, LABELS, BINS)
    bought = "Refitting would have bought +1.0 points over the best of what stays frozen (lightgbm_refit_year, 0.960)"
    assert f"{bought}; history bought +3.0 without refitting." in both.lines
    # A rule can't be refitted.
    assert "was not refitted" not in " ".join(judge(runs | {"majority": wrong_at()}, LABELS, BINS).lines)
    # One whose weights go on being trained is of no family: against the best of what stays frozen.
    tuned = "Refitting would have bought +3.0 points over the best of what stays frozen (finetuned, 0.980); "
    assert tuned in " ".join(judge(runs | {"finetuned": wrong_at(*range(16))}, LABELS, BINS).lines)
    del runs["logreg_frozen"]
    alone = "What refitting buys is not known: logreg_refit_period (0.700) has no frozen model beside it."
    assert alone in judge(runs, LABELS, BINS).lines


@pytest.mark.parametrize(
    ("ours", "frozen", "said"),
    [(0.6, 0.9, "No: lightgbm_frozen was right"), (0.8, 0.8, "No clear difference: Recollect and the best frozen")],
)
def test_otherwise_the_frozen_model_is_kept(ours: float, frozen: float, said: str) -> None:
    verdict = judge({"recollect": answers(ours), "lightgbm_frozen": answers(frozen, 1)}, LABELS, BINS)
    assert not verdict.helps
    assert verdict.headline.startswith(said)
    assert verdict.headline.endswith("Keep your frozen model.")


def test_a_rule_of_thumb_that_does_better_is_named() -> None:
    runs = {"recollect": answers(0.8), "no_context": answers(0.6, 1), "previous_label": answers(0.95, 2)}
    verdict = judge(runs, LABELS, BINS)
    assert not verdict.helps
    assert "previous label does better" in verdict.headline


def test_a_gap_too_small_to_matter_is_no_clear_difference() -> None:
    """A quarter of a point, however sure it is that it is there."""
    rows = [0, 250, 450, 650]
    runs = {"recollect": wrong_at(*rows), "no_context": answers(0.6), "previous_label": wrong_at(*rows[:2])}
    verdict = judge(runs, LABELS, BINS)
    assert not verdict.helps
    assert verdict.headline.startswith("No clear difference: Recollect and always answering the previous label")
    assert "Keep your frozen model" not in verdict.headline


@pytest.mark.parametrize(
    ("name", "kind"),
    [("recent_neighbours", "which is simpler"), ("lightgbm_refit_year", "which is fitted anew every period")],
)
def test_what_does_better_still_is_in_the_headline(name: str, kind: str) -> None:
    verdict = judge({"recollect": answers(0.8), "logreg_frozen": answers(0.6, 1), name: answers(0.95, 2)}, LABELS, BINS)
    assert verdict.helps
    assert verdict.headline.startswith(f"Yes, history helps over what stays frozen, but {name}, {kind}, does better")
    assert "the best frozen model (logreg_frozen)" in verdict.headline
    worse = judge({"recollect": answers(0.8), "logreg_frozen": answers(0.9, 1), name: answers(0.95, 2)}, LABELS, BINS)
    assert worse.headline.startswith("No: logreg_frozen")
    assert f"Of the others {name}, {kind}" in worse.headline


def test_our_own_network_is_not_called_your_model() -> None:
    runs = {"recollect": answers(0.9), "no_context": answers(0.8, 1), "logreg_frozen": answers(0.6, 2)}
    verdict = judge(runs, LABELS, BINS)
    assert verdict.headline.endswith("more often than our own network without history (no_context).")
    assert any("logreg_frozen 0." in line for line in verdict.lines)
    runs["no_context"] = answers(0.97, 1)
    assert judge(runs, LABELS, BINS).headline.startswith("No: our own network without history (no_context) was right")


@pytest.mark.parametrize(
    ("frozen", "longest", "said"),
    [(range(4), "never", "needs no refitting"), (range(40), "90d", "can go 90d between refits")],
)
def test_the_longest_span_between_refits_that_costs_little(frozen: range, longest: str, said: str) -> None:
    refits = {"recollect_refit_30d": "30d", "recollect_refit_90d": "90d", "recollect_refit_365d": "365d"}
    runs = {"recollect": wrong_at(*frozen), "no_context": answers(0.6), "recollect_refit_30d": wrong_at(5)}
    runs |= {"recollect_refit_90d": wrong_at(5, 6, 7), "recollect_refit_365d": wrong_at(*range(20))}
    verdict = judge(runs, LABELS, BINS, refits)
    assert verdict.refits == {"best": "30d", "longest": longest}
    assert said in verdict.lines[-1]
    assert "365d 0.975" in verdict.lines[-1]
