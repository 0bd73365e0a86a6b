"""The gradient of whole steps, averaged over all selections there are, against that of the expectation itself.

Selections are forced through the step by uniform numbers in the middle of their intervals, one input at a time.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.config import StepSettings
from recollect.history.visibility import Window
from recollect.retrieval.gradients import Retrieval, retrieve
from recollect.training import step
from recollect.training.batches import Batch
from recollect.training.step import Moment, Objective, nll_of
from tests.reference import dense_greedy, dense_keys, dense_log_p, dense_logits, dense_slot_log_probs
from tests.tiny import make_history, make_objective, nudged, rows_of, seeded

SLOTS, VISIBLE, TEMPERATURE = 2, 3, 0.7

# The exact objective of a step, given the probability and the nll of every selection.
Exact = Callable[[Tensor, Tensor], Tensor]


def one_input() -> Batch:
    """Sees three items with three labels."""
    history = make_history()
    history.labels.copy_(torch.arange(60) % 3)
    batch = rows_of(history, window=Window(items=VISIBLE)).rows(torch.tensor([55]))
    assert int(batch.inputs.visible.stop - batch.inputs.visible.start) == VISIBLE
    return batch


def selections(batch: Batch) -> list[tuple[int, ...]]:
    start, stop = int(batch.inputs.visible.start), int(batch.inputs.visible.stop)
    return list(itertools.permutations(range(start, stop), SLOTS))


def dense(objective: Objective, batch: Batch) -> Tensor:
    """Retrieval logits, differentiable."""
    system, inputs = objective.system, batch.inputs
    queries = system.queries(system.encode(inputs.features), inputs.own_keys)
    scale = 1.0 / (TEMPERATURE * inputs.keys.width**0.5)
    return dense_logits(queries, dense_keys(inputs.keys), inputs.visible, scale)  # type: ignore[arg-type]


def probabilities(objective: Objective, batch: Batch) -> Tensor:
    logits = dense(objective, batch)
    return torch.stack([dense_log_p(logits, torch.tensor([each])).sum().exp() for each in selections(batch)])


def nll_at(objective: Objective, batch: Batch, chains: list[tuple[int, ...]]) -> Tensor:
    """nll of every chain, differentiable."""
    system = objective.system
    items, _ = batch.inputs.show(torch.tensor([chains]), features=objective.features, ages=objective.ages)
    answer = system.classify(system.encode(batch.inputs.features), items, torch.ones(1, dtype=torch.bool))
    return nll_of(answer, batch.targets)[0]


def uniforms_of(objective: Objective, batch: Batch, chains: tuple[tuple[int, ...], ...]) -> Tensor:
    logits = dense(objective, batch).detach()
    uniforms = torch.zeros(1, len(chains), SLOTS, dtype=torch.float64)
    for (place, chain), slot in itertools.product(enumerate(chains), range(SLOTS)):
        p = dense_slot_log_probs(logits[:, slot], torch.tensor([chain[:slot]], dtype=torch.long)).exp()[0]
        uniforms[0, place, slot] = p.cumsum(0)[chain[slot]] - p[chain[slot]] / 2
    return uniforms


def gradients(loss: Tensor, objective: Objective) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(objective.parameters()), allow_unused=True)
    pairs = zip(found, objective.parameters(), strict=True)
    return [torch.zeros_like(parameter) if each is None else each for each, parameter in pairs]


def averaged(objective: Objective, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The expected gradient of a step: every combination of chains, weighted by its probability."""
    p = dict(zip(selections(batch), probabilities(objective, batch).tolist(), strict=True))
    total = [torch.zeros_like(parameter) for parameter in objective.parameters()]
    weights = 0.0
    for chains in itertools.product(selections(batch), repeat=objective.chains):
        forced = uniforms_of(objective, batch, chains)

        def forcing(*given: Any, forced: Tensor = forced, chains: Any = chains, **named: Any) -> Retrieval:
            found = retrieve(*given, **(named | {"uniforms": forced}))
            assert found.sampled_chains is not None
            assert found.sampled_chains.positions.tolist() == [[list(chain) for chain in chains]]
            return found

        monkeypatch.setattr(step, "retrieve", forcing)
        result = objective(lambda: (batch, Moment(TEMPERATURE)), seeded(0))
        weight = float(torch.tensor([p[chain] for chain in chains]).prod())
        weights += weight
        for sum_, gradient in zip(total, gradients(result.loss, objective), strict=True):
            sum_ += weight * gradient
    assert weights == pytest.approx(1.0, abs=1e-5)
    return total


def expected_nll(p: Tensor, nll: Tensor) -> Tensor:
    return (p * nll).sum()


def expected_mixture(p: Tensor, nll: Tensor) -> Tensor:
    """Of two chains: the nll of their mean probability."""
    both = -torch.logaddexp(-nll.unsqueeze(0), -nll.unsqueeze(1)) + torch.log(torch.tensor(2.0))
    return (p.unsqueeze(0) * p.unsqueeze(1) * both).sum()


CASES: list[tuple[dict[str, Any], Exact]] = [
    (dict(estimator="leave_one_out", samples=2), expected_nll),
    (dict(estimator="multi_sample", samples=2), expected_mixture),
    (dict(estimator="greedy_baseline", pathwise="sampled", samples=1), expected_nll),
    (dict(estimator="label_marginal", samples=1), expected_nll),
]


def make(settings: dict[str, Any]) -> Objective:
    bare = dict(retrieve="labels", ages=False) if settings["estimator"] == "label_marginal" else {}
    objective = make_objective(StepSettings(**settings), num_retrieved=SLOTS, **bare)  # type: ignore[arg-type]
    objective = nudged(objective)
    with torch.no_grad():
        for parameter in objective.system.classifier.parameters():
            parameter *= 2.0  # a classifier that has an opinion
    return objective


@pytest.mark.parametrize(("settings", "exact"), CASES, ids=[str(settings) for settings, _ in CASES])
def test_a_step_estimates_the_gradient_of_its_objective(
    settings: dict[str, Any], exact: Exact, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective, batch = make(settings), one_input()
    found = averaged(objective, batch, monkeypatch)
    loss = exact(probabilities(objective, batch), nll_at(objective, batch, selections(batch)))
    expected = gradients(loss.float(), objective)
    names = [name for name, _ in objective.named_parameters()]
    assert any(bool(value.abs().max() > 1e-3) for name, value in zip(names, expected, strict=True) if "query" in name)
    for name, one, other in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_the_papers_pathwise_term_is_taken_at_the_greedy_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its score part is that of the expected nll; its classifier learns from the greedy selection alone."""
    objective, batch = make(dict(estimator="greedy_baseline", pathwise="greedy", samples=1)), one_input()
    found = averaged(objective, batch, monkeypatch)
    greedy = [tuple(dense_greedy(dense(objective, batch).detach())[0].tolist())]
    nll = nll_at(objective, batch, selections(batch)).detach()
    loss = (probabilities(objective, batch) * nll).sum() + nll_at(objective, batch, greedy).sum()
    for one, other in zip(found, gradients(loss.float(), objective), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-6)
