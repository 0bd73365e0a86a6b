"""What changes over a run starts, turns and ends where it should."""

from itertools import pairwise

import pytest

from recollect.training.schedules import exponential, linear_to_zero, warmup_then_cosine


def test_the_rate_warms_up_then_falls_to_a_tenth() -> None:
    factors = [warmup_then_cosine(step, 100) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == 1.0
    assert factors[10] == 1.0
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert all(one < other for one, other in pairwise(factors[:10]))
    assert all(one > other for one, other in pairwise(factors[10:]))


def test_warm_up_and_floor_can_be_chosen() -> None:
    assert warmup_then_cosine(0, 100, warmup=0.5) == pytest.approx(0.02)
    assert warmup_then_cosine(100, 100, floor=0.0) == pytest.approx(0.0)
    assert warmup_then_cosine(200, 100, floor=0.25) == pytest.approx(0.25)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_short_runs_have_a_rate_too(steps: int) -> None:
    assert all(0.1 <= warmup_then_cosine(step, steps) <= 1.0 for step in range(steps))


def test_temperature_falls_by_equal_ratios() -> None:
    values = [exponential(step, 5, 1.0, 0.01) for step in range(5)]
    assert values == pytest.approx([1.0, 10**-0.5, 0.1, 10**-1.5, 0.01])
    assert exponential(3, 5, 0.7, 0.7) == pytest.approx(0.7)
    assert exponential(0, 1, 1.0, 0.5) == 1.0


def test_a_bonus_fades() -> None:
    assert [linear_to_zero(step, 4, 0.2) for step in range(5)] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0.0])
    assert linear_to_zero(0, 0, 0.2) == 0.2
