"""Gradients against autograd through the dense version: our error is at most the error of plain float32."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval import scoring
from recollect.retrieval.gradients import Retrieval, entropy, log_normaliser, retrieve
from recollect.retrieval.keys import OwnKeys, SharedKeys
from tests.reference import dense_entropy, dense_log_normaliser, dense_log_p
from tests.retrieval.cases import CASES, RETRIEVED, Case, Problem

TEMPERATURES = [1.0, 0.05, 0.001]
CHAINS = 4


def problem_of(case: Case, temperature: float) -> Problem:
    return case.build(temperature, clusters=9 if temperature < 1 else None)


def retrieved(problem: Problem, queries: Tensor) -> Retrieval:
    uniforms = torch.rand(queries.shape[0], CHAINS, RETRIEVED, generator=torch.Generator().manual_seed(2))
    return retrieve(
        queries,
        problem.keys,
        problem.visible,
        temperature=problem.temperature,
        uniforms=uniforms,
        keep_bytes=problem.keep_bytes,
    )


def check(problem: Problem, ours: Callable[[Tensor], Tensor], dense: Callable[[Tensor], Tensor]) -> None:
    """`ours(queries)` and `dense(logits)` are [batch, ...]; compare values and gradients for random coefficients."""
    logits = problem.logits()
    rounding = torch.finfo(torch.float32).eps * max(1.0, float(logits[logits > -torch.inf].abs().max()))
    queries = [problem.queries.clone().requires_grad_() for _ in range(3)]
    exact = dense(problem.logits(queries[0]))
    plain = dense(problem.logits(queries[1], torch.float32))
    found = ours(queries[2])
    coefficients = torch.randn(found.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = []
    for value, query in zip((exact, plain, found), queries, strict=True):
        (value * coefficients).sum().backward()
        assert query.grad is not None
        gradients.append(query.grad.double())
    assert (found - exact).abs().max() <= (plain - exact).abs().max() + 4 * rounding
    error, plain_error = (gradients[2] - gradients[0]).abs().max(), (gradients[1] - gradients[0]).abs().max()
    # A gradient is a difference of keys in the units of `scale`, and is rounded as those are.
    assert error <= plain_error + 4e-7 * problem.scale * 3.0 + rounding * gradients[0].abs().max()


@pytest.fixture(autouse=True)
def _one_block_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "TILE_BYTES", 1)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_probabilities(case: Case, temperature: float) -> None:
    problem = problem_of(case, temperature)
    found = retrieved(problem, problem.queries)
    sampled, best = found.sampled().positions, found.greedy().positions
    check(
        problem,
        lambda queries: retrieved(problem, queries).sampled().log_p,
        lambda logits: torch.stack([dense_log_p(logits, chain) for chain in sampled.unbind(1)], dim=1),
    )
    check(
        problem,
        lambda queries: retrieved(problem, queries).greedy().log_p,
        lambda logits: dense_log_p(logits, best[:, 0]).unsqueeze(1),
    )


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_centred_chains_need_no_normaliser_in_the_first_slot(case: Case, temperature: float) -> None:
    """Where coefficients sum to zero over the chains of an input, as under leave-one-out."""
    problem = problem_of(case, temperature)
    positions = retrieved(problem, problem.queries).sampled().positions

    def weighted(log_p: Tensor) -> Tensor:
        weights = torch.randn(log_p.shape[:2], generator=torch.Generator().manual_seed(4)).to(log_p)
        return ((weights - weights.mean(1, keepdim=True)).unsqueeze(2) * log_p).sum((1, 2))

    check(
        problem,
        lambda queries: weighted(retrieved(problem, queries).sampled(centred=True).log_p),
        lambda logits: weighted(torch.stack([dense_log_p(logits, chain) for chain in positions.unbind(1)], dim=1)),
    )


@pytest.mark.parametrize("tile_bytes", [1, 1 << 22])
def test_a_history_that_all_inputs_see_to_the_end_of_its_last_block(
    tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "TILE_BYTES", tile_bytes)
    visible = Visible(torch.zeros(4, dtype=torch.int64), torch.full((4,), 768))
    problem = Problem(torch.randn(4, RETRIEVED, 5), SharedKeys(torch.randn(768, 5)), visible, 0.5, 0)
    positions = retrieved(problem, problem.queries).sampled().positions
    check(
        problem,
        lambda queries: retrieved(problem, queries).sampled().log_p,
        lambda logits: torch.stack([dense_log_p(logits, chain) for chain in positions.unbind(1)], dim=1),
    )


def test_centred_chains_of_one_slot_need_no_pass_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = torch.randn(3, 1, 4, requires_grad=True)
    visible = Visible(torch.zeros(3, dtype=torch.int64), torch.full((3,), 300))
    keys = SharedKeys(torch.randn(300, 4))
    found = retrieve(queries, keys, visible, temperature=0.5, uniforms=torch.rand(3, 2, 1), with_greedy=False)
    monkeypatch.setattr(scoring.Scores, "walk", None)
    sampled = found.sampled(centred=True)
    (sampled.log_p[:, 0] - sampled.log_p[:, 1]).sum().backward()
    picked = keys.keys[sampled.positions[:, :, 0]]
    assert queries.grad is not None
    torch.testing.assert_close(queries.grad[:, 0], (picked[:, 0] - picked[:, 1]) * found.scores.scale)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_entropy(case: Case, temperature: float) -> None:
    problem = problem_of(case, temperature)
    check(problem, lambda queries: entropy(queries, retrieved(problem, queries).scores), dense_entropy)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_normaliser(case: Case, temperature: float) -> None:
    problem = problem_of(case, temperature)
    check(problem, lambda queries: log_normaliser(queries, retrieved(problem, queries).scores), dense_log_normaliser)


@pytest.mark.parametrize("keys", [SharedKeys(torch.zeros(0, 4)), OwnKeys(torch.zeros(2, 0, 4))], ids=["shared", "own"])
def test_an_empty_history_has_zero_gradients(keys: SharedKeys | OwnKeys) -> None:
    queries = torch.randn(2, RETRIEVED, 4, requires_grad=True)
    visible = Visible(torch.tensor([0, 0]), torch.tensor([0, 0]))
    found = retrieve(queries, keys, visible, temperature=1.0, uniforms=torch.rand(2, 2, RETRIEVED))
    parts = [found.sampled().log_p, found.greedy().log_p]
    parts += [entropy(queries, found.scores), log_normaliser(queries, found.scores)]
    torch.cat([part.flatten() for part in parts]).sum().backward()
    assert all(bool((part == 0).all()) for part in parts)
    assert queries.grad is not None
    assert bool((queries.grad == 0).all())
    assert not bool(found.sampled().filled.any())


def test_an_input_that_sees_nothing_has_zero_gradients_beside_one_that_does() -> None:
    keys = torch.randn(300, 4)
    keys[200:] = torch.nan  # nobody sees these
    queries = torch.randn(2, RETRIEVED, 4, requires_grad=True)
    visible = Visible(torch.tensor([200, 3]), torch.tensor([200, 200]))
    found = retrieve(queries, SharedKeys(keys), visible, temperature=0.3, uniforms=torch.rand(2, 2, RETRIEVED))
    parts = [found.sampled().log_p, found.greedy().log_p]
    parts += [entropy(queries, found.scores), log_normaliser(queries, found.scores)]
    torch.cat([part.flatten() for part in parts]).sum().backward()
    assert queries.grad is not None
    assert bool((queries.grad[0] == 0).all())
    assert bool(torch.isfinite(queries.grad).all())
    assert bool((queries.grad[1] != 0).any())


def test_queries_may_be_laid_out_in_any_order() -> None:
    plain = torch.randn(4, RETRIEVED, 5)
    visible = Visible(torch.zeros(4, dtype=torch.int64), torch.full((4,), 30))
    gradients = []
    for queries in (plain.clone(), plain.transpose(0, 1).contiguous().transpose(0, 1)):
        queries.requires_grad_()
        found = retrieve(queries, SharedKeys(torch.ones(30, 5).cumsum(0)), visible, temperature=1.0)
        (found.greedy().log_p.sum() + entropy(queries, found.scores).sum()).backward()
        assert queries.grad is not None
        gradients.append(queries.grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_gradients_of_half_precision_queries_come_back_in_their_own_precision() -> None:
    queries = torch.randn(2, RETRIEVED, 4).bfloat16().requires_grad_()
    visible = Visible(torch.tensor([0, 0]), torch.tensor([30, 20]))
    found = retrieve(queries, SharedKeys(torch.randn(30, 4)), visible, temperature=1.0, with_greedy=True)
    log_p = found.greedy().log_p
    log_p.sum().backward()
    assert log_p.dtype == torch.float32
    assert queries.grad is not None
    assert queries.grad.dtype == torch.bfloat16


def test_only_the_chains_that_were_asked_for_are_chosen() -> None:
    queries, keys = torch.randn(2, RETRIEVED, 4), SharedKeys(torch.randn(30, 4))
    visible = Visible(torch.tensor([0, 0]), torch.tensor([30, 20]))
    assert retrieve(queries, keys, visible, temperature=1.0).sampled_chains is None
    uniforms = torch.rand(2, 1, RETRIEVED)
    found = retrieve(queries, keys, visible, temperature=1.0, uniforms=uniforms, with_greedy=False)
    assert found.greedy_chain is None
