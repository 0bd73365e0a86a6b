"""The items with the largest logits, many at once: what a greedy chain of slots with one query each selects.

Exact, and one pass over the visible keys however many items are wanted. Knows nothing of sampling.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import Keys
from recollect.retrieval.maxima import block_maxima, rounding
from recollect.retrieval.scoring import Scores, block_positions, row_slices, score

MANY = 1 << 15
"""From so many items on that an input sees, it looks for the best blocks first. Which way an input goes follows from
what it sees alone: their last bits differ, and answers must not depend on who else is asked."""

AT_ONCE = 64
"""Blocks of an input that are looked at together."""

STRAND = 16
"""Items of a tile whose maximum is looked at before they are."""


def top(
    queries: Float[Tensor, "batch key_dim"], keys: Keys, visible: Visible, count: int
) -> Int[Tensor, "batch picks"]:
    """Positions of the visible items with the largest products, largest first; -1 for none.

    Of equal ones the later position, which is the newer item unless it came out of order.
    """
    return top_of_groups(queries.unsqueeze(1), [count], keys, visible)


def top_of_groups(
    queries: Float[Tensor, "batch groups key_dim"], counts: Sequence[int], keys: Keys, visible: Visible
) -> Int[Tensor, "batch picks"]:
    """What a greedy chain selects in which `counts` neighbouring slots ask with the same query."""
    many = visible.stop - visible.start >= MANY
    picks = torch.empty(len(many), sum(counts), dtype=torch.long, device=queries.device)
    for way, mine in ((_by_items, ~many), (_by_blocks, many)):
        rows = mine.nonzero().squeeze(1)
        if len(rows):
            picks[rows] = way(queries[rows], counts, keys, visible.take(rows))
    return picks


def _by_items(
    queries: Float[Tensor, "batch groups key_dim"], counts: Sequence[int], keys: Keys, visible: Visible
) -> Int[Tensor, "batch picks"]:
    """Every item in order of its logit, tile by tile."""
    picks: list[Tensor] = []
    for query, count in zip(queries.unbind(1), counts, strict=True):
        best = torch.full((query.shape[0], count), _LEAST, dtype=torch.long, device=query.device)
        scores = score(query.unsqueeze(1), keys, _without(visible, picks), temperature=1.0, compiled=False)
        for start, _, logits in scores.walk_masked():
            best = torch.cat([best, _best_ranks(logits[:, 0], start, count)], dim=1).topk(count, dim=1).values
        picks.append(_positions(best))
    return torch.cat(picks, dim=1)


def _best_ranks(logits: Float[Tensor, "batch items"], start: int, count: int) -> Int[Tensor, "batch best"]:
    """The ranks of the largest logits of a tile that begins at a position.

    The best n items lie in the n strands with the largest maxima; a strand is every so-manieth item, since maxima of
    those are found without looking across a row.
    """
    batch, size = logits.shape
    strands = size // STRAND
    if size % STRAND or strands <= 2 * count:
        return _ranks_of(logits, torch.arange(start, start + size, device=logits.device), count)
    maxima = logits.view(batch, STRAND, strands).amax(1)
    chosen = maxima.topk(count, dim=1).indices
    places = (chosen.unsqueeze(1) + strands * torch.arange(STRAND, device=logits.device)[:, None]).flatten(1)
    ranks = _ranks_of(logits.gather(1, places), places + start, count)
    # A strand that was left out may hold as large a logit as the last one found, and that one may be newer.
    least = _logits(ranks[:, -1:]).clamp(min=torch.finfo(logits.dtype).min)
    tied = (maxima >= least).sum(1) > (maxima.gather(1, chosen) >= least).sum(1)
    if bool(tied.any()):
        ranks[tied] = _ranks_of(logits[tied], torch.arange(start, start + size, device=logits.device), count)
    return ranks


def _ranks_of(
    logits: Float[Tensor, "batch items"], positions: Shaped[Tensor, "*some items"], count: int
) -> Int[Tensor, "batch best"]:
    return _ranks(logits, positions).topk(min(count, logits.shape[1]), dim=1).values


def _by_blocks(
    queries: Float[Tensor, "batch groups key_dim"], counts: Sequence[int], keys: Keys, visible: Visible
) -> Int[Tensor, "batch picks"]:
    """The best n items lie in the n blocks with the largest maxima: only these are looked at item by item, and then
    those whose maximum, but for rounding, might have been larger than the last item found."""
    scores = score(queries, keys, visible, temperature=1.0, compiled=False)
    maxima, margins = block_maxima(scores, list(accumulate(counts))), rounding(scores)
    picks = torch.empty(queries.shape[0], 0, dtype=torch.long, device=queries.device)
    for group, count in enumerate(counts):
        asked = scores.slots(slice(group, group + 1))
        unseen = maxima[:, group].clone()
        best = torch.full((len(queries), count), _LEAST, dtype=torch.long, device=queries.device)
        # Of the best, as many may be taken already as were picked before.
        wanted = picks.shape[1] + count
        while wanted:
            blocks = unseen.topk(min(wanted, AT_ONCE, scores.num_blocks), dim=1)
            best = _better(asked, blocks.indices, blocks.values > -torch.inf, picks, best)
            unseen.scatter_(1, blocks.indices, -torch.inf)
            least = _logits(best[:, -1:]) - margins[:, group : group + 1]
            wanted = int(((unseen >= least) & (unseen > -torch.inf)).sum(1).max())
        picks = torch.cat([picks, _positions(best)], dim=1)
    return picks


def _better(
    asked: Scores,
    blocks: Int[Tensor, "batch blocks"],
    there: Bool[Tensor, "batch blocks"],
    picks: Int[Tensor, "batch picks"],
    best: Int[Tensor, "batch count"],
) -> Int[Tensor, "batch count"]:
    """The best ranks again, after the items of some more blocks, less those that were picked before."""
    size, width = asked.keys.block, asked.keys.width
    better = []
    for rows in row_slices(len(blocks), 4 * blocks.shape[1] * size * (width + 8)):
        positions = block_positions(blocks[rows], size)
        logits = asked.block_logits(rows, 0, blocks[rows])[:, :, 0].masked_fill(~there[rows].unsqueeze(2), -torch.inf)
        taken = (positions.unsqueeze(3) == picks[rows, None, None]).any(3)
        ranks = _ranks(logits, positions).masked_fill(taken, _LEAST).flatten(1)
        better.append(torch.cat([best[rows], ranks], dim=1).topk(best.shape[1], dim=1).values)
    return torch.cat(better)


def _without(visible: Visible, picks: list[Int[Tensor, "batch _"]]) -> Visible:
    hidden = [*picks] if visible.hidden is None else [visible.hidden, *picks]
    return replace(visible, hidden=torch.cat(hidden, dim=1)) if hidden else visible


def _ranks(
    logits: Float[Tensor, "*lead items"], positions: Shaped[Tensor, "*some items"]
) -> Int[Tensor, "*lead items"]:
    """Integers in the order of the logits, the newer of two equal ones first: topk alone may take either of them, and
    which one would depend on items that nobody sees."""
    bits = (logits.float() + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) | positions.long()


def _logits(ranks: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
    ordered = (ranks >> 32).int()
    return torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)


def _positions(ranks: Int[Tensor, "batch picks"]) -> Int[Tensor, "batch picks"]:
    return (ranks & 0xFFFFFFFF).masked_fill(ranks < _LEAST_FINITE, -1)


_LEAST = int(_ranks(torch.full((1,), -torch.inf), torch.zeros(1)))
_LEAST_FINITE = int(_ranks(torch.full((1,), torch.finfo(torch.float32).min), torch.zeros(1)))
