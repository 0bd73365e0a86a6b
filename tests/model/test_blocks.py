"""Widths, masks and gradients of the pieces the networks are built of."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.blocks import AttentionBlock, FourierBands, PerceiverStage, ReadingBlock, RowLinear, mlp


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_mlp_has_a_relu_between_layers_and_none_at_the_end() -> None:
    layers = mlp([5, 7, 3, 2])
    assert [type(layer) for layer in layers] == [RowLinear, nn.ReLU, RowLinear, nn.ReLU, RowLinear]
    assert layers(normal(4, 5)).shape == (4, 2)


def test_mlp_of_two_widths_is_one_linear_layer() -> None:
    assert [type(layer) for layer in mlp([5, 2])] == [RowLinear]


@pytest.mark.parametrize("lead", [(), (3,), (2, 0, 5)])
def test_fourier_bands_hold_sines_cosines_and_the_value(lead: tuple[int, ...]) -> None:
    x = normal(*lead, 2)
    out = FourierBands(bands=3, max_frequency=10.0)(x)
    assert out.shape == (*lead, 2 * 7)
    expected = [
        *[torch.sin(math.pi * f * x[..., column]) for column in range(2) for f in (1.0, 3.0, 5.0)],
        *[torch.cos(math.pi * f * x[..., column]) for column in range(2) for f in (1.0, 3.0, 5.0)],
        *[x[..., column] for column in range(2)],
    ]
    torch.testing.assert_close(out, torch.stack(expected, dim=-1))


def test_no_bands_change_nothing() -> None:
    x = normal(3, 2)
    assert torch.equal(FourierBands(bands=0, max_frequency=64.0)(x), x)


def test_bands_are_not_in_a_checkpoint() -> None:
    assert FourierBands(bands=3, max_frequency=10.0).state_dict() == {}


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(SettingError, match="width 6 came with 4 heads: choose a width that is a multiple"):
        AttentionBlock(width=6, heads=4)


def test_self_attention_is_cross_attention_to_itself() -> None:
    block, x = AttentionBlock(width=6, heads=3), normal(2, 5, 6)
    assert torch.equal(block(x), block(x, x))


def test_attention_agrees_with_a_plain_loop() -> None:
    block, x, context = AttentionBlock(width=6, heads=2), normal(1, 3, 6), normal(1, 4, 6, seed=1)
    mask = torch.tensor([[True, False, True, True]])
    queries = block.query(block.norm_query(x))[0]
    keys, values = block.key_value(block.norm_source(context))[0].split(6, dim=-1)
    mixed = torch.zeros(3, 6)
    for head in (slice(0, 3), slice(3, 6)):
        for row in range(3):
            scores = keys[mask[0]][:, head] @ queries[row, head] / math.sqrt(3)
            mixed[row, head] = scores.softmax(0) @ values[mask[0]][:, head]
    after = x + block.attended(mixed)
    torch.testing.assert_close(block(x, context, mask), after + block.feed_forward(after))


def test_what_is_masked_never_matters_not_even_nan() -> None:
    block, x, context = AttentionBlock(width=6, heads=2), normal(2, 3, 6), normal(2, 4, 6, seed=1)
    mask = torch.tensor([[True, False, True, False], [False, True, True, True]])
    spoilt = context.masked_fill(~mask[..., None], math.nan)
    assert torch.equal(block(x, context, mask), block(x, spoilt, mask))
    block(x, spoilt, mask).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())


def test_a_mask_of_all_true_is_no_mask() -> None:
    block, x, context = AttentionBlock(width=6, heads=2), normal(2, 3, 6), normal(2, 4, 6, seed=1)
    torch.testing.assert_close(block(x, context, torch.ones(2, 4, dtype=torch.bool)), block(x, context))


def test_attention_to_nothing_adds_exactly_zero() -> None:
    block, x, context = AttentionBlock(width=6, heads=2), normal(2, 3, 6), normal(2, 4, 6, seed=1)
    mask = torch.tensor([[False] * 4, [True] * 4])
    out = block(x, context, mask)
    assert torch.equal(out[0], (x + block.feed_forward(x))[0])
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())


def test_reading_agrees_with_a_plain_loop() -> None:
    block, x, tokens = ReadingBlock(width=6, heads=2), normal(3, 2, 6), normal(3, 2, 4, 6, seed=1)
    mask = torch.rand(3, 2, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[..., 0] = True
    read = torch.zeros(3, 2, 12)
    for row, chain in itertools.product(range(3), range(2)):
        queries = block.query(block.norm_query(x[row, chain]))
        seen = tokens[row, chain, mask[row, chain]]
        for head in (slice(0, 6), slice(6, 12)):
            read[row, chain, head] = (seen @ queries[head] / math.sqrt(6)).softmax(0) @ seen
    after = x + block.attended(read)
    found = block(x, tokens.masked_fill(~mask[..., None], 0.0), mask)
    torch.testing.assert_close(found, after + block.feed_forward(after))


def test_reading_nothing_adds_exactly_zero() -> None:
    block, x = ReadingBlock(width=6, heads=2), normal(2, 6)
    for tokens in (4, 0):
        out = block(x, torch.zeros(2, tokens, 6), torch.zeros(2, tokens, dtype=torch.bool))
        assert torch.equal(out, x + block.feed_forward(x))
        out.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in block.parameters())


@pytest.mark.parametrize(("batch", "tokens", "latents", "self_blocks"), [(3, 5, 7, 2), (1, 1, 1, 0), (0, 4, 2, 1)])
def test_stage_shapes(batch: int, tokens: int, latents: int, self_blocks: int) -> None:
    stage = PerceiverStage(width=6, latents=latents, heads=3, self_blocks=self_blocks)
    assert stage(normal(batch, tokens, 6)).shape == (batch, latents, 6)


def test_stage_starts_from_small_latents() -> None:
    stage = PerceiverStage(width=64, latents=64, heads=1, self_blocks=0)
    assert stage.latents.std().item() == pytest.approx(0.02, rel=0.1)


def test_stage_with_everything_masked_is_finite_and_the_same_for_all() -> None:
    stage = PerceiverStage(width=6, latents=3, heads=2, self_blocks=1)
    out = stage(normal(2, 4, 6), torch.zeros(2, 4, dtype=torch.bool))
    assert out.isfinite().all()
    torch.testing.assert_close(out[0], out[1])


def test_gradients_reach_every_parameter_of_a_stage() -> None:
    stage = PerceiverStage(width=6, latents=3, heads=2, self_blocks=2)
    stage(normal(2, 4, 6)).square().sum().backward()
    assert [name for name, p in stage.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("fan_in", [1, 3, 5, 12, 16, 51, 65])
@pytest.mark.parametrize("fan_out", [1, 2, 5, 8, 33])
def test_a_row_has_the_same_bits_wherever_it_stands(fan_in: int, fan_out: int) -> None:
    torch.manual_seed(0)
    layer = RowLinear(fan_in, fan_out)
    rows = torch.randn(4, fan_in)
    for row in rows:
        products = layer(row.expand(32, -1).contiguous())
        assert (products == products[0]).all()
    torch.testing.assert_close(layer(rows), rows @ layer.weight.T + layer.bias)


def test_rows_are_padded_without_a_bias_too() -> None:
    layer = RowLinear(5, 3, bias=False)
    x = torch.randn(2, 1, 4, 5)
    torch.testing.assert_close(layer(x), x @ layer.weight.T)
