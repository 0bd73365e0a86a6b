"""Queries have their shapes, start where they should, and learn in all their parts."""

import math

import pytest
import torch
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.query_generator import (
    MetricQueryGenerator,
    MLPQueryGenerator,
    OwnKeyQueries,
    PerceiverQueryGenerator,
    RecencyQuery,
    SimilarityResidual,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parameters_without_gradient(module: nn.Module) -> list[str]:
    return [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
@pytest.mark.parametrize(("batch", "num_retrieved", "key_dim"), [(3, 2, 5), (1, 1, 1), (0, 3, 2)])
def test_mlp_queries(batch: int, num_retrieved: int, key_dim: int, hidden: tuple[int, ...]) -> None:
    generator = MLPQueryGenerator(4, hidden, num_retrieved, key_dim)
    queries = generator(normal(batch, 4))
    assert queries.shape == (batch, num_retrieved, key_dim)


def test_mlp_queries_reach_every_parameter() -> None:
    generator = MLPQueryGenerator(4, (7, 5), num_retrieved=2, key_dim=3)
    generator(normal(6, 4)).square().sum().backward()
    assert parameters_without_gradient(generator) == []


@pytest.mark.parametrize(("batch", "tokens", "num_retrieved", "key_dim"), [(3, 4, 2, 5), (1, 1, 1, 1), (0, 2, 3, 2)])
def test_perceiver_queries(batch: int, tokens: int, num_retrieved: int, key_dim: int) -> None:
    generator = PerceiverQueryGenerator(6, 3, 2, 1, num_retrieved, key_dim)
    assert generator(normal(batch, tokens, 6)).shape == (batch, num_retrieved, key_dim)


def test_perceiver_queries_reach_every_parameter() -> None:
    generator = PerceiverQueryGenerator(width=6, latents=3, heads=2, self_blocks=2, num_retrieved=2, key_dim=3)
    generator(normal(5, 4, 6)).square().sum().backward()
    assert parameters_without_gradient(generator) == []


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.75])
def test_similarity_residual_mixes_the_own_key_into_every_slot(alpha: float) -> None:
    residual, learned, own_keys = SimilarityResidual(), normal(3, 2, 5), normal(3, 5, seed=1)
    residual.alpha_logit.data.fill_(math.log(alpha / (1 - alpha)))
    assert residual.alpha.item() == pytest.approx(alpha)
    expected = torch.stack([alpha * learned[:, slot] + (1 - alpha) * own_keys for slot in range(2)], dim=1)
    torch.testing.assert_close(residual(learned, own_keys), expected)


def test_alpha_is_one_half_at_first_and_learns() -> None:
    residual = SimilarityResidual()
    assert residual.alpha.item() == 0.5
    residual(normal(3, 2, 5), normal(3, 5, seed=1)).square().sum().backward()
    assert parameters_without_gradient(residual) == []


def test_recency_starts_at_initial_for_every_input_and_slot() -> None:
    recency = RecencyQuery(state_width=4, initial=[0.7, 20.0, 3e4])
    assert torch.equal(recency(normal(5, 4)), torch.tensor([0.7, 20.0, 3e4]).expand(5, 3))


def test_recency_learns_factors_so_it_stays_positive() -> None:
    recency = RecencyQuery(state_width=4, initial=[0.7, 3e4])
    with torch.no_grad():
        recency.layer.bias.fill_(-2.0)
    assert torch.allclose(recency(normal(5, 4)), torch.tensor([0.7, 3e4]).expand(5, 2) * math.exp(-2))


def test_recency_learns_from_the_state_and_per_slot() -> None:
    recency = RecencyQuery(state_width=4, initial=[0.7] * 3)
    recency(normal(5, 4)).square().sum().backward()
    assert parameters_without_gradient(recency) == []
    with torch.no_grad():
        for p in recency.parameters():
            assert p.grad is not None
            p.sub_(0.1 * p.grad)
    assert len(recency(normal(5, 4)).unique()) == 5  # by input; the slots had equal gradients here


@pytest.mark.parametrize("initial", [0.0, -1.0])
def test_recency_must_start_positive(initial: float) -> None:
    with pytest.raises(SettingError, match=f"recency is {initial}: it must be positive, to prefer newer items"):
        RecencyQuery(state_width=4, initial=[1.0, initial])


@pytest.mark.parametrize("size", [0.1, 1.0, 100.0])
def test_metric_queries_have_a_fixed_length_whatever_the_size_of_the_input(size: float) -> None:
    lengths = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=9)(size * normal(6, 4)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full((6, 2), 3.0), rtol=1e-4, atol=0.0)


def test_each_slot_learns_its_own_length() -> None:
    generator = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=9)
    with torch.no_grad():
        generator.log_scale[1] = torch.tensor(2.0).log()
    lengths = generator(normal(6, 4)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.tensor([3.0, 6.0]).expand(6, 2), rtol=1e-4, atol=0.0)


def test_metric_queries_start_as_a_linear_image_scaled_to_their_length() -> None:
    generator = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=3)
    state = normal(6, 4)
    plain = generator.linear(state).view(6, 2, 3)
    expected = plain / plain.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(generator(state), expected, rtol=1e-4, atol=1e-4)


def test_metric_queries_are_odd_so_that_inputs_share_no_common_part() -> None:
    generator = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=3)
    torch.nn.init.normal_(generator.bend.weight, generator=torch.Generator().manual_seed(0))
    state = normal(6, 4)
    torch.testing.assert_close(generator(-state), -generator(state))


def test_metric_queries_reach_every_parameter() -> None:
    generator = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=3)
    torch.nn.init.normal_(generator.bend.weight, generator=torch.Generator().manual_seed(0))
    (generator(normal(6, 4)) * normal(6, 2, 3, seed=1)).sum().backward()
    assert parameters_without_gradient(generator) == []


def test_an_input_of_zeros_gives_finite_queries_and_gradients() -> None:
    generator = MetricQueryGenerator(4, 5, num_retrieved=2, key_dim=3)
    queries = generator(torch.zeros(2, 4))
    queries.sum().backward()
    assert queries.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in generator.parameters())


def test_queries_may_start_as_the_own_key() -> None:
    generator = OwnKeyQueries(4, 5, key_dim=3, sharpness=[2.5, 2.5])
    state, own_keys = normal(6, 4), normal(6, 3, seed=1)
    torch.testing.assert_close(generator(state, own_keys), 2.5 * own_keys.unsqueeze(1).expand(6, 2, 3))


def test_queries_that_start_as_the_own_key_learn_an_odd_deviation() -> None:
    generator = OwnKeyQueries(4, 5, key_dim=3, sharpness=[1.0, 2.0])
    for layer in (generator.linear, generator.bend):
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    state, own_keys = normal(6, 4), normal(6, 3, seed=1)
    torch.testing.assert_close(generator(-state, -own_keys), -generator(state, own_keys))
    (generator(state, own_keys) * normal(6, 2, 3, seed=1)).sum().backward()
    assert parameters_without_gradient(generator) == []


def test_recency_stays_finite_on_wide_inputs() -> None:
    recency = RecencyQuery(state_width=4096, initial=[60.0, 60.0])
    torch.nn.init.ones_(recency.layer.weight)
    state = torch.stack([torch.ones(4096), -torch.ones(4096)])
    torch.testing.assert_close(recency(state)[:, 0], 60.0 * torch.tensor([5.0, -5.0]).exp())
