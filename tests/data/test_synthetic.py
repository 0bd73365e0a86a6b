"""The synthetic tasks are what the paper's appendix says, and repeat by their generator."""

import math
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from recollect.data.synthetic import Episodes, NeedleTask, RotatingTask
from tests.tiny import seeded


def assert_same(left: Episodes, right: Episodes) -> None:
    for field in fields(Episodes):
        one, other = getattr(left, field.name), getattr(right, field.name)
        if isinstance(one, dict):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)
        else:
            assert (one is None and other is None) or torch.equal(one, other)


def draw_needles(batch: int, seed: int) -> Episodes:
    return NeedleTask.draw(5, seeded(seed), key_dim=8).sample(batch, seeded(seed + 1))


def draw_rotating(batch: int, seed: int) -> Episodes:
    task = RotatingTask.draw(seeded(seed), dimensions=6)
    return task.sample(torch.linspace(0.1, 1.0, batch, dtype=torch.float64), seeded(seed + 1))


@pytest.mark.parametrize("draw", [draw_needles, draw_rotating])
def test_the_generator_decides(draw: Callable[[int, int], Episodes]) -> None:
    assert_same(draw(7, 3), draw(7, 3))
    assert not torch.equal(draw(7, 3).keys, draw(7, 4).keys)


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("shared_pool", [False, True])
def test_the_first_bit_of_the_needle_is_the_target(shared_pool: bool, standardised: bool) -> None:
    task = NeedleTask.draw(9, seeded(0), key_dim=8, shared_pool=shared_pool, standardised=standardised)
    found = task.sample(200, seeded(1))
    lead = (9,) if shared_pool else (200, 9)
    assert found.keys.shape == (*lead, 8)
    assert found.features["x"].shape == (*lead, 8)
    assert found.needle is not None
    rows = torch.arange(200)
    bits = found.features["x"][found.needle] if shared_pool else found.features["x"][rows, found.needle]
    assert torch.equal(bits[:, 0] > 0.5, found.targets == 1)
    assert set(found.features["x"].unique().tolist()) == ({-1.0, 1.0} if standardised else {0.0, 1.0})
    assert found.labels is None
    assert found.times is None


@pytest.mark.parametrize("shared_pool", [False, True])
def test_the_input_is_a_noisy_image_of_the_needles_key(shared_pool: bool) -> None:
    task = NeedleTask.draw(9, seeded(0), key_dim=8, shared_pool=shared_pool)
    noisy, exact = task.sample(300, seeded(1)), replace(task, noise=0.0).sample(300, seeded(1))
    assert exact.needle is not None
    keys = exact.keys[exact.needle] if shared_pool else exact.keys[torch.arange(300), exact.needle]
    torch.testing.assert_close(exact.inputs["x"], keys @ task.transform.T)
    assert torch.equal(noisy.inputs["x"], noisy.own_keys)
    variance = (noisy.inputs["x"] - exact.inputs["x"]).square().mean()
    assert float(variance) == pytest.approx(0.1, abs=0.015)


def test_needles_lie_anywhere_and_labels_are_balanced() -> None:
    found = NeedleTask.draw(4, seeded(0), key_dim=2).sample(4000, seeded(1))
    assert found.needle is not None
    shares = torch.bincount(found.needle, minlength=4) / 4000
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.03, rtol=0.0)
    assert float(found.targets.float().mean()) == pytest.approx(0.5, abs=0.04)


def test_axes_are_orthonormal() -> None:
    task = RotatingTask.draw(seeded(0), dimensions=6)
    gram = torch.stack([task.first_axis, task.second_axis]) @ torch.stack([task.first_axis, task.second_axis]).T
    torch.testing.assert_close(gram, torch.eye(2))


def test_items_are_in_order_and_before_their_input() -> None:
    task = replace(RotatingTask.draw(seeded(0), dimensions=6), history_size=50)
    as_of = 0.01 + 0.99 * torch.rand(40, generator=seeded(1), dtype=torch.float64)
    found = task.sample(as_of, seeded(2))
    assert found.times is not None
    assert found.labels is not None
    assert found.times.dtype == torch.float64
    assert (found.times[:, 1:] >= found.times[:, :-1]).all()
    assert (found.times < as_of.unsqueeze(1)).all()
    assert (found.times >= 0).all()
    # Uniform below as_of, and as often one label as the other.
    assert float((found.times / as_of.unsqueeze(1)).mean()) == pytest.approx(0.5, abs=0.03)
    assert float(found.labels.float().mean()) == pytest.approx(0.5, abs=0.05)
    assert torch.equal(found.keys, found.features["x"])


def direction(task: RotatingTask, moment: float) -> Tensor:
    """The appendix's class-separation vector, of length 1."""
    tau = 0.5 * math.cos(math.pi * moment) + 0.5
    return task.first_axis * math.cos(math.pi * tau) + task.second_axis * math.sin(math.pi * tau)


@pytest.mark.parametrize("moment", [0.0, 0.2, 0.5, 0.75, 1.0])
def test_knowing_the_direction_reaches_the_bayes_accuracy(moment: float) -> None:
    task = replace(RotatingTask.draw(seeded(0), dimensions=6, dates=False), history_size=1)
    found = task.sample(torch.full((20_000,), moment, dtype=torch.float64), seeded(1))
    right = ((found.inputs["x"] @ direction(task, moment) > 0) == (found.targets == 1)).float().mean()
    assert float(right) == pytest.approx(task.bayes_accuracy, abs=0.005)
    assert task.bayes_accuracy == pytest.approx(0.97725, abs=1e-5)


def test_at_the_end_of_time_the_first_direction_is_wrong_as_often_as_it_was_right() -> None:
    task = replace(RotatingTask.draw(seeded(0), dimensions=6, dates=False), history_size=1)
    found = task.sample(torch.ones(20_000, dtype=torch.float64), seeded(1))
    right = ((found.inputs["x"] @ direction(task, 0.0) > 0) == (found.targets == 1)).float().mean()
    assert float(right) == pytest.approx(1.0 - task.bayes_accuracy, abs=0.005)


@pytest.mark.parametrize("dates", [False, True])
def test_dates_add_two_columns_per_frequency(dates: bool) -> None:
    task = RotatingTask.draw(seeded(0), dimensions=6, dates=dates)
    as_of = torch.tensor([0.25, 0.5], dtype=torch.float64)
    found = task.sample(as_of, seeded(1))
    assert task.width == (6 + 16 if dates else 6)
    assert found.inputs["x"].shape == (2, task.width)
    assert found.features["x"].shape == (2, 128, task.width)
    if dates:
        phase = 2 * math.pi * as_of[:, None] * torch.arange(1, 9)
        expected = torch.cat([phase.sin(), phase.cos()], dim=1).float()
        torch.testing.assert_close(found.inputs["x"][:, 6:], expected)


def test_an_empty_history_can_be_drawn() -> None:
    task = replace(RotatingTask.draw(seeded(0), dimensions=6), history_size=0)
    assert task.sample(torch.ones(3, dtype=torch.float64), seeded(1)).keys.shape == (3, 0, 22)
