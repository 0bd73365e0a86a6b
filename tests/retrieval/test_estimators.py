"""What each estimator is the gradient of, by enumeration: every selection, times its probability, no sampling.

The selections are forced through `retrieve` itself, by uniform numbers in the middle of their intervals; the exact
expected nll is a sum over all of them in float64, differentiated by autograd.
"""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.estimators import greedy_baseline, label_marginal, leave_one_out, multi_sample
from recollect.retrieval.gradients import Retrieval, retrieve
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.masses import last_slot_label_mass
from tests.reference import dense_log_p, dense_logits, dense_slot_log_probs

TEMPERATURE = 0.7
ITEMS, WIDTH, LABELS = 5, 3, 3


@dataclass(frozen=True)
class Task:
    """One input, five items, two parameters to learn: the queries and the classifier's weights.

    The classifier is linear in the features of the items shown, with weights for each slot: order matters.
    """

    retrieved: int
    queries: Tensor  # [1, retrieved, width]
    weights: Tensor  # [retrieved, width, classes]
    keys: Tensor
    features: Tensor
    labels: Tensor

    @property
    def chains(self) -> list[tuple[int, ...]]:
        """Every selection that can be drawn."""
        return list(itertools.permutations(range(ITEMS), self.retrieved))

    def nll(self, positions: Tensor, weights: Tensor) -> Tensor:
        """[...] for positions [..., retrieved]; the target is class 0."""
        logits = torch.einsum("...rf,rfc->...c", self.features[positions].to(weights), weights)
        return -logits.log_softmax(-1)[..., 0]

    def log_p(self, queries: Tensor) -> Tensor:
        """Log-probability of every chain, dense and float64, differentiable."""
        count = len(self.chains)
        visible = Visible(torch.zeros(1, dtype=torch.int64), torch.tensor([ITEMS]))
        logits = dense_logits(queries, self.keys, visible, self.scale).expand(count, -1, -1)
        return dense_log_p(logits, torch.tensor(self.chains)).sum(1)

    @property
    def scale(self) -> float:
        return float(1 / (TEMPERATURE * WIDTH**0.5))

    def forced(self, queries: Tensor, tuples: Tensor) -> Retrieval:
        """A batch in which every input is the task's and draws the chains of one tuple: [batch, chains, retrieved]."""
        batch, chains, _ = tuples.shape
        visible = Visible(torch.zeros(batch, dtype=torch.int64), torch.full((batch,), ITEMS))
        logits = dense_logits(queries.detach().expand(batch, -1, -1), self.keys, visible, self.scale)
        uniforms = torch.empty(tuples.shape, dtype=torch.float64)
        for chain in range(chains):
            for slot in range(self.retrieved):
                p = dense_slot_log_probs(logits[:, slot], tuples[:, chain, :slot]).exp()
                middle = (p.cumsum(1) - p / 2).gather(1, tuples[:, chain, slot : slot + 1])
                uniforms[:, chain, slot] = middle.squeeze(1)
        found = retrieve(
            queries.expand(batch, -1, -1), SharedKeys(self.keys), visible, temperature=TEMPERATURE, uniforms=uniforms
        )
        assert found.sampled_chains is not None
        assert torch.equal(found.sampled_chains.positions, tuples)
        return found


def task(retrieved: int) -> Task:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return Task(
        retrieved,
        normal(1, retrieved, WIDTH).requires_grad_(),
        normal(retrieved, WIDTH, 4).requires_grad_(),
        normal(ITEMS, WIDTH),
        normal(ITEMS, WIDTH),
        torch.tensor([0, 1, 2, 1, 0]),
    )


def all_tuples(task: Task, samples: int) -> tuple[Tensor, Tensor]:
    """Every tuple of chains, [count, samples, retrieved], and its probability."""
    index = torch.tensor(list(itertools.product(range(len(task.chains)), repeat=samples)))
    probability = task.log_p(task.queries.detach())[index].sum(1).exp()
    torch.testing.assert_close(probability.sum(), torch.tensor(1.0, dtype=torch.float64))
    return torch.tensor(task.chains)[index], probability


def gradients(task: Task, loss: Tensor) -> tuple[Tensor, Tensor]:
    queries, weights = torch.autograd.grad(loss, [task.queries, task.weights], allow_unused=True)
    return (
        torch.zeros_like(task.queries) if queries is None else queries,
        torch.zeros_like(task.weights) if weights is None else weights,
    )


def exact_gradients(task: Task) -> tuple[Tensor, Tensor]:
    """Of the expected nll: the sum over all chains of probability times nll."""
    nll = task.nll(torch.tensor(task.chains), task.weights.double())
    return gradients(task, (task.log_p(task.queries).exp() * nll).sum())


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for part, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-5, atol=2e-6)


def differ(found: Tensor, expected: Tensor) -> bool:
    """By far more than rounding."""
    return bool((found - expected).abs().max() > 0.01 * expected.abs().max())


@pytest.mark.parametrize("retrieved", [1, 2])
def test_leave_one_out_is_unbiased(retrieved: int) -> None:
    it = task(retrieved)
    tuples, probability = all_tuples(it, samples=2)
    log_p = it.forced(it.queries, tuples).sampled(centred=True).log_p.sum(2)
    estimates = leave_one_out(it.nll(tuples, it.weights), log_p)
    assert_same(gradients(it, (probability * estimates).sum()), exact_gradients(it))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("retrieved", [1, 2])
def test_greedy_baseline_with_the_sampled_path_is_unbiased(retrieved: int, samples: int) -> None:
    it = task(retrieved)
    tuples, probability = all_tuples(it, samples)
    found = it.forced(it.queries, tuples)
    nll_greedy = it.nll(found.greedy().positions, it.weights)
    nll = it.nll(tuples, it.weights)
    estimates = greedy_baseline(nll, nll_greedy, found.sampled().log_p.sum(2), "sampled")
    assert_same(gradients(it, (probability * estimates).sum()), exact_gradients(it))


@pytest.mark.parametrize("retrieved", [1, 2])
def test_greedy_baseline_with_the_greedy_path_is_biased_in_the_classifier_only(retrieved: int) -> None:
    """The paper's: the score function's part is right, the classifier's gradient is that of the greedy nll."""
    it = task(retrieved)
    tuples, probability = all_tuples(it, samples=1)
    found = it.forced(it.queries, tuples)
    nll_greedy = it.nll(found.greedy().positions, it.weights)
    estimates = greedy_baseline(it.nll(tuples, it.weights), nll_greedy, found.sampled().log_p.sum(2), "greedy")
    queries, weights = gradients(it, (probability * estimates).sum())
    exact_queries, exact_weights = exact_gradients(it)
    torch.testing.assert_close(queries, exact_queries, rtol=1e-5, atol=2e-6)
    assert differ(weights, exact_weights)
    torch.testing.assert_close(weights, gradients(it, it.nll(found.greedy().positions[0, 0], it.weights))[1])


def test_a_greedy_chain_that_excluded_the_samples_picks_would_be_biased() -> None:
    """Why the greedy chain excludes its own picks only: any other baseline depends on the sample."""
    it = task(2)
    tuples, probability = all_tuples(it, samples=1)
    found = it.forced(it.queries, tuples)
    logits = dense_logits(it.queries.detach(), it.keys, Visible(torch.tensor([0]), torch.tensor([ITEMS])), it.scale)
    second = dense_slot_log_probs(logits[0, 1].expand(len(tuples), -1), tuples[:, 0, :1]).argmax(1)
    own = found.greedy().positions
    mixed = torch.stack([own[:, 0, 0], second], dim=1).unsqueeze(1)
    log_p, nll = found.sampled().log_p.sum(2), it.nll(tuples, it.weights)
    exact = exact_gradients(it)[0]
    for greedy, unbiased in ((own, True), (mixed, False)):
        estimates = greedy_baseline(nll, it.nll(greedy, it.weights), log_p, "sampled")
        (queries,) = torch.autograd.grad((probability * estimates).sum(), it.queries, retain_graph=True)
        assert differ(queries, exact) != unbiased


@pytest.mark.parametrize("retrieved", [1, 2])
def test_multi_sample_is_unbiased_for_its_own_objective(retrieved: int) -> None:
    it = task(retrieved)
    tuples, probability = all_tuples(it, samples=2)
    log_p = it.forced(it.queries, tuples).sampled().log_p.sum(2)
    estimates = multi_sample(it.nll(tuples, it.weights), log_p)
    found = gradients(it, (probability * estimates).sum())

    nll = it.nll(tuples, it.weights.double())
    index = torch.cartesian_prod(*[torch.arange(len(it.chains))] * 2)
    objective = -(-nll).exp().mean(1).log()
    assert_same(found, gradients(it, (it.log_p(it.queries)[index].sum(1).exp() * objective).sum()))
    assert differ(found[0], exact_gradients(it)[0])


# Retrieval of bare labels: the classifier is a table of nll by the labels shown.


def label_nll(weights: Tensor, labels: Tensor) -> Tensor:
    """[...] for labels [..., retrieved]; linear in one-hot labels, with weights for each slot; the target is 0."""
    rows = [weights[slot][labels[..., slot]] for slot in range(labels.shape[-1])]
    return -torch.stack(rows).sum(0).log_softmax(-1)[..., 0]


def label_estimates(it: Task, tuples: Tensor) -> Tensor:
    found = it.forced(it.queries, tuples)
    assert found.sampled_chains is not None
    mass = last_slot_label_mass(found.queries, found.scores, found.sampled_chains, it.labels, LABELS)
    shown = it.labels[tuples].unsqueeze(2).repeat(1, 1, LABELS, 1)
    shown[..., -1] = torch.arange(LABELS)
    return label_marginal(label_nll(it.weights, shown), mass, found.sampled().log_p[:, :, :-1].sum(2))


def exact_label_gradients(it: Task) -> tuple[Tensor, Tensor]:
    nll = label_nll(it.weights.double(), it.labels[torch.tensor(it.chains)])
    return gradients(it, (it.log_p(it.queries).exp() * nll).sum())


@pytest.mark.parametrize("samples", [1, 2])
def test_label_marginal_of_one_slot_is_exact_every_time(samples: int) -> None:
    it = task(1)
    tuples, _ = all_tuples(it, samples)
    expected = exact_label_gradients(it)
    for estimate in label_estimates(it, tuples[:: 2 * samples - 1]):
        found = torch.autograd.grad(estimate, [it.queries, it.weights], retain_graph=True)
        assert_same((found[0], found[1]), expected)


@pytest.mark.parametrize("samples", [1, 2])
def test_label_marginal_of_two_slots_is_unbiased(samples: int) -> None:
    it = task(2)
    tuples, probability = all_tuples(it, samples)
    estimates = label_estimates(it, tuples)
    assert_same(gradients(it, (probability * estimates).sum()), exact_label_gradients(it))


def test_label_marginal_does_not_depend_on_what_the_last_slot_drew() -> None:
    it = task(2)
    tuples = torch.tensor([[[0, 1]], [[0, 2]], [[0, 4]], [[3, 1]]])
    estimates = label_estimates(it, tuples)
    by_row = [torch.autograd.grad(row, it.queries, retain_graph=True)[0] for row in estimates]
    torch.testing.assert_close(by_row[0], by_row[1])
    torch.testing.assert_close(by_row[0], by_row[2])
    assert differ(by_row[3], by_row[0])
