"""Choosing items without replacement: sampled chains and the greedy chain, slot by slot, from block summaries.

Knows nothing of gradients: what it returns are positions with their log-probabilities as plain numbers, which
`gradients` makes differentiable.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.retrieval.kernels import LN_2, reduce_blocks
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.scoring import BlockSummary, Scores, block_positions, row_slices


@dataclass(frozen=True)
class Chains:
    """Positions chosen for every slot of every chain, -1 where nothing was left to choose.

    `log_p` is the log-probability of each choice given the earlier ones. `normaliser` is the base-2 logarithm of the
    sum of 2 ** logit over what was still selectable. Both are 0 where the slot is empty.
    """

    positions: Int[Tensor, "batch chains retrieved"]
    log_p: Float[Tensor, "batch chains retrieved"]
    normaliser: Float[Tensor, "batch chains retrieved"]

    @property
    def filled(self) -> Bool[Tensor, "batch chains retrieved"]:
        return self.positions >= 0


def draw(scores: Scores, summary: BlockSummary, uniforms: Float[Tensor, "batch chains retrieved"]) -> Chains:
    """Sample chains by inverting the cumulative distribution: first the block, then the item inside it.

    One uniform number in [0, 1) per (input, chain, slot), so that appending items shifts no random number. Exactly
    the distribution of softmax sampling without replacement.
    """
    return _choose(scores, summary, uniforms.double(), uniforms.shape[1])


def greedy(scores: Scores, summary: BlockSummary) -> Chains:
    """The most probable item of every slot, given the chain's own earlier picks; ties go to the newest item."""
    return _choose(scores, summary, None, 1)


def _choose(
    scores: Scores,
    summary: BlockSummary,
    uniforms: Float[Tensor, "batch chains retrieved"] | None,
    chains: int,
) -> Chains:
    batch, retrieved, _ = scores.queries.shape
    positions = torch.full((batch, chains, retrieved), -1, device=scores.queries.device)
    log_p = scores.queries.new_zeros(batch, chains, retrieved)
    result = Chains(positions, log_p, torch.zeros_like(log_p))
    if scores.keys.num_items == 0:
        return result
    # Per row one slot of the summary, and one block of keys with its logits, are made anew.
    block_bytes = 4 * scores.keys.block * (scores.keys.width + 4 * retrieved)
    for rows in row_slices(batch, chains * (32 * scores.num_blocks + block_bytes)):
        chosen = _choose_rows(scores, summary, None if uniforms is None else uniforms[rows], rows, chains)
        result.positions[rows], result.log_p[rows] = chosen.positions, chosen.log_p
        result.normaliser[rows] = chosen.normaliser
    return result


def _choose_rows(
    scores: Scores,
    summary: BlockSummary,
    uniforms: Float[Tensor, "batch chains retrieved"] | None,
    rows: slice,
    chains: int,
) -> Chains:
    retrieved, size = scores.queries.shape[1], scores.keys.block
    batch = summary.maximum[rows].shape[0]
    taken = torch.full((batch, chains, retrieved), -1, device=scores.queries.device)
    log_p = torch.zeros_like(taken, dtype=torch.float32)
    normaliser = torch.zeros_like(log_p)
    # For every slot so far the block it took an item from, and that block's maximum and total without it.
    touched: list[tuple[Tensor, Tensor, Tensor]] = []
    # Where the only block is kept, it is looked at in every slot anyway and nothing need be updated for later ones.
    # (Not where it is recomputed: a history that grows into its second block would change the last bits.)
    one_block = scores.num_blocks == 1 and scores.kept is not None
    for slot in range(retrieved):
        # [batch, chains, blocks]: every chain takes its own items out of its own copy.
        maximum = summary.maximum[rows, slot].unsqueeze(1).repeat(1, chains, 1)
        total = summary.total[rows, slot].unsqueeze(1).repeat(1, chains, 1)
        for block, block_maximum, block_total in touched:
            maximum.scatter_(2, block.unsqueeze(2), block_maximum[:, :, slot - retrieved, None])
            total.scatter_(2, block.unsqueeze(2), block_total[:, :, slot - retrieved, None])
        peak = maximum.amax(-1)
        running = _running_sum(maximum, peak, total)
        if uniforms is None:
            block, within = _newest_block(scores, rows, slot, maximum, taken[:, :, :slot]), None
        else:
            block, within = _invert(running, uniforms[:, :, slot])
        logits = scores.block_logits(rows, slot, block)[:, :, : 1 if one_block else None]
        here = block_positions(block, size)
        logits = _without(logits, here, taken[:, :, :slot])
        if one_block:
            peak = logits[:, :, 0].amax(-1)
            running = _running_sum(logits[:, :, 0], peak)
        if within is None:
            inside = _newest_maximum(logits[:, :, 0])
        else:
            block_peak = logits[:, :, 0].amax(-1)
            inside, _ = _invert(_running_sum(logits[:, :, 0], block_peak), within)
        empty = peak == -torch.inf
        picked = logits[:, :, 0].gather(2, inside.unsqueeze(-1)).squeeze(-1)
        log_total = running[:, :, -1].log2()
        taken[:, :, slot] = here.gather(2, inside.unsqueeze(-1)).squeeze(-1).masked_fill(empty, -1)
        # Never picked - normaliser: large logits would not leave a float32 room for their difference.
        log_p[:, :, slot] = (((picked - peak) - log_total) * LN_2).masked_fill(empty, 0.0)
        normaliser[:, :, slot] = (peak + log_total).masked_fill(empty, 0.0)
        if slot + 1 < retrieved and not one_block:
            later = _without(logits[:, :, 1:], here, taken[:, :, slot : slot + 1])
            touched.append((block, *reduce_blocks(later)))
    return Chains(taken, log_p, normaliser)


def _newest_block(
    scores: Scores,
    rows: slice,
    slot: int,
    maximum: Float[Tensor, "batch chains blocks"],
    taken: Int[Tensor, "batch chains picks"],
) -> Int[Tensor, "batch chains"]:
    """The block of the largest logit; of several such items that of the newest, be it in the table or in its tail."""
    keys = scores.keys
    if not isinstance(keys, SharedKeys) or keys.tail is None or keys.tail_start == 0:
        return _newest_maximum(maximum)
    assert keys.tail_after is not None
    first = keys.tail_start // keys.block
    block = _newest_maximum(maximum[:, :, :first])
    tail_block = _newest_maximum(maximum[:, :, first:]) + first
    best, tail_best = maximum[:, :, :first].amax(-1), maximum[:, :, first:].amax(-1)
    in_tail = tail_best > best
    if bool((tail_best == best).any()):
        newest = []
        for each in (block, tail_block):
            here = block_positions(each, keys.block)
            logits = _without(scores.block_logits(rows, slot, each)[:, :, :1], here, taken)[:, :, 0]
            newest.append(here.gather(2, _newest_maximum(logits).unsqueeze(-1)).squeeze(-1))
        in_table, late = newest
        after = keys.tail_after[(late - keys.tail_start).clamp(0, keys.tail.num_items - 1)]
        in_tail |= (tail_best == best) & (after > in_table)
    return torch.where(in_tail, tail_block, block)


def _without(
    logits: Float[Tensor, "batch chains retrieved items"],
    positions: Int[Tensor, "batch chains items"],
    taken: Int[Tensor, "batch chains picks"],
) -> Float[Tensor, "batch chains retrieved items"]:
    """Logits with the taken items at -inf: left out before the sum, never subtracted from it."""
    gone = torch.zeros_like(positions, dtype=torch.bool)
    for pick in taken.unbind(-1):
        gone |= positions == pick.unsqueeze(-1)
    return logits.masked_fill(gone.unsqueeze(2), -torch.inf)


def _running_sum(
    log_weights: Float[Tensor, "batch chains items"],
    peak: Float[Tensor, "batch chains"],
    times: Float[Tensor, "batch chains items"] | None = None,
) -> Float[Tensor, "batch chains items"]:
    """Running sums of 2 ** (log_weights - peak) * times, in double precision.

    A running sum adds in order, so that zeros before and after change no bit: the normaliser of an input doesn't
    depend on how much history lies outside its interval.
    """
    shift = peak.masked_fill(peak == -torch.inf, 0.0)
    weights = (log_weights - shift.unsqueeze(-1)).exp2_()
    return (weights if times is None else weights.mul_(times)).cumsum(-1, dtype=torch.float64)


def _invert(
    running: Float[Tensor, "batch chains items"], uniform: Float[Tensor, "batch chains"]
) -> tuple[Int[Tensor, "batch chains"], Float[Tensor, "batch chains"]]:
    """Index whose interval of the running sum holds `uniform * total`, and where in that interval, in [0, 1)."""
    total = running[..., -1:].contiguous()
    target = uniform.unsqueeze(-1) * total
    index = torch.searchsorted(running, target, right=True)
    # Rounding may carry the target to the very end: the last index with any weight is the right one there.
    index = torch.minimum(index, torch.searchsorted(running, total))
    below = torch.where(index > 0, running.gather(-1, (index - 1).clamp(min=0)), 0.0)
    span = running.gather(-1, index) - below
    within = ((target - below) / span.clamp(min=torch.finfo(torch.float64).tiny)).clamp(0.0, 1.0 - 2.0**-53)
    return index.squeeze(-1), within.squeeze(-1)


def _newest_maximum(values: Float[Tensor, "batch chains items"]) -> Int[Tensor, "batch chains"]:
    """Last index among the largest; `argmax` doesn't promise which of several it returns."""
    largest = values == values.amax(-1, keepdim=True)
    index = torch.arange(values.shape[-1], dtype=torch.int32, device=values.device)
    return torch.where(largest, index, -1).amax(-1).long()
