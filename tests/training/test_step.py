"""One step: every estimator trains, its terms pull the right way, and odd inputs stay finite."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.config import Dropouts, RehearsalMix, StepSettings
from recollect.data.synthetic import RotatingTask
from recollect.errors import SettingError
from recollect.model.build import Architecture
from recollect.predictor import Predictor
from recollect.records import Answer, Items, Visible
from recollect.retrieval.gradients import entropy, retrieve
from recollect.retrieval.keys import OwnKeys
from recollect.training.batches import Batch, episode_batch
from recollect.training.showing import draw_showing
from recollect.training.step import IMPOSSIBLE, Moment, Objective, StepResult, mass_on_others_picks, nll_of
from tests.reference import dense_keys, dense_logits
from tests.tiny import (
    ARCHITECTURES,
    CLASSES,
    KEY_DIM,
    RETRIEVED,
    history_of,
    make_objective,
    make_rows,
    nudged,
    rows_of,
    seeded,
    without_gradient,
)

SWAP = RehearsalMix(1.0, merge=0.0, three=0.0, region=0.0, change_point=0.0, novel=0.0)
ESTIMATORS: list[dict[str, Any]] = [
    dict(estimator="leave_one_out", samples=3),
    dict(estimator="multi_sample", samples=3),
    dict(estimator="greedy_baseline", pathwise="sampled", samples=1),
    dict(estimator="greedy_baseline", pathwise="greedy", samples=1),
    dict(estimator="label_marginal", samples=1),
    dict(estimator="label_marginal", samples=2),
]
WARM = Moment()
TERMS = dict(diversity_weight=0.1, similarity_weight=0.1)


def late_batch() -> Batch:
    """Inputs that see more items than there are slots."""
    return make_rows().rows(torch.arange(30, 60))


def early_batch() -> Batch:
    """Inputs that see nothing, one item, three, ..."""
    batch = make_rows().rows(torch.arange(0, 24))
    seen = (batch.inputs.visible.stop - batch.inputs.visible.start).tolist()
    assert {0, 1, 3} <= set(seen)
    return batch


def make(settings: dict[str, Any], architecture: Architecture = "precedents", **changes: Any) -> Objective:
    """An objective; of bare labels without ages where the estimator asks for these."""
    if settings.get("estimator") == "label_marginal":
        changes = dict(retrieve="labels", ages=False) | changes
    return make_objective(StepSettings(**settings), architecture, **changes)


def step(objective: Objective, batch: Batch, moment: Moment = WARM, seed: int = 0) -> StepResult:
    objective.zero_grad()
    result: StepResult = objective(lambda: (batch, moment), seeded(seed))
    result.loss.backward()
    return result


def all_finite(objective: Objective) -> bool:
    return all(p.grad is None or bool(p.grad.isfinite().all()) for p in objective.parameters())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("settings", ESTIMATORS, ids=str)
def test_every_estimator_reaches_queries_and_classifier(settings: dict[str, Any], architecture: Architecture) -> None:
    objective = nudged(make(settings, architecture))
    result = step(objective, late_batch())
    assert result.loss.isfinite()
    assert result.nll > 0
    assert all_finite(objective)
    assert without_gradient(objective) == []


@pytest.mark.parametrize("settings", ESTIMATORS, ids=str)
def test_every_estimator_learns(settings: dict[str, Any]) -> None:
    """Labels follow the first column of the features: a few steps of plain descent lower the nll."""
    rows = make_rows(classes=2)
    history = history_of(rows)
    rows = rows_of(replace(history, labels=(history.keys[:, 0] > 0).long()))
    objective, batch = make(settings, classes=2), rows.rows(torch.arange(30, 60))
    before = float(objective.validate(batch, seeded(0), rehearsed=False))
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    for seed in range(12):
        step(objective, batch, seed=seed)
        optimizer.step()
    assert float(objective.validate(batch, seeded(0), rehearsed=False)) < before - 0.1


@pytest.mark.parametrize("terms", [{}, TERMS], ids=["plain", "terms"])
@pytest.mark.parametrize("settings", ESTIMATORS, ids=str)
def test_inputs_that_see_less_than_the_slots_stay_finite(settings: dict[str, Any], terms: dict[str, float]) -> None:
    objective = make(settings | terms)
    result = step(objective, early_batch(), Moment(0.001, 0.1))
    assert all(value.isfinite() for value in result)
    assert all_finite(objective)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("settings", ESTIMATORS, ids=str)
def test_where_nothing_is_visible_the_answer_is_that_without_context(
    settings: dict[str, Any], architecture: Architecture
) -> None:
    batch = late_batch()
    nothing = torch.zeros(30, dtype=torch.long)
    blind = replace(batch, inputs=replace(batch.inputs, visible=Visible(nothing, nothing)))
    objective = make(settings | TERMS | dict(rehearsal=RehearsalMix()), architecture)
    result = step(objective, blind, Moment(0.001, 0.1))
    predictor = Predictor(objective.system, retrieve="items" if objective.features else "labels", ages=objective.ages)
    log_probs = predictor.predict(batch.inputs, use_context=False).log_probs
    expected = -log_probs[torch.arange(30), batch.targets].mean()
    torch.testing.assert_close(result.nll, expected)
    assert result.loss.isfinite()
    assert (float(result.entropy), float(result.age)) == (0.0, 0.0)
    assert all_finite(objective)


def test_hidden_nonsense_at_the_start_of_the_history_harms_nothing() -> None:
    """Empty slots stand on position 0, which an input with a window may not see."""
    batch = late_batch()
    keys = batch.inputs.keys.tile(0, 60)[:, :KEY_DIM].clone()
    keys[0] = torch.nan
    start = batch.inputs.visible.stop - 2
    inputs = replace(batch.inputs, keys=replace(batch.inputs.keys, keys=keys), visible=Visible(start, start + 2))
    objective = make(dict(samples=2, rehearsal=RehearsalMix(1.0)) | TERMS)
    result = step(objective, replace(batch, inputs=inputs), Moment(0.001, 0.1))
    assert all(value.isfinite() for value in result)
    assert all_finite(objective)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_system_without_slots_is_trained_by_its_plain_nll(architecture: Architecture) -> None:
    objective = make(dict(samples=2, rehearsal=RehearsalMix(1.0)), architecture, num_retrieved=0)
    batch = late_batch()
    result = step(objective, batch)
    log_probs = Predictor(objective.system).predict(batch.inputs).log_probs
    expected = -log_probs[torch.arange(30), batch.targets].mean()
    torch.testing.assert_close(result.loss.detach(), expected)
    torch.testing.assert_close(objective.validate(batch, seeded(0), rehearsed=True), expected)
    assert (float(result.entropy), float(result.age)) == (0.0, 0.0)


@pytest.mark.parametrize("estimator", ["leave_one_out", "multi_sample"])
def test_comparing_one_chain_with_itself_is_refused(estimator: str) -> None:
    with pytest.raises(SettingError, match=f"{estimator} compares chains .* samples is 1: set it to 2 or more"):
        make(dict(estimator=estimator, samples=1))


@pytest.mark.parametrize("changes", [dict(retrieve="items"), dict(ages=True)], ids=str)
def test_the_label_marginal_of_more_than_labels_is_refused(changes: dict[str, Any]) -> None:
    message = 'set retrieve = "labels" and ages = False, or use estimator "leave_one_out"'
    with pytest.raises(SettingError, match=re.escape(message)):
        make(dict(estimator="label_marginal", samples=2), **changes)


def test_the_label_marginal_with_rehearsal_on_a_shared_history_is_refused() -> None:
    objective = make(dict(estimator="label_marginal", samples=2, rehearsal=SWAP))
    with pytest.raises(SettingError, match='use estimator "leave_one_out", or set the rehearsal probability to 0'):
        step(objective, late_batch())


def test_a_step_repeats_by_its_generator() -> None:
    objective = make(dict(samples=2, rehearsal=RehearsalMix(0.5), dropouts=Dropouts(0.2, 0.2, 0.2)))
    one, same, other = (step(objective, late_batch(), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(left, right) for left, right in zip(one, same, strict=True))
    assert not torch.equal(one.loss, other.loss)


# What is watched.


def test_entropy_and_age_are_those_of_what_was_drawn() -> None:
    batch, objective = late_batch(), make(dict(samples=200), num_retrieved=1)
    result = step(objective, batch)
    assert float(result.entropy) == pytest.approx(float(mean_entropy(objective, batch).detach()), abs=0.05)
    logits = dense_logits(
        queries_of(objective, batch), dense_keys(batch.inputs.keys), batch.inputs.visible, (KEY_DIM + 1) ** -0.5
    )
    assert batch.item_times is not None
    ages = batch.inputs.as_of[:, None] - batch.item_times
    expected = (logits.squeeze(1).softmax(1) * ages).sum(1).mean()
    assert float(result.age) == pytest.approx(float(expected.detach()), rel=0.05)


def test_without_ages_none_is_reported() -> None:
    assert float(step(make(dict(samples=2), ages=False), late_batch()).age) == 0.0


def test_a_class_out_of_reach_is_as_good_as_impossible() -> None:
    answer = Answer(torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]]]).log())
    nll = nll_of(answer, torch.tensor([7, 1]))
    torch.testing.assert_close(nll, torch.tensor([[-IMPOSSIBLE], [-torch.tensor(0.75).log()]]))
    assert nll_of(answer, torch.tensor([2, 0]))[0] == -IMPOSSIBLE


# The paper's three terms, each by its own gradient: the difference that it makes to a step.


def queries_of(objective: Objective, batch: Batch) -> Tensor:
    return objective.system.queries(objective.system.encode(batch.inputs.features), batch.inputs.own_keys)


def mean_entropy(objective: Objective, batch: Batch) -> Tensor:
    queries = queries_of(objective, batch)
    found = retrieve(queries, batch.inputs.keys, batch.inputs.visible, temperature=1.0)
    return entropy(queries, found.scores).mean()


def mean_similarity(objective: Objective, batch: Batch) -> Tensor:
    plain = queries_of(objective, batch)[:, :, :KEY_DIM]
    return torch.cosine_similarity(plain, batch.inputs.own_keys.unsqueeze(1), dim=-1).mean()


def mean_overlap(objective: Objective, batch: Batch) -> Tensor:
    """Expected probability of meeting the same item in two slots, if each drew by itself."""
    logits = dense_logits(
        queries_of(objective, batch), dense_keys(batch.inputs.keys), batch.inputs.visible, (KEY_DIM + 1) ** -0.5
    )
    p = logits.softmax(-1)
    pairs = torch.einsum("bqi,bpi->bqp", p, p)
    return (pairs.sum((1, 2)) - pairs.diagonal(dim1=1, dim2=2).sum(1)).mean()


@pytest.mark.parametrize(
    ("settings", "moment", "quantity", "sign"),
    [
        ({}, Moment(1.0, 1.0), mean_entropy, 1),
        (dict(similarity_weight=1.0), Moment(), mean_similarity, 1),
        (dict(diversity_weight=1.0), Moment(), mean_overlap, -1),
    ],
    ids=["entropy", "similarity", "diversity"],
)
def test_a_step_along_a_term_alone_moves_its_quantity_the_right_way(
    settings: dict[str, float], moment: Moment, quantity: Callable[[Objective, Batch], Tensor], sign: int
) -> None:
    objective, batch = make(dict(samples=16) | settings), late_batch()
    plain = Objective(objective.system, StepSettings(samples=16), CLASSES, ages=True)
    parameters = list(objective.system.retrieval_parameters())
    with_term = objective(lambda: (batch, moment), seeded(0)).loss
    without = plain(lambda: (batch, Moment()), seeded(0)).loss
    gradient = torch.autograd.grad(with_term - without, parameters, allow_unused=True)
    before = quantity(objective, batch)
    with torch.no_grad():
        for parameter, slope in zip(parameters, gradient, strict=True):
            if slope is not None:
                parameter -= 0.05 * slope
    assert sign * float((quantity(objective, batch) - before).detach()) > 1e-4


@pytest.mark.parametrize("batch", [late_batch(), early_batch()], ids=["late", "early"])
def test_mass_on_others_picks_equals_the_dense_sum(batch: Batch) -> None:
    objective = make(dict(samples=2))
    queries = queries_of(objective, batch).detach().requires_grad_()
    uniforms = torch.rand(len(batch.targets), 2, RETRIEVED, generator=seeded(0), dtype=torch.float64)
    found = retrieve(queries, batch.inputs.keys, batch.inputs.visible, temperature=0.5, uniforms=uniforms)
    sampled = found.sampled()
    mass_on_others_picks(queries, found, sampled).backward()
    dense = queries.detach().clone().requires_grad_()
    logits = dense_logits(dense, dense_keys(batch.inputs.keys), batch.inputs.visible, found.scores.scale)
    p = logits.masked_fill((logits == -torch.inf).all(2, keepdim=True), 0.0).softmax(2)
    masses = []
    for row, chains in enumerate(sampled.positions.tolist()):
        for chain in chains:
            for slot in range(RETRIEVED):
                masses += [p[row, slot, pick] for other, pick in enumerate(chain) if other != slot and pick >= 0]
    expected = torch.stack(masses).mean()
    expected.backward()
    torch.testing.assert_close(mass_on_others_picks(queries, found, sampled), expected.float())
    torch.testing.assert_close(queries.grad, dense.grad, rtol=1e-4, atol=1e-6)


# Validation.


def test_plain_validation_is_the_nll_of_prediction() -> None:
    objective, batch = make(dict(samples=2, dropouts=Dropouts(1.0, 1.0, 1.0), rehearsal=SWAP)), early_batch()
    log_probs = Predictor(objective.system).predict(batch.inputs).log_probs
    expected = -log_probs[torch.arange(24), batch.targets].mean()
    torch.testing.assert_close(objective.validate(batch, seeded(0), rehearsed=False), expected)


def flipped(batch: Batch) -> Batch:
    """The same batch in a world where both classes have changed names."""
    rows = make_rows(classes=2)
    history = replace(history_of(rows), labels=1 - history_of(rows).labels)
    return rows_of(history).rows(batch.inputs.rows + 30)


def test_rehearsed_validation_is_validation_in_the_world_of_the_rule() -> None:
    batch = make_rows(classes=2).rows(torch.arange(30, 60))
    objective = make(dict(samples=2, rehearsal=replace(SWAP, probability=0.1)), classes=2)
    rehearsed = objective.validate(batch, seeded(0), rehearsed=True)
    assert torch.equal(rehearsed, objective.validate(flipped(batch), seeded(0), rehearsed=False))
    assert not torch.equal(rehearsed, objective.validate(batch, seeded(0), rehearsed=False))


@pytest.mark.parametrize("settings", ESTIMATORS[:4], ids=str)
def test_a_rehearsed_step_is_a_step_in_the_world_of_the_rule(settings: dict[str, Any]) -> None:
    batch = make_rows(classes=2).rows(torch.arange(30, 60))
    rehearsing = make(settings | dict(rehearsal=SWAP, dropouts=Dropouts(0.2)), classes=2)
    plain = make(settings | dict(dropouts=Dropouts(0.2)), classes=2)
    assert step(rehearsing, batch) == step(plain, flipped(batch))


# The label marginal against the sum over all items.


def own_batch() -> Batch:
    task = replace(RotatingTask.draw(seeded(0), dimensions=KEY_DIM, dates=False), history_size=5)
    as_of = 0.1 + 0.4 * torch.rand(12, generator=seeded(1), dtype=torch.float64)
    episodes = task.sample(as_of, seeded(2))
    batch = episode_batch(episodes, recency=True)
    features = {
        "text": episodes.inputs["x"],
        "amount": torch.randn(12, 1, generator=seeded(3)),
        "shop": torch.randint(3, (12,), generator=seeded(4)),
    }
    return replace(batch, inputs=replace(batch.inputs, features=features))


@pytest.mark.parametrize(
    ("layout", "rehearsal"),
    [("own", RehearsalMix()), ("own", RehearsalMix(0.8, novel=0.3)), ("shared", RehearsalMix())],
    ids=["own", "own-rehearsed", "shared"],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_label_marginal_of_one_slot_is_the_exact_expectation(
    architecture: Architecture, layout: str, rehearsal: RehearsalMix
) -> None:
    classes = 2 if layout == "own" else CLASSES
    batch = own_batch() if layout == "own" else early_batch()
    objective = make(
        dict(estimator="label_marginal", samples=2, rehearsal=rehearsal, dropouts=Dropouts(0.2, 0.0, 0.2)),
        architecture,
        num_retrieved=1,
        classes=classes,
    )
    result = step(objective, batch, Moment(0.5), seed=5)
    found = [None if p.grad is None else p.grad.clone() for p in objective.parameters()]

    # The same draws as the step's: first the uniform numbers of its chains, then what is shown.
    generator, size = seeded(5), len(batch.targets)
    torch.rand(size, 2, 1, generator=generator, dtype=torch.float64)
    seen = (batch.inputs.visible.stop > batch.inputs.visible.start).unsqueeze(1)
    settings = objective.settings
    showing = draw_showing(batch, seen, settings.dropouts, rehearsal, classes, generator, features=False, ages=False)
    objective.zero_grad()
    system = objective.system
    state = system.encode(batch.inputs.features)
    queries = system.queries(state, batch.inputs.own_keys)
    scale = 2.0 / batch.inputs.keys.width**0.5
    logits = dense_logits(queries, dense_keys(batch.inputs.keys), batch.inputs.visible, scale).squeeze(1)
    items = logits.shape[1]
    p = torch.where(seen, logits, 0.0).softmax(1).float()
    # Every item as a chain of its own.
    labels = showing.labels_of_all(batch).expand(size, -1).unsqueeze(2)
    filled = (seen & ~showing.dropped).unsqueeze(1).expand(-1, items, -1)
    nll = nll_of(system.classify(state, Items(filled, {}, labels), showing.keep_input), showing.targets(batch))
    expected = (p * nll).sum(1).mean()
    expected.backward()
    torch.testing.assert_close(result.loss.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    for gradient, parameter in zip(found, objective.parameters(), strict=True):
        assert (gradient is None) == (parameter.grad is None)
        if gradient is not None and parameter.grad is not None:
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("samples", [0, -3])
def test_a_step_draws_at_least_one_chain(samples: int) -> None:
    with pytest.raises(SettingError, match=f"samples is {samples}: draw at least 1 chain"):
        make(dict(estimator="greedy_baseline", samples=samples))


def test_labels_that_training_never_saw_are_one_class_to_the_label_marginal() -> None:
    rows = make_rows()
    history_of(rows).labels[20:25] = 1000
    batch = rows.rows(torch.arange(35, 60))
    keep = batch.targets < CLASSES
    batch = rows.rows(torch.arange(35, 60)[keep])
    assert step(make(dict(estimator="label_marginal", samples=2)), batch).loss.isfinite()


def test_mixed_precision_leaves_retrieval_in_float32() -> None:
    batch = own_batch()
    assert isinstance(batch.inputs.keys, OwnKeys)
    objective = make(dict(samples=2, estimator="greedy_baseline") | TERMS, classes=2, retrieve="labels", ages=False)
    plain = objective(lambda: (batch, Moment(1.0, 0.1)), seeded(0))
    with torch.autocast("cpu", torch.bfloat16):
        mixed = objective(lambda: (batch, Moment(1.0, 0.1)), seeded(0))
    assert all(value.dtype == torch.float32 for value in mixed)
    for left, right in zip(plain, mixed, strict=True):
        torch.testing.assert_close(left, right, rtol=0.1, atol=0.05)
