"""The items with the largest logits, many at once: what a greedy chain of slots with one query selects.

Exact, and one pass over the visible keys however many items are wanted. Knows nothing of sampling.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import Keys
from recollect.retrieval.scoring import score


def top(
    queries: Float[Tensor, "batch key_dim"], keys: Keys, visible: Visible, count: int
) -> Int[Tensor, "batch picks"]:
    """Positions of the visible items with the largest products, largest first; -1 for none.

    Of equal ones the later position, which is the newer item unless it came out of order.
    """
    best = torch.full((queries.shape[0], count), _LEAST, dtype=torch.long, device=queries.device)
    scores = score(queries.unsqueeze(1), keys, visible, temperature=1.0, compiled=False)
    for start, stop, logits in scores.walk_masked():
        ranks = _ranks(logits[:, 0], torch.arange(start, stop, device=logits.device))
        best = torch.cat([best, ranks], dim=1).topk(count, dim=1).values
    return (best & 0xFFFFFFFF).masked_fill(best < _LEAST_FINITE, -1)


def top_of_groups(
    queries: Float[Tensor, "batch groups key_dim"], counts: Sequence[int], keys: Keys, visible: Visible
) -> Int[Tensor, "batch picks"]:
    """What a greedy chain selects in which `counts` neighbouring slots ask with the same query."""
    picks: list[Tensor] = []
    for query, count in zip(queries.unbind(1), counts, strict=True):
        picks.append(top(query, keys, _without(visible, picks), count))
    return torch.cat(picks, dim=1)


def _without(visible: Visible, picks: list[Int[Tensor, "batch _"]]) -> Visible:
    hidden = [*picks] if visible.hidden is None else [visible.hidden, *picks]
    return replace(visible, hidden=torch.cat(hidden, dim=1)) if hidden else visible


def _ranks(logits: Float[Tensor, "*lead items"], positions: Shaped[Tensor, " items"]) -> Int[Tensor, "*lead items"]:
    """Integers in the order of the logits, the newer of two equal ones first: topk alone may take either of them, and
    which one would depend on items that nobody sees."""
    bits = (logits.float() + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) | positions.long()


_LEAST = int(_ranks(torch.full((1,), -torch.inf), torch.zeros(1)))
_LEAST_FINITE = int(_ranks(torch.full((1,), torch.finfo(torch.float32).min), torch.zeros(1)))
