"""Measures agree with scikit-learn's where it has them, and classes that answers don't reach count as missed."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn import metrics as sklearn_metrics

from recollect.evaluation.metrics import (
    BY_ROW,
    FLOOR,
    MEASURES,
    Labels,
    LogProbs,
    Measure,
    accuracy,
    auc,
    balanced_accuracy,
    brier,
    ece,
    interval,
    intervals,
    kappa,
    kappa_temporal,
    mcnemar,
    mean_over_bins,
    nll,
    paired_difference,
    per_bin,
    previous_labels,
    scores,
    scores_by_bin,
)

Arrays = tuple[np.ndarray, np.ndarray]


@st.composite
def answered(draw: st.DrawFn) -> Arrays:
    """Log-probabilities, coarse enough to tie at times, and labels among which a class may be missing."""
    rows, classes = draw(st.integers(2, 40)), draw(st.integers(2, 4))
    generator = np.random.default_rng(draw(st.integers(0, 10_000)))
    weights = generator.integers(1, draw(st.sampled_from([4, 1000])), (rows, classes)).astype(float)
    return np.log(weights / weights.sum(1, keepdims=True)), generator.integers(0, classes, rows)


@given(answered())
def test_measures_are_those_of_scikit_learn(given: Arrays) -> None:
    log_probs, labels = given
    answers, classes = log_probs.argmax(1), np.arange(log_probs.shape[1])
    assert accuracy(log_probs, labels) == pytest.approx(sklearn_metrics.accuracy_score(labels, answers))
    recalls = sklearn_metrics.recall_score(
        labels, answers, labels=np.unique(labels), average="macro", zero_division=np.nan
    )
    balanced = recalls if len(np.unique(labels)) > 1 else np.nan
    assert balanced_accuracy(log_probs, labels) == pytest.approx(balanced, nan_ok=True)
    probs = np.exp(log_probs)
    assert nll(log_probs, labels) == pytest.approx(sklearn_metrics.log_loss(labels, probs, labels=classes))
    squares = sklearn_metrics.brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert brier(log_probs, labels) == pytest.approx(squares)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of labels that are all the same
        assert kappa(log_probs, labels) == pytest.approx(
            sklearn_metrics.cohen_kappa_score(labels, answers), nan_ok=True
        )


@given(answered())
def test_auc_is_that_of_scikit_learn(given: Arrays) -> None:
    log_probs, labels = given
    probs, present = np.exp(log_probs), np.unique(labels)
    if len(present) == 1:
        assert np.isnan(auc(log_probs, labels))
    elif probs.shape[1] == 2:
        assert auc(log_probs, labels) == pytest.approx(sklearn_metrics.roc_auc_score(labels, log_probs[:, 1]))
    else:
        areas = [sklearn_metrics.roc_auc_score(labels == label, log_probs[:, label]) for label in present]
        assert auc(log_probs, labels) == pytest.approx(np.mean(areas))


@given(answered())
def test_calibration_error_is_the_weighted_gap_in_each_bin_of_confidence(given: Arrays) -> None:
    log_probs, labels = given
    confidence, right = np.exp(log_probs.max(1)), log_probs.argmax(1) == labels
    expected = 0.0
    for low in range(15):
        rows = (np.floor(confidence * 15) == low) | ((low == 14) & (confidence >= 1))
        if rows.any():
            expected += rows.mean() * abs(right[rows].mean() - confidence[rows].mean())
    assert ece(log_probs, labels) == pytest.approx(expected)


def test_a_class_the_answers_do_not_reach_is_missed_and_costs_the_floor() -> None:
    log_probs = np.log(np.array([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]]))
    labels = np.array([0, 1, 3])
    assert accuracy(log_probs, labels) == pytest.approx(2 / 3)
    assert balanced_accuracy(log_probs, labels) == pytest.approx(2 / 3)
    assert nll(log_probs, labels) == pytest.approx((-2 * np.log(0.75) - np.log(FLOOR)) / 3)
    assert brier(log_probs, labels) == pytest.approx((2 * 0.125 + 1.5) / 3)
    assert auc(log_probs, labels) == pytest.approx((1 + 1 + 0.5) / 3)
    assert set(scores(log_probs, labels)) == set(MEASURES)


def test_a_bin_of_one_class_says_nothing_of_balance() -> None:
    always = np.log(np.array([[0.75, 0.25]] * 6))
    labels, bins = np.array([0, 1, 0, 0, 0, 0]), np.array([0, 0, 0, 1, 1, 1])
    assert np.isnan(balanced_accuracy(always[:3], np.zeros(3, np.int64)))
    assert mean_over_bins(balanced_accuracy, always, labels, bins) == 0.5
    assert paired_difference(balanced_accuracy, always, always[:, ::-1], labels, bins, resamples=20).p_value == 1.0


def test_certainty_that_is_wrong_costs_the_floor() -> None:
    log_probs = np.array([[0.0, -np.inf], [0.0, -np.inf]], np.float32)
    labels = np.array([0, 1])
    assert nll(log_probs, labels) == pytest.approx(-np.log(FLOOR) / 2)
    assert ece(log_probs, labels) == pytest.approx(0.5)
    assert auc(log_probs, labels) == 0.5


def test_the_previous_label_is_the_newest_known_strictly_before() -> None:
    labels = np.array([3, 1, 2, 0, 1])
    time = np.array([0, 1, 2, 3, 4])
    assert previous_labels(labels, time, time).tolist() == [-1, 3, 1, 2, 0]
    # The first label comes last: known at 3, it is new to the row at 4 only.
    assert previous_labels(labels, time, np.array([3, 1, 2, 4, 4])).tolist() == [-1, -1, 1, 2, 3]
    assert previous_labels(labels, np.zeros(5), np.zeros(5)).tolist() == [-1] * 5
    # Known at one moment: the later row is the newer.
    assert previous_labels(labels, time, np.array([3, 3, 3, 3, 4]))[4] == 0


def test_kappa_temporal_is_what_is_gained_over_repeating() -> None:
    labels, previous = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1])
    log_probs = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]))
    assert kappa_temporal(log_probs, labels, previous) == 1
    assert kappa_temporal(log_probs[[0, 0, 0, 2]], labels, previous) == 0
    assert np.isnan(kappa_temporal(log_probs, labels, labels))
    assert scores(log_probs, labels, previous)["kappa_temporal"] == 1


def _made_up(rows: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    toward = np.where(labels == 1, 1.0, -1.0) + 1.5 * generator.standard_normal(rows)
    log_probs = -np.logaddexp(0, np.stack([toward, -toward], 1))
    return log_probs, labels, np.arange(rows) // 200


def test_bins_are_scored_one_by_one_and_up_to_each() -> None:
    log_probs, labels, bins = _made_up()
    bins = bins * 2 + 3  # numbers need not be consecutive
    previous = previous_labels(labels, np.arange(600), np.arange(600))
    found = scores_by_bin(log_probs, labels, bins, previous)
    assert [(entry["bin"], entry["rows"]) for entry in found] == [(3, 200), (5, 200), (7, 200)]
    middle = slice(200, 400)
    assert found[1] == {"bin": 5, "rows": 200, **scores(log_probs[middle], labels[middle], previous[middle])}
    running = scores_by_bin(log_probs, labels, bins, previous, cumulative=True)
    assert running[0] == found[0]
    assert running[2] == {"bin": 7, "rows": 600, **scores(log_probs, labels, previous)}


def test_every_bin_counts_the_same_and_undefined_ones_not_at_all() -> None:
    log_probs = np.log(np.array([[0.9, 0.1], [0.2, 0.8], [0.2, 0.8], [0.3, 0.7]]))
    labels, bins = np.array([0, 0, 1, 0]), np.array([0, 1, 1, 1])
    assert per_bin(accuracy, log_probs, labels, bins) == pytest.approx([1, 1 / 3])
    assert mean_over_bins(accuracy, log_probs, labels, bins) == pytest.approx(2 / 3)
    assert mean_over_bins(auc, log_probs, labels, bins) == pytest.approx(0.75)
    assert np.isnan(mean_over_bins(auc, log_probs[:1], labels[:1], bins[:1]))


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_an_interval_repeats_with_its_seed_and_holds_the_value(measure: object) -> None:
    log_probs, labels, bins = _made_up()
    first = interval(measure, log_probs, labels, bins, resamples=100, seed=1)  # type: ignore[arg-type]
    assert first == interval(measure, log_probs, labels, bins, resamples=100, seed=1)  # type: ignore[arg-type]
    assert first.low < first.high
    # Of the calibration error only the upper end: gaps are all positive, and resampling adds to them.
    assert first.value <= first.high


def test_an_interval_is_as_wide_as_theory_says_and_wider_where_errors_come_in_streaks() -> None:
    generator = np.random.default_rng(0)
    bins = np.zeros(2500, np.int64)
    answers = np.log(np.tile([0.9, 0.1], (2500, 1)))
    apart = interval(accuracy, answers, generator.permutation(2500) % 5 // 4, bins)
    theory = 2 * 1.96 * np.sqrt(0.8 * 0.2 / 2500)
    assert apart.high - apart.low == pytest.approx(theory, rel=0.15)
    streaks = interval(accuracy, answers, np.repeat(generator.permutation(100) % 5 // 4, 25), bins)
    assert streaks.high - streaks.low > 3 * theory


def test_one_row_per_bin_and_bins_of_one_class_have_intervals() -> None:
    log_probs, labels, _ = _made_up(3)
    assert interval(accuracy, log_probs, labels, np.arange(3), resamples=10).value == accuracy(log_probs, labels)
    assert np.isnan(interval(auc, log_probs, labels, np.arange(3), resamples=10).low)


def test_a_better_run_is_told_from_its_equal() -> None:
    log_probs, labels, bins = _made_up()
    same = paired_difference(accuracy, log_probs, log_probs, labels, bins, resamples=200)
    assert (same.value, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    worse = log_probs.copy()
    worse[::6] = worse[::6, ::-1]
    found = paired_difference(accuracy, log_probs, worse, labels, bins, resamples=200)
    assert 0 < found.low < found.value < found.high
    assert found.p_value == pytest.approx(2 / 201)
    turned = paired_difference(accuracy, worse, log_probs, labels, bins, resamples=200)
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low))


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (1, 0), (4, 9), (30, 30), (700, 820), (5000, 5000)])
def test_mcnemar_is_an_exact_binomial_test_of_the_rows_in_dispute(only_first: int, only_second: int) -> None:
    right, wrong = np.log([[0.9, 0.1]]), np.log([[0.1, 0.9]])
    both, total = 7, only_first + only_second
    first = np.repeat(np.concatenate([right, right, wrong]), [both, only_first, only_second], axis=0)
    second = np.repeat(np.concatenate([right, wrong, right]), [both, only_first, only_second], axis=0)
    expected = binomtest(only_first, total).pvalue if total else 1.0
    assert mcnemar(first, second, np.zeros(both + total, np.int64)) == pytest.approx(expected)


def test_every_measure_of_all_rows_has_an_interval() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=400)
    right = np.where(generator.random(400) < 0.8, labels, 1 - labels)
    log_probs = np.log(np.where(right[:, None] == np.arange(2), 0.8, 0.2))
    previous = np.roll(labels, 1)
    found = intervals(log_probs, labels, previous, resamples=50)
    assert {name: each.value for name, each in found.items()} == scores(log_probs, labels, previous)
    alone = interval(accuracy, log_probs, labels, np.zeros(400, np.int64), resamples=50)
    assert (alone.value, alone.low, alone.high) == pytest.approx(
        (found["accuracy"].value, found["accuracy"].low, found["accuracy"].high)
    )
    assert all(each.low < each.high for name, each in found.items() if name != "coverage")


@pytest.mark.parametrize("measure", BY_ROW)
def test_rows_judged_once_give_what_rows_judged_anew_give(measure: Measure) -> None:
    generator = np.random.default_rng(0)
    labels, bins = generator.integers(3, size=300), np.sort(generator.integers(4, size=300))
    runs = [np.log(generator.dirichlet(np.ones(3), size=300)) for _ in range(2)]

    def anew(log_probs: LogProbs, labels: Labels) -> float:
        return measure(log_probs, labels)

    quick, plain = (paired_difference(each, *runs, labels, bins, resamples=50) for each in (measure, anew))
    assert (quick.value, quick.low, quick.high) == pytest.approx((plain.value, plain.low, plain.high))
    quick_ends, plain_ends = (interval(each, runs[0], labels, bins, resamples=50) for each in (measure, anew))
    assert (quick_ends.value, quick_ends.low) == pytest.approx((plain_ends.value, plain_ends.low))
