"""A table of rows in, a model out: from the past alone, and better after a change than the same net without history."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

from recollect.config import recipe_named
from recollect.data.intake import fit_intake
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.evaluation.replay import replay
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import make_stream
from recollect.records import FeatureSpec
from recollect.training.fit import Fitted, Sizes, fit, history_of, sizes_for
from recollect.training.slots import calibrated_sharpness

SIZES = Sizes(width=16, num_retrieved=8, steps=60, batch_size=64, patience=6, validate_every=20, validation_size=64)


def stream(rows: int = 900, cutoff: int = 600, seed: int = 0, late: float = 0.0) -> Stream:
    """The label is the sign of the first column, and from the cutoff on its opposite."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 3)).astype(np.float32)
    time = np.arange(rows, dtype=np.float64)
    labels = ((x[:, 0] > 0) != (time >= cutoff)).astype(np.int64)
    return Stream(
        {"x": torch.from_numpy(x)},
        (FeatureSpec("x", "numeric", 3),),
        labels,
        time,
        time + late,
        (time // 100).astype(np.int64),
        float(cutoff),
        num_classes=2,
    )


def trained(rows: Stream, seed: int = 0) -> Fitted:
    return fit(rows, recipe_named("default"), seed=seed, sizes=SIZES)


def test_after_a_change_history_answers_and_weights_stay() -> None:
    rows = stream()
    fitted = trained(rows)
    result = replay(fitted.live())
    after = result.positions >= 700
    labels = torch.from_numpy(rows.labels)[result.positions]

    def accuracy(log_probs: torch.Tensor) -> float:
        return float((log_probs[after].argmax(1) == labels[after]).float().mean())

    assert accuracy(result.head("no_context")) < 0.2
    assert accuracy(result.log_probs) > 0.75


def test_values_that_nobody_had_met_before_the_cutoff_are_told_apart_by_their_labels() -> None:
    """Shops of after the cutoff share one place in every feature; each says always the same of the label."""
    count, cutoff = 1200, 400
    generator = np.random.default_rng(0)
    shop = generator.integers(0, 20, count) + np.where(np.arange(count) < cutoff, 0, 20)
    table = pl.DataFrame({"shop": [f"shop {each}" for each in shop], "x": generator.normal(size=count)})
    labels, time, schema = (shop // 2) % 2, np.arange(count), TableSchema(numeric=("x",), categorical=("shop",))
    intake = fit_intake(table, np.arange(cutoff), schema, None, {}, labels, time, time)
    rows = make_stream(table, intake, {}, labels, time, time, time // 200, cutoff, 2)
    result = replay(trained(rows).live())
    late = result.positions >= 800
    said = result.log_probs[late].argmax(1)
    assert float((said == torch.from_numpy(labels)[result.positions[late]]).float().mean()) > 0.9


@pytest.mark.parametrize("late", [0.0, 30.0])
def test_nothing_known_after_the_cutoff_reaches_the_weights(late: float) -> None:
    rows = stream(rows=300, cutoff=200, late=late)
    unknown = rows.known_at >= rows.cutoff
    features = rows.features["x"].clone()
    features[torch.from_numpy(rows.time >= rows.cutoff)] += 100.0
    changed = replace(rows, labels=np.where(unknown, 1 - rows.labels, rows.labels), features={"x": features})
    sizes = replace(SIZES, steps=6, validate_every=3)
    one, other = (fit(each, recipe_named("default"), sizes=sizes) for each in (rows, changed))
    assert one.model.keys.fingerprint == other.model.keys.fingerprint
    for name, tensor in one.objective.state_dict().items():
        assert torch.equal(tensor, other.objective.state_dict()[name]), name


def test_the_newest_part_of_the_past_is_not_trained_on() -> None:
    rows = stream(rows=300, cutoff=200)
    fitted = fit(rows, recipe_named("default"), sizes=replace(SIZES, steps=2))
    assert len(fitted.trained) == 170
    assert fitted.live().untrained_from == 170


def test_the_same_seed_gives_the_same_model() -> None:
    rows = stream(rows=200, cutoff=150)
    sizes = replace(SIZES, steps=4, validate_every=2)
    one, other = (fit(rows, recipe_named("default"), seed=3, sizes=sizes).objective.state_dict() for _ in range(2))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_queries_start_at_the_perplexity_that_was_asked_for() -> None:
    rows = stream(rows=500, cutoff=400)
    fitted = fit(rows, recipe_named("default"), sizes=replace(SIZES, steps=1))
    lookup = history_of(rows, fitted.model.keys, fitted.model.clock)
    sharp = calibrated_sharpness(lookup, torch.arange(400))
    keys = lookup.view.items.key
    entropies = []
    for row in range(150, 400, 10):
        log_p = (sharp * (keys[:row] @ keys[row]) / (keys.shape[1] + 1) ** 0.5).log_softmax(0)
        entropies.append(float(-(log_p.exp() * log_p).sum()))
    assert np.exp(np.mean(entropies)) == pytest.approx(32, rel=0.15)


@pytest.mark.parametrize(("share", "groups"), [(0.0, (8,)), (0.25, (2, 6)), (1.0, (8,))])
def test_slots_are_shared_out_between_the_recent_and_the_nearest(share: float, groups: tuple[int, ...]) -> None:
    rows = stream(rows=200, cutoff=150)
    fitted = fit(rows, recipe_named("default"), sizes=replace(SIZES, steps=1, recent_share=share))
    assert fitted.objective.system.group_sizes == groups
    picked = fitted.model.predictor.predict(fitted.lookup.inputs_at(torch.tensor([180]))).positions
    newest = set(range(180 - round(share * 8), 180))
    assert newest <= set(picked.flatten().tolist())
    assert share == 1.0 or min(picked.flatten().tolist()) < 172


def test_a_window_bounds_what_is_seen_and_no_slots_are_a_plain_classifier() -> None:
    rows = stream(rows=200, cutoff=150)
    sizes = replace(SIZES, steps=2, num_retrieved=4)
    for window, oldest in ((10, 170), (None, 0)):
        seen = fit(rows, recipe_named("default"), sizes=replace(sizes, window=window)).lookup
        assert seen.inputs_at(torch.tensor([180])).visible.start.tolist() == [oldest]
    plain = fit(rows, recipe_named("default"), sizes=replace(sizes, num_retrieved=0))
    assert plain.model.predictor.predict(plain.lookup.inputs_at(torch.tensor([180]))).log_probs.shape == (1, 2)


def test_too_little_past_is_refused() -> None:
    with pytest.raises(SettingError, match="10 labels are known to train on, 20 are needed"):
        trained(stream(rows=50, cutoff=10))


def test_a_few_rows_are_learned_where_that_is_asked_for_and_none_of_them_is_held_out() -> None:
    rows = stream(rows=10, cutoff=10)
    fitted = fit(rows, recipe_named("default"), sizes=replace(SIZES, steps=3), least_past=2)
    live = fitted.live()
    assert len(fitted.trained) == live.untrained_from == 10
    answers = live.answer(rows.features, fitted.model.keys(rows.features), torch.full((10,), 10.0, dtype=torch.float64))
    torch.testing.assert_close(answers.log_probs.exp().sum(1), torch.ones(10))


@pytest.mark.parametrize(("rows", "steps"), [(10, 24), (300, 375), (1_000, 1000), (32_000, 2000), (2_000_000, 3000)])
def test_sizes_follow_the_data(rows: int, steps: int) -> None:
    assert sizes_for(rows).steps == steps


def test_sizes_grow_with_the_data_up_to_those_of_many_rows() -> None:
    found = [sizes_for(rows) for rows in (2, 20, 100, 300, 600, 999, 1000, 5000, 20_000, 48_000, 2_000_000)]
    for one, other in pairwise(found):
        for name in ("width", "num_retrieved", "steps", "batch_size", "validate_every"):
            assert getattr(one, name) <= getattr(other, name), name
    assert found[-1] == Sizes(64, 32, 3000, 128, 6, 250, 1024)


def test_training_gives_the_same_bits_with_any_number_of_threads() -> None:
    before = torch.get_num_threads()
    weights = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            fitted = fit(stream(), recipe_named("default"), sizes=replace(SIZES, steps=10))
            assert torch.get_num_threads() == threads
            weights.append(fitted.objective.state_dict())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
