"""A regression against plain minimising, what holds its weights back, and what it can and can't see."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.model import regression
from recollect.model.neighbours import centred
from recollect.model.regression import SHRINKAGE, regress


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_line(items: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Labels by directions of key space that plain answers know nothing of."""
    keys = normal(items, 6, seed=seed)
    labels = (keys @ normal(6, classes, seed=seed + 1)).argmax(1)
    return keys, F.log_softmax(normal(items, classes, seed=seed + 2), dim=1), labels


def penalised(columns: Tensor, weights: Tensor, labels: Tensor, key_dim: int) -> Tensor:
    """What is to be lowest, written down naively."""
    classes = weights.shape[1]
    apart = weights.clone()
    apart[key_dim:-1] -= torch.eye(classes, dtype=weights.dtype)
    penalty = 0.5 * SHRINKAGE * apart[:key_dim].square().sum() + 0.5 * apart[key_dim:].square().sum()
    return F.cross_entropy(columns @ weights, labels, reduction="sum") + penalty


def standardised(keys: Tensor, plain: Tensor) -> Tensor:
    apart = keys - keys.mean(0)
    ones = torch.ones(len(keys), 1)
    return torch.cat([apart / apart.square().mean().sqrt(), centred(plain), ones], dim=1)


@pytest.mark.parametrize("classes", [2, 4])
def test_it_comes_to_where_plain_minimising_does(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, plain, labels = a_line(300, classes)
    monkeypatch.setattr(regression, "STEPS", 1000)
    fit = regress(keys, plain, labels, plain.shape[1])
    columns = standardised(keys, plain).double()
    weights = torch.cat([torch.zeros(6, classes), torch.eye(classes), torch.zeros(1, classes)]).double()
    weights.requires_grad_()
    minimiser = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        minimiser.zero_grad()
        loss = penalised(columns, weights, labels, 6)
        loss.backward()
        return loss

    minimiser.step(closure)  # type: ignore[arg-type]
    assert torch.allclose(fit.weights.double(), weights.detach(), atol=2e-3)


@pytest.mark.parametrize("classes", [2, 5])
def test_no_step_raises_what_is_to_be_lowest(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, plain, labels = a_line(200, classes, seed=7)
    columns = standardised(keys, plain)
    found = []
    for steps in range(12):
        monkeypatch.setattr(regression, "STEPS", steps)
        found.append(float(penalised(columns, regress(keys, plain, labels, plain.shape[1]).weights, labels, 6)))
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.8 * found[0]


def test_one_item_makes_nobody_sure_and_many_come_to_the_truth() -> None:
    keys, plain, labels = a_line(2000, 3)
    few = regress(keys[:1], plain[:1], labels[:1], plain.shape[1])(keys[:1], plain[:1])
    many = regress(keys[:1500], plain[:1500], labels[:1500], plain.shape[1])(keys, plain)
    assert float(few.exp().max()) < 0.7
    assert float((plain[1500:].argmax(1) == labels[1500:]).float().mean()) < 0.45
    assert float((many[1500:].argmax(1) == labels[1500:]).float().mean()) > 0.9


def test_a_plain_answer_that_is_right_is_left_alone_and_one_that_is_turned_round_is_turned_back() -> None:
    keys, _, labels = a_line(1000, 2)
    plain = F.log_softmax(3.0 * F.one_hot(labels, 2).float(), dim=1)
    kept, turned = (
        regress(keys, plain, labels, plain.shape[1])(keys, plain),
        regress(keys, plain, 1 - labels, 2)(keys, plain),
    )
    assert bool((kept.argmax(1) == labels).all())
    assert bool((turned.argmax(1) == 1 - labels).all())


def test_scale_and_place_of_keys_make_no_difference() -> None:
    keys, plain, labels = a_line(400, 3)
    moved = 50.0 * keys + 3.0
    once, again = (
        regress(keys, plain, labels, plain.shape[1])(keys, plain),
        regress(moved, plain, labels, plain.shape[1])(moved, plain),
    )
    assert torch.allclose(once, again, atol=1e-3)


def test_keys_that_are_all_alike_tell_nothing() -> None:
    _, plain, labels = a_line(50, 2)
    answers = regress(torch.ones(50, 6), plain, labels, plain.shape[1])(torch.ones(50, 6), plain)
    assert bool(answers.isfinite().all())


def test_a_class_that_the_plain_answer_does_not_know_is_learned_of() -> None:
    """Where a column is above a border all items are of a class first met now."""
    keys, plain, labels = a_line(2000, 2)
    labels = torch.where(keys[:, 3] > 0.8, 2, labels)
    said = regress(keys[:1500], plain[:1500], labels[:1500], 3)(keys[1500:], plain[1500:])
    assert said.shape == (500, 3)
    torch.testing.assert_close(said.exp().sum(1), torch.ones(500))
    of_new = labels[1500:] == 2
    assert (said.argmax(1) == 2)[of_new].float().mean() > 0.7
    assert (said.argmax(1) == 2)[~of_new].float().mean() < 0.1
    without = regress(keys[:1500], plain[:1500], labels[:1500].clamp(max=1), 3)(keys[1500:], plain[1500:])
    assert without[:, 2].exp().max() < 0.05
