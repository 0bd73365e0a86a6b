"""Peers see only what was known by the moment they may look, and do what their names say."""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import SettingError
from recollect.evaluation import peers as table_of_peers
from recollect.evaluation import refitted_peers
from recollect.evaluation.metrics import accuracy, nll
from recollect.evaluation.peers import DEFAULT, SLOW, peers
from recollect.evaluation.refitted_peers import fit_lightgbm, fit_logistic_regression
from recollect.evaluation.stream import Stream
from tests.evaluation.streams import make_stream

FITTED = ("logreg", "lightgbm")
BY_BIN = tuple(f"{name}_refit_{span}" for name in FITTED for span in ("period", "year"))
BY_ROW = ("previous_label", "recent_neighbours")
FROZEN = ("majority", *(f"{name}_frozen" for name in FITTED))


def answers(name: str, stream: Stream) -> np.ndarray:
    (peer,) = peers(period=0.5, year=2.0, names=[name], recent=100)
    assert peer.name == name
    return peer.predict(stream)


def moments(name: str, stream: Stream) -> np.ndarray:
    """When each asked row's answer was settled."""
    if name in FROZEN:
        return np.full(len(stream.asked), stream.cutoff)
    own = stream.time[stream.asked]
    if name in (*BY_BIN, "finetuned"):
        bins = stream.bins[stream.asked]
        return np.array([own[bins == number][0] for number in bins])
    return own


def assert_sees_no_future(name: str, stream: Stream, moment: float) -> None:
    """Labels known at the moment or later are changed: no answer settled by then may change by a bit."""
    labels = np.where(stream.known_at >= moment, (stream.labels + 1) % stream.num_classes, stream.labels)
    other = replace(stream, labels=labels)
    settled = moments(name, stream) <= moment
    assert settled.any()
    assert (answers(name, stream)[settled] == answers(name, other)[settled]).all()


def late(rows: int, seed: int) -> np.ndarray:
    """Labels at once, much later, and in batches, so that there are ties with the times of rows."""
    time = np.arange(rows) * 6 / rows
    delays = np.random.default_rng(seed).choice([0.0, 0.0, 0.01, 0.3, 2.0], rows)
    known_at = time + delays
    return np.where(np.arange(rows) % 3 == 0, np.maximum(known_at, np.ceil(known_at)), known_at)


@pytest.mark.parametrize("name", [*BY_ROW, "majority"])
@given(seed=st.integers(0, 1000), moment=st.integers(151, 299), classes=st.integers(2, 4))
@settings(max_examples=15)
def test_a_label_not_yet_known_changes_no_answer(name: str, seed: int, moment: int, classes: int) -> None:
    stream = make_stream(rows=300, classes=classes, seed=seed, known_at=late(300, seed))
    assert_sees_no_future(name, stream, float(stream.time[moment]))


@pytest.mark.parametrize("name", [*BY_BIN, "logreg_frozen", "lightgbm_frozen", "finetuned", "hoeffding_adaptive"])
@pytest.mark.parametrize("moment", [4.0, 4.75])
def test_a_label_not_yet_known_changes_no_fit(name: str, moment: float) -> None:
    assert_sees_no_future(name, make_stream(rows=360, classes=3, known_at=late(360, 1)), moment)


@pytest.mark.parametrize("name", DEFAULT)
def test_answers_are_probabilities_of_the_asked_rows(name: str) -> None:
    stream = make_stream(classes=3)
    found = answers(name, stream)
    assert found.shape == (len(stream.asked), 3)
    assert np.exp(found).sum(1) == pytest.approx(1)


@pytest.mark.parametrize("name", ["lightgbm_refit_period", "recent_neighbours", *SLOW])
def test_asking_twice_gives_the_same(name: str) -> None:
    stream = make_stream(rows=300)
    assert (answers(name, stream) == answers(name, stream)).all()


@pytest.mark.parametrize("name", [*BY_BIN, "recent_neighbours", "arf"])
def test_what_learns_again_follows_a_rule_that_turned_and_what_is_frozen_does_not(name: str) -> None:
    stream = make_stream(rows=900)
    before, after = stream.time[stream.asked] < 4, stream.time[stream.asked] >= 5
    labels = stream.labels[stream.asked]
    found, still = answers(name, stream), answers("logreg_frozen", stream)
    assert accuracy(still[before], labels[before]) > 0.9
    assert accuracy(still[after], labels[after]) < 0.1
    assert accuracy(found[before], labels[before]) > 0.85
    assert accuracy(found[after], labels[after]) > (0.4 if name.endswith("year") else 0.8)


def test_fine_tuning_follows_too_where_rows_are_many() -> None:
    stream = make_stream(rows=12_000)
    after = stream.asked[stream.time[stream.asked] >= 5.5]
    found = answers("finetuned", stream)
    assert accuracy(found[after - stream.asked[0]], stream.labels[after]) > 0.9


def test_the_majority_is_that_of_the_past() -> None:
    stream = make_stream(labels=np.arange(600) % 10 // 7, turning=False)
    found = np.exp(answers("majority", stream))
    assert found == pytest.approx(np.tile([0.7, 0.3], (300, 1)))


def test_the_previous_label_is_answered_with_the_belief_it_earned() -> None:
    labels = np.arange(600) // 10 % 2
    found = np.exp(answers("previous_label", make_stream(labels=labels)))
    assert (found.argmax(1) == labels[299:-1]).all()
    # Right in nine of ten rows of the past.
    assert found.max(1) == pytest.approx(0.9, abs=0.01)
    alternating = np.arange(600) % 2
    found = np.exp(answers("previous_label", make_stream(labels=alternating)))
    assert (found.argmax(1) == alternating[299:-1]).all()
    assert found.max(1) == pytest.approx(0.51)


def test_a_late_label_is_the_previous_one_only_once_known() -> None:
    labels = np.arange(600) // 100 % 3
    found = answers("previous_label", make_stream(labels=labels, classes=3, delay=1.0))
    # Rows are a hundredth apart, and what became known at a row's own time is not visible.
    assert (found.argmax(1) == labels[300 - 101 : -101]).all()


def test_neighbours_are_the_nearest_of_the_newest() -> None:
    stream = make_stream(rows=400, classes=3, known_at=late(400, 3))
    (peer,) = peers(period=1.0, year=1.0, names=["recent_neighbours"], neighbours=5, recent=60)
    found = np.exp(peer.predict(stream))
    table, past = stream.table.astype(np.float64), stream.past
    table = (table - table[past].mean(0)) / table[past].std(0)
    order = np.argsort(stream.known_at, kind="stable")
    for place, row in enumerate(stream.asked):
        newest = order[stream.known_at[order] < stream.time[row]][-60:]
        nearest = newest[np.argsort(((table[newest] - table[row]) ** 2).sum(1))[:5]]
        shares = np.bincount(stream.labels[newest], minlength=3) / len(newest)
        assert found[place] == pytest.approx((np.bincount(stream.labels[nearest], minlength=3) + shares) / 6)


def test_of_equally_near_neighbours_the_newest_vote() -> None:
    stream = make_stream(labels=np.arange(600) // 300, turning=False)
    stream = replace(stream, features={"numbers": stream.features["numbers"] * 0})
    (peer,) = peers(period=1.0, year=1.0, names=["recent_neighbours"], neighbours=10, recent=200)
    assert (peer.predict(stream).argmax(1) == ([0] * 6 + [1] * 294)).all()


def test_numbers_that_stand_for_missing_ones_do_not_undo_the_vote() -> None:
    """One column is nothing before the cutoff and some huge number or none after it: its size tells nothing."""
    stream = make_stream(rows=400)

    def voted(size: float) -> np.ndarray:
        after = np.where(np.arange(400) % 2 == 1, size, 0) * (stream.time >= stream.cutoff)
        numbers = stream.features["numbers"].clone()
        numbers[:, 0] = torch.from_numpy(after).float()
        return answers("recent_neighbours", replace(stream, features={"numbers": numbers}))

    assert np.isfinite(voted(1e36)).all()
    assert (voted(1e36) == voted(1e10)).all()


def test_many_labels_that_come_at_once_do_not_make_a_block_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from recollect.evaluation import simple_peers

    seen = []
    nearest = simple_peers._nearest

    def watched(distance: np.ndarray, count: int) -> np.ndarray:
        seen.append(distance.shape)
        return nearest(distance, count)

    stream = make_stream(rows=3000)
    expected = answers("recent_neighbours", replace(stream, known_at=np.ceil(stream.time + 1e-9)))
    monkeypatch.setattr(simple_peers, "_nearest", watched)
    assert (answers("recent_neighbours", replace(stream, known_at=np.ceil(stream.time + 1e-9))) == expected).all()
    assert max(candidates for _, candidates in seen) <= 200


@pytest.mark.parametrize("name", ["logreg_refit_period", "lightgbm_refit_period"])
def test_a_window_of_one_class_or_few_rows_keeps_the_fit_before(name: str) -> None:
    stream = make_stream(turning=False)
    sure = replace(stream, labels=np.where((stream.time >= 3.5) & (stream.time < 4.5), 1, stream.labels))
    found = answers(name, sure)
    bins = sure.bins[sure.asked]
    # The bins from 4 and from 4.5 on would be fitted on a single class, and are answered by the fit made at 3.5.
    usual = answers(name, stream)
    assert (found[bins <= 7] == usual[bins <= 7]).all()
    again = replace(stream, bins=np.where((stream.bins == 8) | (stream.bins == 9), 7, stream.bins))
    kept = answers(name, again)
    assert (found[(bins == 8) | (bins == 9)] == kept[(bins == 8) | (bins == 9)]).all()
    assert accuracy(found[bins == 9], stream.labels[stream.asked][bins == 9]) > 0.9
    few = replace(stream, known_at=np.where(stream.time >= 2.6, 6.0, stream.known_at))
    assert (answers(name, few) == answers(name.replace("refit_period", "frozen"), few)).all()


def test_a_refit_left_out_is_told() -> None:
    stream = make_stream(turning=False)
    few = replace(stream, known_at=np.where(stream.time >= 2.6, 6.0, stream.known_at))
    skipped: list[int | float] = []
    (peer,) = peers(period=0.5, year=2.0, names=["logreg_refit_period"], on_skip=skipped.append)
    peer.predict(stream)
    assert not skipped
    peer.predict(few)
    assert len(skipped) > 1
    assert min(skipped) >= stream.cutoff


@pytest.mark.parametrize("name", ["logreg_refit_period", "finetuned"])
def test_refits_come_as_often_as_asked(name: str) -> None:
    stream = make_stream()
    (often,) = peers(period=0.5, year=2.0, every=0.25, names=[name])
    (by_bin,) = peers(period=0.5, year=2.0, names=[name])
    quarters = replace(stream, bins=np.floor((stream.time - stream.cutoff) / 0.25).astype(np.int64))
    assert (often.predict(stream) == by_bin.predict(quarters)).all()


@pytest.mark.parametrize("name", DEFAULT + SLOW)
def test_a_past_of_one_class_is_answered_with_it(name: str) -> None:
    stream = make_stream(rows=200, labels=np.zeros(200, np.int64))
    assert (answers(name, stream).argmax(1) == 0).all()


@pytest.mark.parametrize("name", ["previous_label", "recent_neighbours", *BY_BIN, "hoeffding_adaptive"])
def test_a_class_first_met_after_the_cutoff_is_answered_once_known(name: str) -> None:
    stream = make_stream(turning=False)
    new = (stream.time >= 4) & (stream.table[:, 1] > -0.5)
    stream = replace(stream, labels=np.where(new, 2, stream.labels))
    found = answers(name, stream)
    assert found.shape[1] == 3
    assert (found[stream.time[stream.asked] < 4, 2] == -np.inf).all()
    assert (found[(new & (stream.time >= 5))[stream.asked]].argmax(1) == 2).mean() > 0.4


@pytest.mark.parametrize("name", DEFAULT + SLOW)
def test_nothing_known_before_the_cutoff_is_refused(name: str) -> None:
    stream = make_stream(rows=100, delay=3.0)
    with pytest.raises(SettingError, match="nothing to learn from: choose a later cutoff"):
        answers(name, stream)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r'no peer "forest": choose among majority, previous_label, .*, finetuned'):
        peers(period=1.0, year=1.0, names=["forest"])


@pytest.mark.parametrize(
    ("name", "package"), [("logreg_frozen", "sklearn"), ("lightgbm_refit_year", "lightgbm"), ("arf", "river")]
)
def test_a_missing_package_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(table_of_peers, "find_spec", lambda wanted: None)
    with pytest.raises(SettingError, match=rf"{name} needs the package {package}: pip install 'recollect\[peers\]'"):
        peers(period=1.0, year=1.0, names=[name])
    assert peers(period=1.0, year=1.0, names=["majority"])


@pytest.mark.parametrize("name", ["logreg_refit_year", "recent_neighbours", "hoeffding_adaptive", "finetuned"])
def test_progress_ends_at_its_total(name: str) -> None:
    told: list[tuple[int, int]] = []
    tell: Callable[[int, int], None] = lambda done, total: told.append((done, total))  # noqa: E731
    (peer,) = peers(period=0.5, year=2.0, names=[name], on_progress=tell)
    peer.predict(make_stream())
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0


def test_logistic_regression_shrinks_where_columns_are_many_and_rows_few() -> None:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((300, 150)).astype(np.float32)
    noisy = (table[:, 0] + 2 * generator.standard_normal(300) > 0).astype(np.int64)
    clear = (table[:, 0] > 0).astype(np.int64)
    assert fit_logistic_regression(table, noisy)[-1].C == 0.01  # type: ignore[index]
    assert fit_logistic_regression(table[:, :1], clear)[-1].C == 1.0  # type: ignore[index]


def test_a_fit_that_did_not_converge_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream()
    fit_logistic_regression(stream.table, stream.labels)
    assert not caplog.records
    monkeypatch.setattr(refitted_peers, "MOST_STEPS", 1)
    with caplog.at_level(logging.WARNING):
        fit_logistic_regression(stream.table, stream.labels)
    assert "logistic regression on 600 rows: lbfgs failed to converge" in caplog.text


def test_rare_classes_do_not_undo_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """With LightGBM's own settings rare ones of several classes make it sure of what is wrong."""
    generator = np.random.default_rng(0)
    chances = 1 / np.arange(1, 13) ** 2
    labels = generator.choice(12, 1200, p=chances / chances.sum())
    table = generator.normal(size=(12, 4))[labels] + generator.normal(size=(1200, 4))

    def loss() -> float:
        model = fit_lightgbm(table[:600], labels[:600], seed=0)
        said = np.full((600, 12), -np.inf)
        with np.errstate(divide="ignore"):
            said[:, model.classes_] = np.log(model.predict_proba(table[600:]))
        return nll(said, labels[600:])

    held = loss()
    monkeypatch.setattr(refitted_peers, "MULTICLASS_SHRINKAGE", 0.0)
    assert held < 0.8 * loss()
