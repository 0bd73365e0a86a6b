"""Log-probabilities of a selection, differentiable in the queries, and what else of the scores has a gradient.

The gradient of a log-normaliser is the expected key, so every backward pass here is one more pass over the keys that
sums them with some weight; batch x items weights exist only for one tile at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.kernels import LN_2
from recollect.retrieval.keys import Keys
from recollect.retrieval.leftover import leftover, untouched
from recollect.retrieval.scoring import Scores, score, summarise
from recollect.retrieval.selection import Chains, draw, greedy


@dataclass(frozen=True)
class Selection:
    """Chosen positions with the log-probability of each choice given the earlier ones (0 where empty)."""

    positions: Int[Tensor, "batch chains retrieved"]
    log_p: Float[Tensor, "batch chains retrieved"]

    @property
    def filled(self) -> Bool[Tensor, "batch chains retrieved"]:
        return self.positions >= 0


@dataclass(frozen=True)
class Retrieval:
    """One pass over the keys for a batch, from which chains of either kind can be taken."""

    queries: Float[Tensor, "batch retrieved key_dim"]
    scores: Scores
    sampled_chains: Chains | None
    greedy_chain: Chains | None

    def sampled(self, *, centred: bool = False) -> Selection:
        """The sampled chains. `centred` promises that what will multiply the log-probabilities sums to zero over
        the chains of each input: the normaliser of the first slot, the same for all chains, then has no gradient."""
        assert self.sampled_chains is not None
        return self._selection(self.sampled_chains, centred)

    def greedy(self) -> Selection:
        assert self.greedy_chain is not None
        return self._selection(self.greedy_chain, False)

    def _selection(self, chains: Chains, centred: bool) -> Selection:
        first_slot = 1 if centred else 0
        log_p = _LogProbability.apply(self.queries.float(), self.scores, chains, first_slot)  # type: ignore[no-untyped-call]
        return Selection(chains.positions, log_p)


def retrieve(
    queries: Float[Tensor, "batch retrieved key_dim"],
    keys: Keys,
    visible: Visible,
    *,
    temperature: float,
    uniforms: Float[Tensor, "batch chains retrieved"] | None = None,
    with_greedy: bool = True,
    keep_bytes: int = 0,
    compiled: bool | None = None,
) -> Retrieval:
    """Score once, then choose: chains sampled with the given uniform numbers, the greedy chain, or both."""
    with torch.no_grad():
        scores = score(queries, keys, visible, temperature=temperature, keep_bytes=keep_bytes, compiled=compiled)
        summary = summarise(scores)
        sampled = None if uniforms is None else draw(scores, summary, uniforms)
        best = greedy(scores, summary) if with_greedy else None
    return Retrieval(queries, scores, sampled, best)


class _LogProbability(torch.autograd.Function):
    """The known log-probabilities of chains. The gradient of each is (key of the pick - E_p[key]) * scale, E_p over
    what was selectable; the second term only from `first_slot` on. The naive version is a log_softmax."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, scores: Scores, chains: Chains, first_slot: int) -> Tensor:
        ctx.scores, ctx.chains, ctx.first_slot = scores, chains, first_slot
        return chains.log_p.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        scores: Scores = ctx.scores
        chains: Chains = ctx.chains
        first: int = ctx.first_slot
        if scores.keys.num_items == 0:
            return torch.zeros_like(scores.queries), None, None, None
        weights = grads[0].masked_fill(~chains.filled, 0.0).unsqueeze(-1)
        picked = scores.keys.at(chains.positions.clamp(min=0).flatten(1)).unflatten(1, chains.positions.shape[1:])
        gradient = torch.where(chains.filled.unsqueeze(-1), weights * picked, 0.0).sum(1)
        if first < chains.positions.shape[2]:
            expected = leftover(scores, chains, slice(first, None)).expected_keys()
            gradient[:, first:] -= (weights[:, :, first:] * expected).sum(1)
        return gradient * scores.scale, None, None, None


def _visible_normaliser(scores: Scores) -> tuple[Float[Tensor, "batch retrieved"], Float[Tensor, "batch retrieved"]]:
    """The base-2 logarithm of the sum of 2 ** logit over all visible items, in two parts: the peak, and the logarithm
    of the sum of 2 ** (logit - peak). The peak is +inf where nothing is visible: all probabilities are 0 there."""
    summary = summarise(scores)
    peak = summary.maximum.amax(-1)
    sums = (summary.maximum - peak.unsqueeze(-1)).exp2() * summary.total
    empty = peak == -torch.inf
    return peak.masked_fill(empty, torch.inf), sums.sum(-1).log2().masked_fill(empty, 0.0)


class _LogNormaliser(torch.autograd.Function):
    """Log-sum-exp over the visible items; backward gives the expected keys."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, scores: Scores) -> Tensor:
        peak, log_total = _visible_normaliser(scores)
        ctx.scores, ctx.normaliser = scores, peak + log_total
        result: Tensor = (ctx.normaliser * LN_2).masked_fill(peak == torch.inf, 0.0)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        expected = untouched(ctx.scores, ctx.normaliser).expected_keys().squeeze(1)
        return grads[0].unsqueeze(-1) * expected * ctx.scores.scale, None


def log_normaliser(
    queries: Float[Tensor, "batch retrieved key_dim"], scores: Scores
) -> Float[Tensor, "batch retrieved"]:
    """Log-sum-exp of each slot's logits over all visible items, none taken out, differentiable; 0 where none is."""
    result: Tensor = _LogNormaliser.apply(queries.float(), scores)  # type: ignore[no-untyped-call]
    return result


class _Entropy(torch.autograd.Function):
    """Entropy of every slot's distribution over all visible items, as the mean of -log p."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, scores: Scores) -> Tensor:
        ctx.scores, ctx.normaliser = scores, _visible_normaliser(scores)
        ctx.entropy = torch.zeros_like(ctx.normaliser[0])
        for _, _, log_p in _log_probability_tiles(scores, *ctx.normaliser):
            # p log p, not p times the logit: large logits would not cancel. What is impossible adds 0, not NaN.
            ctx.entropy -= (log_p.exp() * log_p).masked_fill_(log_p == -torch.inf, 0.0).sum(-1)
        result: Tensor = ctx.entropy.clone()
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scores: Scores = ctx.scores
        gradient = torch.zeros_like(scores.queries)
        for start, stop, log_p in _log_probability_tiles(scores, *ctx.normaliser):
            weights = -log_p.exp() * (log_p + ctx.entropy.unsqueeze(-1))
            scores.add_weighted_sum_(gradient, weights.masked_fill_(log_p == -torch.inf, 0.0), start, stop)
        return gradient * grads[0].unsqueeze(-1) * scores.scale, None


def _log_probability_tiles(
    scores: Scores, peak: Float[Tensor, "batch retrieved"], log_total: Float[Tensor, "batch retrieved"]
) -> Iterator[tuple[int, int, Float[Tensor, "batch retrieved items"]]]:
    for start, stop, logits in scores.walk_masked():
        # The peak first: large logits would not leave a float32 room for the small logarithm.
        yield start, stop, logits.sub_(peak.unsqueeze(-1)).sub_(log_total.unsqueeze(-1)).mul_(LN_2)


def entropy(queries: Float[Tensor, "batch retrieved key_dim"], scores: Scores) -> Float[Tensor, "batch retrieved"]:
    """Entropy in nats of each slot's softmax over the visible items, differentiable; 0 where none is visible."""
    result: Tensor = _Entropy.apply(queries.float(), scores)  # type: ignore[no-untyped-call]
    return result
