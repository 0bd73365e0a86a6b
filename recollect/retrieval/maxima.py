"""The largest logits of the blocks that may hold an item among the best: for a few inputs, little but reading keys.

Of a stretch of the table that reaches too far back, or whose keys are too short, no item can be among the best, and it
is not read at all: where queries prefer newer items a long history costs no more than its last part. Exact: what is
left out is left out by a bound.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from recollect.records import STRETCH
from recollect.retrieval.scoring import Cuts, Scores, cuts_of, hide_gone_, mend_cut_blocks
from recollect.retrieval.workers import side_by_side

KEYS_AT_ONCE = 1 << 23
"""Bytes of keys that are multiplied by a few queries at once: in smaller pieces, calling would cost more than reading
them again where they are no float32."""

FIRST_BLOCKS = 2
"""For each item that is wanted so many blocks of each query are looked at first, those that may hold the largest
logits; then all others that may still hold one of the best. More steps would read a little less where they help, and
tear what must be read to pieces where they don't."""

ROUNDINGS = 3
"""By how many roundings a ceiling must lie below a maximum: one each for that maximum, for what it is compared with in
the end, and for the ceiling itself."""


def block_maxima(scores: Scores, wanted: Sequence[int]) -> Float[Tensor, "batch retrieved blocks"]:
    """The largest logit of every block, but for `rounding`; -inf also for blocks that hold none of the `wanted` best
    items, a number for each query."""
    batch, retrieved, _ = scores.queries.shape
    maximum = scores.queries.new_full((batch, retrieved, scores.num_blocks), -torch.inf)
    cuts, ceilings = cuts_of(scores), scores.keys.ceilings(scores.scaled)
    if ceilings is None:
        _look(scores, maximum, scores.seen())
    else:
        _look_where_needed(scores, maximum, ceilings, cuts, wanted)
    mend_cut_blocks(scores, cuts, maximum)
    return maximum


def rounding(scores: Scores) -> Float[Tensor, "batch retrieved"]:
    """How far a logit may be from itself computed in another order: whatever the order, a sum of n products is off by
    no more than n roundings of the product of the norms."""
    precise = torch.get_float32_matmul_precision() == "highest"
    unit = 2.0**-24 if precise else 2.0**-8
    norms: Tensor = torch.linalg.vector_norm(scores.scaled, dim=-1)
    return (4 * (scores.keys.width + 1) * unit * scores.keys.longest * norms).nan_to_num(torch.inf, torch.inf)


def _look(scores: Scores, maximum: Float[Tensor, "batch retrieved blocks"], runs: Sequence[tuple[int, int]]) -> None:
    """Fills in the maxima of some runs of whole blocks; no input is masked."""
    size, scaled = scores.keys.block, scores.scaled
    most = KEYS_AT_ONCE // (4 * scores.keys.width)

    def look(tile: tuple[int, int]) -> None:
        start, stop = tile
        logits = hide_gone_(scores.keys.products_at(scaled, start, stop), scores.visible, start, stop)
        maximum[:, :, start // size : stop // size] = logits.unflatten(2, (-1, size)).amax(-1)

    side_by_side(look, [tile for run in runs for tile in scores.split(*run, most)])


def _look_where_needed(
    scores: Scores,
    maximum: Float[Tensor, "batch retrieved blocks"],
    ceilings: Float[Tensor, "batch retrieved stretches"],
    cuts: Cuts,
    wanted: Sequence[int],
) -> None:
    """The tail and the stretches with the highest ceilings, then those that may hold as much as was found there."""
    size, ((low, high), *tail) = scores.keys.block, scores.seen()
    first = torch.arange(ceilings.shape[2], device=ceilings.device) * STRETCH
    start, stop = scores.visible.start.unsqueeze(1), scores.visible.stop.unsqueeze(1)
    left = ceilings.masked_fill(((first + STRETCH <= start) | (first >= stop)).unsqueeze(1), -torch.inf)

    def runs_of(chosen: Bool[Tensor, " stretches"]) -> list[tuple[int, int]]:
        return [(max(low, STRETCH * begin), min(high, STRETCH * end)) for begin, end in _runs(chosen)]

    chosen = _highest(left, -(-FIRST_BLOCKS * max(wanted) * size // STRETCH))
    runs = [*tail, *runs_of(chosen)]
    _look(scores, maximum, runs)
    left.masked_fill_(chosen, -torch.inf)
    looked_at = torch.zeros_like(cuts.outside[0])
    for begin, end in runs:
        looked_at[begin // size : end // size] = True
    unknown = cuts.outside.clone()
    unknown[cuts.row, cuts.block] = True  # until they are mended
    found = maximum[:, :, looked_at].masked_fill(unknown[:, looked_at].unsqueeze(1), -torch.inf)
    least = (_nth_largest(found, wanted) - ROUNDINGS * rounding(scores)).nan_to_num(-torch.inf, torch.inf)
    possible = (left >= least.unsqueeze(2)) & (left > -torch.inf)
    _look(scores, maximum, runs_of(possible.flatten(0, 1).any(0)))


def _highest(ceilings: Float[Tensor, "batch retrieved stretches"], count: int) -> Bool[Tensor, " stretches"]:
    """The stretches that are among the `count` highest for any query; those at -inf are for none."""
    best = ceilings.flatten(0, 1).topk(min(count, ceilings.shape[2]), dim=1)
    chosen = torch.zeros(ceilings.shape[2], dtype=torch.bool, device=ceilings.device)
    chosen[best.indices[best.values > -torch.inf]] = True
    return chosen


def _nth_largest(
    values: Float[Tensor, "batch retrieved some"], which: Sequence[int]
) -> Float[Tensor, "batch retrieved"]:
    """For each query the largest but so many; -inf where there are not as many."""
    largest = values.topk(min(max(which), values.shape[2]), dim=2).values
    missing = max(which) - largest.shape[2]
    largest = F.pad(largest, (0, missing), value=-torch.inf)
    return torch.stack([largest[:, place, number - 1] for place, number in enumerate(which)], dim=1)


def _runs(chosen: Bool[Tensor, " stretches"]) -> list[tuple[int, int]]:
    """Where neighbouring ones begin and end."""
    edges = F.pad(chosen.to(torch.int8), (1, 1)).diff().nonzero().squeeze(1).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
