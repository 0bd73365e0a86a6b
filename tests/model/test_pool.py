"""A pool of heads: what it says, and that its weights are those plain minimising finds."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.model.neighbours import centred
from recollect.model.pool import SHRINKAGE, even, fit_pool, frozen

HEADS = 4


def heads_that_know(rows: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Each of two heads knows something of its own of the label, the others nothing."""
    generator = torch.Generator().manual_seed(seed)
    evidence = torch.randn(rows, HEADS, classes, generator=generator)
    labels = torch.distributions.Categorical(logits=evidence[:, 0] + 2 * evidence[:, 1]).sample()
    return F.log_softmax(evidence, dim=-1), labels


def test_it_is_the_weighted_sum_of_logits() -> None:
    said, _ = heads_that_know(5, 3)
    weights = torch.tensor([0.5, 1.5, -0.2, 0.0])
    expected = sum(weight * said[:, head] for head, weight in enumerate(weights))
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(frozen(weights, 3)(said), F.log_softmax(expected, dim=1))


def test_heads_that_agree_are_left_alone_and_impossible_classes_do_no_harm() -> None:
    said = F.log_softmax(torch.tensor([[1.0, 0.0, -1.0]]), dim=1)
    torch.testing.assert_close(frozen(even(HEADS), 3)(said.expand(HEADS, -1).unsqueeze(0)), said)
    sure = torch.tensor([[[0.0, -torch.inf], [-0.7, -0.7]]])
    assert bool(frozen(even(2), 2)(sure).isfinite().all())


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_it_is_that_of_plain_minimising(classes: int, offsets: bool) -> None:
    torch.manual_seed(0)
    said, labels = heads_that_know(600, classes)
    labels[:100] = 0  # more than the heads say
    start = torch.tensor([0.1, 0.4, 0.3, 0.2]) if offsets else even(HEADS)
    found = fit_pool(said, labels, start if offsets else None, steps=2000, offsets=offsets)
    weights, free = start.double().requires_grad_(), torch.zeros(classes).double().requires_grad_()
    parameters = [weights, free] if offsets else [weights]
    minimiser = torch.optim.LBFGS(parameters, max_iter=300, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        minimiser.zero_grad()
        logits = (weights.unsqueeze(1) * centred(said).double()).sum(1) + free
        apart = (weights - start).square().sum() + free.square().sum()
        loss = F.cross_entropy(logits, labels, reduction="sum") + 0.5 * SHRINKAGE * apart
        loss.backward()
        return loss

    minimiser.step(closure)  # type: ignore[arg-type]
    torch.testing.assert_close(found.weights, weights.detach().float(), atol=2e-3, rtol=0)
    torch.testing.assert_close(found.offsets, free.detach().float(), atol=2e-3, rtol=0)
    assert found.weights[1] > found.weights[0] > found.weights[2:].abs().max()
    assert bool((found.offsets[0] > found.offsets[1:]).all()) is offsets


def test_two_that_know_different_things_are_surer_together() -> None:
    torch.manual_seed(1)
    said, labels = heads_that_know(3000, 3, seed=1)
    found = fit_pool(said[:2000], labels[:2000])
    rows = torch.arange(1000)
    by_pool = found(said[2000:])[rows, labels[2000:]].mean()
    each = [said[2000:, head][rows, labels[2000:]].mean() for head in range(HEADS)]
    assert by_pool > max(each) + 0.05


def test_one_row_hardly_moves_the_weights() -> None:
    said, labels = heads_that_know(1, 3)
    torch.testing.assert_close(fit_pool(said, labels).weights, even(HEADS), atol=0.1, rtol=0)
