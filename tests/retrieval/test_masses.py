"""Label masses of the last slot, and their gradients, against sums over the dense softmax."""

import pytest
import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval import scoring
from recollect.retrieval.gradients import retrieve
from recollect.retrieval.keys import OwnKeys, SharedKeys
from recollect.retrieval.masses import last_slot_label_mass
from tests.reference import dense_label_mass
from tests.retrieval.cases import CASES, RETRIEVED, Case

LABELS = 4


def masses(queries: Tensor, case: Case, temperature: float, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Masses and the positions of the chains they belong to."""
    problem = case.build(temperature, clusters=9 if temperature < 1 else None)
    uniforms = torch.rand(queries.shape[0], 5, RETRIEVED, generator=torch.Generator().manual_seed(5))
    found = retrieve(
        queries,
        problem.keys,
        problem.visible,
        temperature=temperature,
        uniforms=uniforms,
        with_greedy=False,
        keep_bytes=problem.keep_bytes,
    )
    assert found.sampled_chains is not None
    mass = last_slot_label_mass(queries, found.scores, found.sampled_chains, labels, LABELS)
    return mass, found.sampled_chains.positions


@pytest.mark.parametrize("temperature", [1.0, 0.05, 0.001])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_masses_and_gradients_are_the_dense_ones(
    case: Case, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TILE_BYTES", 1)
    problem = case.build(temperature, clusters=9 if temperature < 1 else None)
    lead = (problem.queries.shape[0],) if case.layout == "own" else ()
    labels = torch.randint(LABELS, (*lead, problem.keys.num_items))
    queries = [problem.queries.clone().requires_grad_() for _ in range(3)]
    found, positions = masses(queries[0], case, temperature, labels)
    exact, plain = (
        torch.stack([dense_label_mass(logits, chain, labels, LABELS) for chain in positions.unbind(1)], dim=1)
        for logits in (problem.logits(queries[1]), problem.logits(queries[2], torch.float32))
    )
    coefficients = torch.randn(found.shape, dtype=torch.float64)
    gradients = []
    for value, query in zip((found, exact, plain), queries, strict=True):
        (value * coefficients).sum().backward()
        assert query.grad is not None
        gradients.append(query.grad.double())
    logits = problem.logits()
    rounding = torch.finfo(torch.float32).eps * max(1.0, float(logits[logits > -torch.inf].abs().max()))
    assert (found - exact).abs().max() <= (plain - exact).abs().max() + 2 * rounding
    error, plain_error = ((gradients[which] - gradients[1]).abs().max() for which in (0, 2))
    assert error <= plain_error + 4e-7 * problem.scale * 3.0 + rounding * gradients[1].abs().max()
    # The first slots have a say only through what they take.
    assert bool((gradients[0][:, :-1] == 0).all())
    filled = positions[:, :, -1] >= 0
    torch.testing.assert_close(found.sum(2), filled.float())


@pytest.mark.parametrize("keys", [SharedKeys(torch.zeros(0, 4)), OwnKeys(torch.zeros(2, 0, 4))], ids=["shared", "own"])
def test_an_empty_history_has_no_mass(keys: SharedKeys | OwnKeys) -> None:
    queries = torch.randn(2, RETRIEVED, 4, requires_grad=True)
    visible = Visible(torch.tensor([0, 0]), torch.tensor([0, 0]))
    found = retrieve(queries, keys, visible, temperature=1.0, uniforms=torch.rand(2, 3, RETRIEVED))
    assert found.sampled_chains is not None
    labels = torch.zeros(2, 0, dtype=torch.int64)
    mass = last_slot_label_mass(queries, found.scores, found.sampled_chains, labels, LABELS)
    mass.sum().backward()
    assert torch.equal(mass, torch.zeros(2, 3, LABELS))
    assert queries.grad is not None
    assert bool((queries.grad == 0).all())
