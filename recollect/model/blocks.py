"""The pieces the networks are built of: MLPs, Fourier bands, attention and Perceiver stages.

They know widths and masks. They do not know what a token stands for: an input, an item or a label.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recollect.errors import SettingError

ALIGNED = 16
"""Floats of one cache line."""


def rounded_up(size: int) -> int:
    """To whole cache lines: vector instructions then compute all of a row alike, and leave no rest to others."""
    return -(-size // ALIGNED) * ALIGNED


def linear(
    x: Float[Tensor, "*lead fan_in"], weight: Float[Tensor, "fan_out fan_in"], bias: Float[Tensor, " fan_out"] | None
) -> Float[Tensor, "*lead fan_out"]:
    """`F.linear(x, weight, bias)`, of which a row's bits do not depend on the row's place in its batch.

    BLAS sums a row in another order where it lies otherwise in memory; with zeros up to a whole cache line, all rows
    lie alike.
    """
    missing = rounded_up(x.shape[-1]) - x.shape[-1]
    if missing:
        x, weight = F.pad(x, (0, missing)), F.pad(weight, (0, missing))
    return F.linear(x, weight, bias)


def row_sums(values: Float[Tensor, "*lead columns"]) -> Float[Tensor, "*lead"]:
    """Over whole cache lines, so that all rows are summed in one order."""
    return F.pad(values, (0, rounded_up(values.shape[-1]) - values.shape[-1])).sum(-1)


class RowLinear(nn.Linear):
    """A linear layer that treats rows alike wherever they stand: see `linear`."""

    def forward(self, x: Float[Tensor, "*lead fan_in"]) -> Float[Tensor, "*lead fan_out"]:
        return linear(x, self.weight, self.bias)


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, with a ReLU between any two and none after the last."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [RowLinear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class FourierBands(nn.Module):
    """Gives every column x its sin(pi f x) and cos(pi f x) at `bands` frequencies f, and keeps x itself.

    The frequencies run linearly from 1 to `max_frequency` / 2, as in Perceiver. Each column becomes
    `growth` columns; with no bands the values pass unchanged.
    """

    frequencies: Tensor

    def __init__(self, bands: int, max_frequency: float) -> None:
        super().__init__()
        self.bands = bands
        self.growth = 2 * bands + 1
        # Follows from the arguments, so a checkpoint need not hold it.
        self.register_buffer("frequencies", torch.linspace(1.0, max_frequency / 2, bands), persistent=False)

    def forward(self, x: Float[Tensor, "*lead feature_dim"]) -> Float[Tensor, "*lead _"]:
        if self.bands == 0:
            return x
        angles = (math.pi * x[..., None] * self.frequencies).flatten(-2)
        return torch.cat([angles.sin(), angles.cos(), x], dim=-1)


class AttentionBlock(nn.Module):
    """A pre-norm transformer block: cross-attention if given a context, else self-attention, then an MLP.

    Nothing under a False of `context_mask` changes the result, not even NaN. A row with nothing to attend to
    gets exactly zero from the attention, and goes on with what it had.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads != 0:
            raise SettingError(
                f"the heads share the width evenly, but width {width} came with {heads} heads: "
                "choose a width that is a multiple of heads"
            )
        self.heads = heads
        self.norm_query = nn.LayerNorm(width)
        self.norm_source = nn.LayerNorm(width)
        self.query = RowLinear(width, width)
        self.key_value = RowLinear(width, 2 * width)
        self.attended = RowLinear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), RowLinear(width, 4 * width), nn.GELU(), RowLinear(4 * width, width)
        )

    def forward(
        self,
        x: Float[Tensor, "batch latents feature_dim"],
        context: Float[Tensor, "batch tokens feature_dim"] | None = None,
        context_mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch latents feature_dim"]:
        x = x + self._attend(x, x if context is None else context, context_mask)
        out: Tensor = x + self.feed_forward(x)
        return out

    def _attend(
        self,
        x: Float[Tensor, "batch latents feature_dim"],
        source: Float[Tensor, "batch tokens feature_dim"],
        mask: Bool[Tensor, "batch tokens"] | None,
    ) -> Float[Tensor, "batch latents feature_dim"]:
        allowed = None
        if mask is not None:
            # A weight of zero does not stop a NaN, so what is masked is also erased.
            source = source.masked_fill(~mask[..., None], 0.0)
            nothing = ~mask.any(dim=-1)
            # A softmax over nothing is 0/0: let such rows attend to anything, and drop the result below.
            allowed = (mask | nothing[:, None])[:, None, None, :]
        queries = self._split(self.query(self.norm_query(x)))
        keys, values = self.key_value(self.norm_source(source)).chunk(2, dim=-1)
        mixed = F.scaled_dot_product_attention(queries, self._split(keys), self._split(values), allowed)
        out: Tensor = self.attended(mixed.transpose(1, 2).flatten(-2))
        # After the projection, whose bias would otherwise be a contribution from nothing.
        return out if mask is None else out.masked_fill(nothing[:, None, None], 0.0)

    def _split(self, x: Float[Tensor, "batch tokens feature_dim"]) -> Float[Tensor, "batch _ tokens _"]:
        batch, tokens, width = x.shape
        return x.reshape(batch, tokens, self.heads, width // self.heads).transpose(1, 2)


def normalised(x: Float[Tensor, "*lead feature_dim"]) -> Float[Tensor, "*lead feature_dim"]:
    return F.layer_norm(x, x.shape[-1:])


class ReadingBlock(nn.Module):
    """A pre-norm block in which one token reads many, each head with a query as wide as they are, then an MLP.

    What is read stays as it is from block to block, so it comes normalised, and neither keys nor values are made of it:
    a query times (a matrix times a token) is (that query times the matrix) times the token, and so with the weighted
    sum. For one reader of many tokens that takes a fraction of the time and memory of `AttentionBlock`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_query = nn.LayerNorm(width)
        self.query = RowLinear(width, heads * width)
        self.attended = RowLinear(heads * width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), RowLinear(width, 4 * width), nn.GELU(), RowLinear(4 * width, width)
        )

    def forward(
        self,
        x: Float[Tensor, "*lead feature_dim"],
        tokens: Float[Tensor, "*lead tokens feature_dim"] | None,
        mask: Bool[Tensor, "*lead tokens"],
    ) -> Float[Tensor, "*lead feature_dim"]:
        """Tokens under a False of the mask are zeros; None where there is nothing but False. A row with nothing to read
        goes on with what it had."""
        if tokens is not None:
            x = x + self._read(x, tokens, mask)
        out: Tensor = x + self.feed_forward(x)
        return out

    def _read(
        self,
        x: Float[Tensor, "*lead feature_dim"],
        tokens: Float[Tensor, "*lead tokens feature_dim"],
        mask: Bool[Tensor, "*lead tokens"],
    ) -> Float[Tensor, "*lead feature_dim"]:
        nothing = ~mask.any(-1, keepdim=True)
        queries = self.query(self.norm_query(x)).unflatten(-1, (self.heads, -1))
        scores = queries @ tokens.transpose(-1, -2) / x.shape[-1] ** 0.5
        # A softmax over nothing is 0/0: let such rows read anything, and drop the result.
        weights = scores.masked_fill(~(mask | nothing).unsqueeze(-2), -torch.inf).softmax(-1)
        read: Tensor = self.attended((weights @ tokens).flatten(-2)).masked_fill(nothing, 0.0)
        return read


class PerceiverStage(nn.Module):
    """Reads any number of tokens into a fixed number of learned latents, which then attend to each other.

    The order of the tokens does not matter, so a token must itself say what it is.
    """

    def __init__(self, width: int, latents: int, heads: int, self_blocks: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(latents, width))
        self.cross = AttentionBlock(width, heads)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(self_blocks))

    def forward(
        self,
        tokens: Float[Tensor, "batch tokens feature_dim"],
        mask: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch latents feature_dim"]:
        x: Tensor = self.cross(self.latents.expand(len(tokens), -1, -1), tokens, mask)
        for block in self.blocks:
            x = block(x)
        return x
