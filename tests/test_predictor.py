"""Predictions are greedy, come with their precedents, and are made in tiles of so many rows."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.data.synthetic import NeedleTask
from recollect.inputs import Inputs
from recollect.model.build import Architecture, build_system
from recollect.predictor import TILE_ROWS, Predictor
from recollect.records import FeatureSpec, Visible
from recollect.retrieval.keys import OwnKeys
from recollect.training.batches import episode_batch
from tests.reference import dense_greedy, dense_keys, dense_log_p, dense_logits
from tests.tiny import (
    ARCHITECTURES,
    CLASSES,
    RETRIEVED,
    history_of,
    make_history,
    make_rows,
    make_system,
    rows_of,
    seeded,
)

ROWS = 2 * TILE_ROWS - 4
"""More than one tile and no whole number of them."""


def make_inputs(count: int = ROWS) -> Inputs:
    """Rows of a history as inputs: those of the first day see nothing, the next few less than there are slots."""
    return make_rows(ROWS).rows(torch.arange(count)).inputs


def logits_of(predictor: Predictor, inputs: Inputs) -> Tensor:
    system = predictor.system
    with torch.no_grad():
        queries = system.queries(system.encode(inputs.features), inputs.own_keys)
    scale = 1.0 / (predictor.temperature * inputs.keys.width**0.5)
    return dense_logits(queries, dense_keys(inputs.keys), inputs.visible, scale)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_precedents_are_the_greedy_chain(architecture: Architecture) -> None:
    predictor, inputs = Predictor(make_system(architecture), temperature=0.5), make_inputs()
    found = predictor.predict(inputs)
    logits = logits_of(predictor, inputs)
    filled = found.positions >= 0
    assert torch.equal(found.positions, dense_greedy(logits))
    assert len(set(filled.sum(1).tolist())) > 2
    log_p = dense_log_p(logits, found.positions).float()
    torch.testing.assert_close(found.probability, log_p.exp() * filled)
    torch.testing.assert_close(found.log_probs.exp().sum(1), torch.ones(ROWS))
    assert found.log_probs.shape == (ROWS, CLASSES)
    assert not found.log_probs.requires_grad


def test_ages_count_from_the_moment_of_the_prediction() -> None:
    inputs, history = make_inputs(), make_history(ROWS)
    found = Predictor(make_system()).predict(inputs)
    filled = found.positions >= 0
    assert found.age is not None
    ages = inputs.as_of[:, None] - history.times[found.positions.clamp(min=0)]
    assert torch.equal(found.age, torch.where(filled, ages, 0.0).float())
    assert (found.age[filled] > 0).all()


def test_weights_are_the_classifiers_attention() -> None:
    found = Predictor(make_system("precedents")).predict(make_inputs())
    assert found.weight is not None
    shown = (found.positions >= 0).any(1)
    torch.testing.assert_close(found.weight.sum(1), shown.float())
    assert not found.weight[found.positions < 0].any()
    assert Predictor(make_system("mlp")).predict(make_inputs()).weight is None


def test_temperature_sharpens_probabilities_and_changes_no_choice() -> None:
    system, inputs = make_system(), make_inputs()
    warm, cold = Predictor(system, 1.0).predict(inputs), Predictor(system, 0.01).predict(inputs)
    assert torch.equal(warm.positions, cold.positions)
    assert torch.equal(warm.log_probs, cold.log_probs)
    assert (cold.probability >= warm.probability - 1e-6).all()
    assert (cold.probability <= 1.0).all()


@pytest.mark.parametrize("count", [0, 1, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, ROWS])
def test_any_number_of_inputs_is_answered(count: int) -> None:
    predictor = Predictor(make_system())
    few, all_of_them = predictor.predict(make_inputs(count)), predictor.predict(make_inputs())
    assert torch.equal(few.log_probs, all_of_them.log_probs[:count])
    assert torch.equal(few.positions, all_of_them.positions[:count])


def test_without_context_every_slot_is_empty() -> None:
    found = Predictor(make_system()).predict(make_inputs(), use_context=False)
    assert (found.positions == -1).all()
    assert found.age is not None
    assert found.weight is not None
    assert not found.probability.any()
    assert not found.age.any()
    assert not found.weight.any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_system_without_slots_retrieves_nothing(architecture: Architecture) -> None:
    found = Predictor(make_system(architecture, num_retrieved=0)).predict(make_inputs())
    assert found.positions.shape == (ROWS, 0)
    assert found.log_probs.isfinite().all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bare_labels_can_be_retrieved(architecture: Architecture) -> None:
    system = make_system(architecture, retrieve="labels", ages=False)
    inputs = make_inputs()
    items, fetched = inputs.show(torch.zeros(ROWS, 1, RETRIEVED, dtype=torch.long), features=False, ages=False)
    assert (items.features, items.ages) == ({}, None)
    assert fetched.features.keys() == {"text", "amount", "shop"}
    assert Predictor(system, retrieve="labels", ages=False).predict(inputs).log_probs.isfinite().all()


def test_items_without_times_have_no_age() -> None:
    task = NeedleTask.draw(6, seeded(0), key_dim=4)
    inputs = episode_batch(task.sample(5, seeded(1))).inputs
    torch.manual_seed(0)
    system = build_system(
        "precedents",
        [FeatureSpec("x", "embedded", 4)],
        [FeatureSpec("x", "embedded", 8)],
        key_dim=4,
        num_classes=2,
        label_classes=0,
        num_retrieved=1,
        width=8,
    )
    found = Predictor(system, ages=False).predict(inputs)
    assert (found.age, found.weight) == (None, None)


def test_a_class_first_met_among_precedents_is_possible_only_where_it_was_met() -> None:
    rows, predictor = make_rows(ROWS), Predictor(make_system())
    late = int(predictor.predict(rows.rows(torch.arange(ROWS)).inputs).positions[-1, 0])
    history = history_of(rows)
    history = replace(history, labels=history.labels.clone())
    history.labels[late] = CLASSES + 1  # a class that training never saw
    found = predictor.predict(rows_of(history).rows(torch.arange(ROWS)).inputs)
    met = (found.positions == late).any(1)
    assert not met[:TILE_ROWS].any()
    assert met.any()
    assert found.log_probs.shape == (ROWS, CLASSES + 2)
    assert (found.log_probs[met, CLASSES + 1] > -20).all()
    assert (found.log_probs[~met, CLASSES + 1] == -torch.inf).all()
    assert (found.log_probs[:, CLASSES] == -torch.inf).all()
    torch.testing.assert_close(found.log_probs.exp().sum(1), torch.ones(ROWS))


def test_inputs_can_be_taken_in_any_order_and_more_than_once() -> None:
    index = torch.tensor([4, 0, 4])
    keys, recency = torch.randn(5, 7, 2, generator=seeded(0)), torch.rand(5, 7, generator=seeded(1))
    for column in (recency, None):
        own = replace(
            make_inputs(5),
            own_keys=keys[:, 0],
            keys=OwnKeys(keys, column),
            visible=Visible(torch.zeros(5, dtype=torch.long), torch.full((5,), 7)),
        )
        taken = own.take(index)
        assert len(taken) == 3
        assert taken.rows.tolist() == [4, 0, 4]
        assert isinstance(taken.keys, OwnKeys)
        assert torch.equal(taken.keys.keys, keys[index])
        assert (taken.keys.recency is None) if column is None else torch.equal(taken.keys.recency, column[index])
        assert all(torch.equal(taken.features[name], own.features[name][index]) for name in own.features)
    shared = make_inputs(5)
    assert shared.take(index).keys is shared.keys
