"""The items with the largest logits, many at once: what a greedy chain of slots with one query each selects.

Exact, and one pass over the visible keys however many items are wanted. Knows nothing of sampling.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import Keys
from recollect.retrieval.scoring import block_maxima, block_positions, row_slices, score

MANY = 1 << 15
"""From so many items on that an input sees, it looks for the best blocks first. Which way an input goes follows from
what it sees alone: their last bits differ, and answers must not depend on who else is asked."""


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
        for start, stop, logits in scores.walk_masked():
            ranks = _ranks(logits[:, 0], torch.arange(start, stop, device=logits.device))
            best = torch.cat([best, ranks], dim=1).topk(count, dim=1).values
        picks.append(_positions(best))
    return torch.cat(picks, dim=1)


def _by_blocks(
    queries: Float[Tensor, "batch groups key_dim"], counts: Sequence[int], keys: Keys, visible: Visible
) -> Int[Tensor, "batch picks"]:
    """The best n items lie in the n blocks with the largest maxima: only these are looked at item by item."""
    scores = score(queries, keys, visible, temperature=1.0, compiled=False)
    maxima = block_maxima(scores)
    # The newest block is always looked at: it is mostly cut, its maximum then computed apart from the others, and a
    # last bit must not decide that of many equal items the newest are left out.
    newest = (visible.stop - 1) // keys.block
    maxima[torch.arange(len(newest), device=newest.device), :, newest] = torch.inf
    blocks = torch.arange(scores.num_blocks, device=queries.device)
    picks = torch.empty(queries.shape[0], 0, dtype=torch.long, device=queries.device)
    for group, count in enumerate(counts):
        asked = scores.slots(slice(group, group + 1))
        # Of the best, as many may be taken already as were picked before.
        wanted = min(picks.shape[1] + count + 1, scores.num_blocks)
        best = _ranks(maxima[:, group], blocks).topk(wanted, dim=1).values & 0xFFFFFFFF
        found = []
        for rows in row_slices(len(best), 4 * wanted * keys.block * (keys.width + 8)):
            positions = block_positions(best[rows], keys.block).flatten(1)
            logits = asked.block_logits(rows, 0, best[rows])[:, :, 0].flatten(1)
            ranks = _ranks(logits, positions)
            taken = (positions.unsqueeze(2) == picks[rows].unsqueeze(1)).any(2)
            found.append(ranks.masked_fill(taken, _LEAST).topk(count, dim=1).values)
        picks = torch.cat([picks, _positions(torch.cat(found))], dim=1)
    return picks


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


def _positions(ranks: Int[Tensor, "batch picks"]) -> Int[Tensor, "batch picks"]:
    return (ranks & 0xFFFFFFFF).masked_fill(ranks < _LEAST_FINITE, -1)


_LEAST = int(_ranks(torch.full((1,), -torch.inf), torch.zeros(1)))
_LEAST_FINITE = int(_ranks(torch.full((1,), torch.finfo(torch.float32).min), torch.zeros(1)))
