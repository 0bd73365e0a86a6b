"""The hedge follows whoever was right lately, and is never much worse than the best."""

import math

import hypothesis.strategies as st
import torch
from hypothesis import given

from recollect.model.hedge import RATE, SHARE, WORST, adjusted, fixed_share, item_losses, mixed


def test_a_head_that_is_right_gains_weight_and_one_that_was_wrong_comes_back() -> None:
    first_right = torch.tensor([[0.1, 2.0]]).repeat(400, 1)
    weights = fixed_share(torch.cat([first_right, first_right.flip(1)]), torch.ones(2))
    assert torch.equal(weights[0], torch.tensor([0.5, 0.5]))
    assert weights[400, 0] > 0.98
    assert weights[420, 1] > 0.98  # within twenty items, not four hundred


def test_weights_come_before_their_item() -> None:
    losses = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    weights = fixed_share(losses, torch.ones(3))
    changed = losses.clone()
    changed[20:] = 5.0 * torch.rand(30, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(fixed_share(changed, torch.ones(3))[:21], weights[:21])


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 5))
def test_the_mixture_is_never_far_behind_the_best_head(seed: int, items: int, heads: int) -> None:
    """The bound of fixed share with no change of head: log(heads) plus what is shared away at every item, the more the
    less a loss counts."""
    generator = torch.Generator().manual_seed(seed)
    said = torch.rand(items, heads, generator=generator).clamp(min=WORST)
    losses = -said.log()
    weights = fixed_share(losses, torch.ones(heads))
    mixture = -(weights[:-1].double() * said.double()).sum(1).log().sum()
    behind = (math.log(heads) - items * math.log1p(-SHARE)) / RATE
    assert float(mixture) <= float(losses.double().sum(0).min()) + behind + 1e-3


def test_losses_have_a_floor_and_unknown_classes_pay_it() -> None:
    log_probs = torch.tensor([[0.5, 0.5], [1.0, 0.0]]).log().expand(3, 2, 2)
    losses = item_losses(log_probs, torch.tensor([0, 1, 2]))
    worst = -math.log(WORST)
    expected = torch.tensor([[math.log(2), 0.0], [math.log(2), worst], [worst, worst]])
    assert torch.allclose(losses, expected, atol=1e-6)


def test_the_mixture_is_the_mean_of_probabilities() -> None:
    probabilities = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])
    answer = mixed(probabilities.log(), torch.tensor([[0.25, 0.75]]))
    assert torch.allclose(answer.exp(), torch.tensor([[0.375, 0.625]]))
    assert torch.allclose(mixed(probabilities.log(), torch.tensor([[1.0, 0.0]])).exp(), probabilities[:, 0], atol=1e-6)


def test_how_heads_did_on_like_items_counts_beside_how_they_did_at_all() -> None:
    even = torch.full((2, 2), 0.5)
    losses = torch.tensor([[0.0, 1.0], [0.0, 1.0], [3.0, 0.0]]).expand(2, 3, 2)
    closeness = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]])
    weights = adjusted(even, losses, closeness)
    odds = math.exp(1.5)
    torch.testing.assert_close(weights[0], torch.tensor([odds, 1.0]) / (1 + odds))
    torch.testing.assert_close(weights[1], even[1])
