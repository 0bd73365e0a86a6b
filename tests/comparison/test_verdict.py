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


def test_a_clear_gain_is_a_yes_and_tells_what_refitting_would_buy() -> None:
    runs = {"recollect": answers(0.9), "no_context": answers(0.6, 1), "logreg_refit_period": answers(0.7, 2)}
    verdict = judge(runs, LABELS, BINS)
    assert verdict.helps
    assert verdict.headline.startswith("Yes")
    assert any("Refitting would have bought" in line for line in verdict.lines)
    assert verdict.differences["no_context"].low > 0.2


@pytest.mark.parametrize(("ours", "frozen", "said"), [(0.6, 0.9, "No: keep your frozen"), (0.8, 0.8, "No clear gain")])
def test_otherwise_the_frozen_model_is_kept(ours: float, frozen: float, said: str) -> None:
    verdict = judge({"recollect": answers(ours), "lightgbm_frozen": answers(frozen, 1)}, LABELS, BINS)
    assert not verdict.helps
    assert verdict.headline.startswith(said)


def test_a_rule_of_thumb_that_does_better_is_named() -> None:
    runs = {"recollect": answers(0.8), "no_context": answers(0.6, 1), "previous_label": answers(0.95, 2)}
    verdict = judge(runs, LABELS, BINS)
    assert not verdict.helps
    assert "previous label does better" in verdict.headline
