"""From an encoded input to the queries that are compared with the keys of the history.

Query generators see the input only: never the keys, the history or its size, and never the items retrieved so
far. All queries of an input are therefore known before the first item is selected.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.blocks import PerceiverStage, RowLinear, mlp


class MLPQueryGenerator(nn.Module):
    """A ReLU MLP from the input's state to one query per slot."""

    def __init__(self, state_width: int, hidden: Sequence[int], num_retrieved: int, key_dim: int) -> None:
        super().__init__()
        self.shape = (num_retrieved, key_dim)
        self.layers = mlp([state_width, *hidden, num_retrieved * key_dim])

    def forward(self, state: Float[Tensor, "batch feature_dim"]) -> Float[Tensor, "batch retrieved key_dim"]:
        queries: Tensor = self.layers(state)
        return queries.view(len(queries), *self.shape)


class PerceiverQueryGenerator(nn.Module):
    """A Perceiver stage over the input's tokens; the mean of its latents gives one query per slot."""

    def __init__(
        self, width: int, latents: int, heads: int, self_blocks: int, num_retrieved: int, key_dim: int
    ) -> None:
        super().__init__()
        self.shape = (num_retrieved, key_dim)
        self.stage = PerceiverStage(width, latents, heads, self_blocks)
        self.norm = nn.LayerNorm(width)
        self.head = RowLinear(width, num_retrieved * key_dim)

    def forward(self, tokens: Float[Tensor, "batch tokens feature_dim"]) -> Float[Tensor, "batch retrieved key_dim"]:
        queries: Tensor = self.head(self.norm(self.stage(tokens)).mean(dim=1))
        return queries.view(len(queries), *self.shape)


class SimilarityResidual(nn.Module):
    """alpha * learned + (1 - alpha) * the input's own key, in every slot: retrieval starts from similarity.

    `alpha` is one learned number, kept inside (0, 1) by a sigmoid.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alpha_logit = nn.Parameter(torch.zeros(()))  # alpha starts at a half

    @property
    def alpha(self) -> Float[Tensor, ""]:
        return torch.sigmoid(self.alpha_logit)

    def forward(
        self, learned: Float[Tensor, "batch retrieved key_dim"], own_keys: Float[Tensor, "batch key_dim"]
    ) -> Float[Tensor, "batch retrieved key_dim"]:
        return self.alpha * learned + (1 - self.alpha) * own_keys[:, None, :]


LARGEST_CHANGE = 5.0
"""Exponent up to which recency may move from where it starts, a factor of 150: a few steps on wide inputs would
otherwise make it infinite."""


class RecencyQuery(nn.Module):
    """The queries' component along the recency coordinate of the keys, one number per slot.

    It starts at `initial` for every input, one number for each slot: positive, so that of two like items the newer one
    is preferred. From there each slot learns a factor, its own and one that depends on the state: a step of the
    optimiser then means as much to a slot that looks at the last hour as to one that looks at years.
    """

    initial: Tensor

    def __init__(self, state_width: int, initial: Sequence[float]) -> None:
        super().__init__()
        if min(initial) <= 0:
            raise SettingError(
                f"recency is {min(initial)}: it must be positive, to prefer newer items, or None for none"
            )
        self.layer = RowLinear(state_width, len(initial))
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.register_buffer("initial", torch.tensor(list(initial), dtype=torch.float32))

    def forward(self, state: Float[Tensor, "batch feature_dim"]) -> Float[Tensor, "batch retrieved"]:
        component: Tensor = self.initial * torch.exp(self.layer(state).clamp(-LARGEST_CHANGE, LARGEST_CHANGE))
        return component


class OwnKeyQueries(nn.Module):
    """Queries that start as the input's own key, so that at first an input retrieves what is most like it.

    From there each slot learns to ask for something else: a deviation that starts at zero, an odd function of the input
    for the reason given at `MetricQueryGenerator`, and how sharply it asks, from its `sharpness` on.
    """

    def __init__(self, input_width: int, hidden_width: int, key_dim: int, sharpness: Sequence[float]) -> None:
        super().__init__()
        num_retrieved = len(sharpness)
        self.shape = (num_retrieved, key_dim)
        self.linear = RowLinear(input_width, num_retrieved * key_dim, bias=False)
        self.hidden = RowLinear(input_width, hidden_width, bias=False)
        self.bend = RowLinear(hidden_width, num_retrieved * key_dim, bias=False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.bend.weight)
        self.log_sharpness = nn.Parameter(torch.tensor(list(sharpness)).log().unsqueeze(1))

    def forward(
        self, state: Float[Tensor, "batch feature_dim"], own_keys: Float[Tensor, "batch key_dim"]
    ) -> Float[Tensor, "batch retrieved key_dim"]:
        deviation: Tensor = self.linear(state) + self.bend(self.hidden(state).tanh())
        asked: Tensor = own_keys.unsqueeze(1) + deviation.unflatten(1, self.shape)
        return asked * self.log_sharpness.exp()


class MetricQueryGenerator(nn.Module):
    """Queries of a learned length from an odd function of the input: linear, plus a tanh layer that starts at zero.

    Two things keep exploration from collapsing on wrong items before the classifier has learned what a right one is.
    An odd function (no bias, no layer of positive outputs) of standardised inputs has no part that is common to them,
    so that the noise of the score function can't move all queries alike. And every query is scaled to a fixed length
    times a learned factor, so that a random walk of the weights turns queries but doesn't sharpen the softmax.
    """

    def __init__(self, input_width: int, hidden_width: int, num_retrieved: int, key_dim: int) -> None:
        super().__init__()
        self.shape = (num_retrieved, key_dim)
        self.linear = RowLinear(input_width, num_retrieved * key_dim, bias=False)
        self.hidden = RowLinear(input_width, hidden_width, bias=False)
        self.bend = RowLinear(hidden_width, num_retrieved * key_dim, bias=False)
        nn.init.zeros_(self.bend.weight)
        self.log_scale = nn.Parameter(torch.zeros(num_retrieved, 1))

    def forward(self, state: Float[Tensor, "batch feature_dim"]) -> Float[Tensor, "batch retrieved key_dim"]:
        raw: Tensor = self.linear(state) + self.bend(self.hidden(state).tanh())
        return F.rms_norm(raw.unflatten(1, self.shape), self.shape[1:]) * self.log_scale.exp()
