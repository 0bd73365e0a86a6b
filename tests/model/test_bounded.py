"""Steps that can't go too far: none raises what is to be lowest, whatever the columns, and they come to its end."""

from itertools import pairwise

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import given
from torch import Tensor

from recollect.model.bounded import lowest


def penalised(columns: Tensor, labels: Tensor, weights: Tensor, start: Tensor, held: Tensor) -> float:
    nll = F.cross_entropy(columns @ weights, labels, reduction="sum")
    return float(nll + 0.5 * (held.unsqueeze(1) * (weights - start).square()).sum())


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 5), st.floats(0.1, 30.0))
def test_no_step_goes_too_far(seed: int, rows: int, classes: int, wide: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    columns = wide * torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    start = torch.randn(3, classes, generator=generator, dtype=torch.float64)
    held = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)

    def gradient(weights: Tensor) -> Tensor:
        return columns.T @ (F.softmax(columns @ weights, dim=1) - F.one_hot(labels, classes))

    found = [
        penalised(columns, labels, lowest(gradient, columns.T @ columns, start, held, steps), start, held)
        for steps in (0, 1, 2, 3, 10, 50)
    ]
    assert all(after <= before + 1e-9 * (1 + abs(before)) for before, after in pairwise(found))


def test_it_ends_where_nothing_is_uphill() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (200,), generator=generator)
    start, held = torch.zeros(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

    def gradient(weights: Tensor) -> Tensor:
        return columns.T @ (F.softmax(columns @ weights, dim=1) - F.one_hot(labels, 3))

    weights = lowest(gradient, columns.T @ columns, start, held, 500)
    torch.testing.assert_close(gradient(weights) + weights, torch.zeros(3, 3, dtype=torch.float64), atol=1e-6, rtol=0)
