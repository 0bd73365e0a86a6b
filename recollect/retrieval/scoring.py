"""Scores of queries against keys, one block of keys at a time.

Knows what each input may see and at which temperature; knows nothing of what is drawn from the scores. Everything is
exact: blocks bound memory, they approximate nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recollect.errors import SettingError
from recollect.records import Visible
from recollect.retrieval.kernels import LN_2, can_compile, reduce_blocks, reduction
from recollect.retrieval.keys import ROWS, Keys, OwnKeys, pad_rows
from recollect.retrieval.keys import SharedKeys as SharedKeys

TILE_BYTES = 8 << 20
"""Size of the scores that one product makes: small enough to stay in a cache, large enough to keep BLAS busy."""

TILES_AT_ONCE = 16
"""Tiles whose summaries are stored together."""

COMPILE_FROM = 1 << 28
"""Scores per pass from which compiling (some ten seconds, once) pays on an accelerator."""


@dataclass(frozen=True)
class Scores:
    """Retrieval logits `queries @ keys * scale`, never all at once unless they are `kept`.

    Inside retrieval they are base 2, `queries @ keys * scale / ln(2)`: an item's weight is 2 ** logit. What leaves it,
    log-probabilities, entropies and log-normalisers, is in nats.

    `kept` holds them, padded to whole blocks, where they are small (histories per input): then no block is
    multiplied twice. Where it is None, a block's logits are computed anew each time they are asked for.
    """

    queries: Float[Tensor, "batch retrieved key_dim"]
    keys: Keys
    visible: Visible
    scale: float
    compiled: bool = False
    kept: Float[Tensor, "batch retrieved items"] | None = None

    @property
    def num_blocks(self) -> int:
        return max(1, -(-self.keys.num_items // self.keys.block))

    @property
    def scaled(self) -> Float[Tensor, "batch retrieved key_dim"]:
        """Queries whose products with keys are the logits, base 2."""
        return self.queries * (self.scale / LN_2)

    def tiles(self, most: int | None = None) -> list[tuple[int, int]]:
        """The stretches [start, stop) of whole blocks, each a tile of at most `most` items, that some input may see."""
        return [tile for first, last in self.seen() for tile in self.split(first, last, most)]

    def seen(self) -> list[tuple[int, int]]:
        """For each interval the whole blocks [start, stop) that some input may see some of; nothing is (0, 0)."""
        block, ends = self.keys.block, []
        for start, stop in self.visible.intervals:
            seen = stop > start
            there = bool(seen.any())
            first = int(start[seen].min()) // block * block if there else 0
            last = -(-int(stop[seen].max()) // block) * block if there else 0
            ends.append((first, last))
        return ends

    def split(self, first: int, last: int, most: int | None = None) -> list[tuple[int, int]]:
        """Whole blocks as tiles of at most `most` items, whose logits stay in a cache."""
        batch, retrieved, _ = self.queries.shape
        block = self.keys.block
        size = max(1, TILE_BYTES // (4 * batch * retrieved * block)) * block
        if most is not None:
            size = min(size, max(1, most // block) * block)
        return [(at, min(at + size, last)) for at in range(first, last, size)]

    def walk(self) -> Iterator[tuple[int, int, Float[Tensor, "batch retrieved items"]]]:
        """Tiles as (start, stop, logits), -inf for what no input may see; for this or that input nothing is masked.

        The next step overwrites logits that are not kept, and so may the caller.
        """
        if self.kept is not None:
            for start, stop in self.tiles():
                yield start, stop, self.kept[:, :, start:stop]
            return
        scaled, buffer = self.scaled, self.buffer()
        for start, stop in self.tiles():
            logits = self.keys.products(scaled, self.keys.tile(start, stop), buffer)
            yield start, stop, hide_gone_(logits, self.visible, start, stop)

    def walk_masked(self) -> Iterator[tuple[int, int, Float[Tensor, "batch retrieved items"]]]:
        """Tiles as (start, stop, logits) that the caller may overwrite, -inf where an input may not see an item."""
        buffer = None if self.kept is None else self.buffer()
        for start, stop, logits in self.walk():
            if buffer is not None:
                logits = buffer[: logits.numel()].view(logits.shape).copy_(logits)
            self._hide_(start, stop, logits)
            yield start, stop, logits

    def buffer(self) -> Float[Tensor, " scores"]:
        """Room for the largest tile. New memory for every tile would cost more than the product that fills it."""
        largest = max((stop - start for start, stop in self.tiles()), default=0)
        return self.queries.new_empty((self.queries.shape[0] * self.queries.shape[1] + ROWS) * largest)

    def _hide_(self, start: int, stop: int, logits: Float[Tensor, "batch retrieved items"]) -> None:
        cut = self._cut(start, stop)
        if not bool(cut.any()):
            return
        size = stop - start
        rows = slice(None) if bool(cut.all()) else cut.nonzero().squeeze(1)  # often few: an interval has two ends
        part, visible = logits[rows], self.visible.take(rows)
        within = [tuple((end - start).clamp(0, size).int() for end in ends) for ends in visible.intervals]
        # What lies in the first interval of every input, as most does where these are asked in order, is not looked at.
        low, high = int(within[0][0].max()), int(within[0][1].min())
        for first, last in ((0, low), (high, size)) if low < high else ((0, size),):
            here = torch.arange(first, last, dtype=torch.int32, device=logits.device)
            outside = torch.ones(part.shape[0], last - first, dtype=torch.bool, device=logits.device)
            for begin, end in within:
                outside &= (here < begin.unsqueeze(1)) | (here >= end.unsqueeze(1))
            part[..., first:last].masked_fill_(outside.unsqueeze(1), -torch.inf)
        if visible.hidden is not None:
            row, which = ((visible.hidden >= start) & (visible.hidden < stop)).nonzero(as_tuple=True)
            part[row, :, visible.hidden[row, which] - start] = -torch.inf
        if not isinstance(rows, slice):
            logits[rows] = part

    def _cut(self, start: int, stop: int) -> Bool[Tensor, " batch"]:
        """Which inputs may not see all of the positions [start, stop)."""
        cut = torch.ones_like(self.visible.start, dtype=torch.bool)
        for first, last in self.visible.intervals:
            cut &= (first > start) | (last < stop)
        if self.visible.hidden is not None:
            cut |= ((self.visible.hidden >= start) & (self.visible.hidden < stop)).any(1)
        return cut

    def add_weighted_sum_(
        self,
        total: Float[Tensor, "batch retrieved key_dim"],
        weights: Float[Tensor, "batch retrieved items"],
        start: int,
        stop: int,
    ) -> None:
        """Adds the weighted keys of a tile to `total`; what stands where the weight is 0 adds nothing, NaN included."""
        tile = self.keys.tile(start, stop)
        if bool(self._cut(start, stop).any()) or len(gone_within(self.visible, start, stop)):
            tile = tile.nan_to_num(0.0, 0.0, 0.0)
        self.keys.add_weighted_sum_(total, weights, tile)

    def slots(self, chosen: slice) -> "Scores":
        """The same scores for some of the slots."""
        kept = None if self.kept is None else self.kept[:, chosen]
        return replace(self, queries=self.queries[:, chosen], kept=kept)

    def block_logits(
        self, rows: slice | Int[Tensor, " rows"], first_slot: int, blocks: Int[Tensor, "batch chains"]
    ) -> Float[Tensor, "batch chains retrieved items"]:
        """Logits of one block per (input, chain) for the slots from `first_slot` on; invisible ones are -inf."""
        size = self.keys.block
        positions = block_positions(blocks, size)
        if self.kept is not None:
            held = self.kept[rows, first_slot:].unflatten(2, (-1, size))
            index = torch.arange(held.shape[0], device=held.device).unsqueeze(1)
            logits = held[index, :, blocks]
        else:
            inside = positions.clamp(max=self.keys.num_items - 1).flatten(1)
            keys = self.keys.at(inside).unflatten(1, positions.shape[1:])
            queries = self.scaled[rows, first_slot:].unsqueeze(1)
            logits = (pad_rows(queries) @ keys.transpose(2, 3))[:, :, : queries.shape[2]]
        seen = self.visible.take(rows).sees(positions)
        return torch.where(seen.unsqueeze(2), logits, -torch.inf)


def gone_within(visible: Visible, start: int, stop: int) -> Int[Tensor, " gone"]:
    """Positions of [start, stop) that no input may see though they lie within intervals, counted from `start`."""
    if visible.gone is None:
        return visible.start.new_empty(0)
    ends = torch.searchsorted(visible.gone, torch.tensor([start, stop], device=visible.gone.device))
    return visible.gone[ends[0] : ends[1]] - start


def hide_gone_(
    logits: Float[Tensor, "batch retrieved items"], visible: Visible, start: int, stop: int
) -> Float[Tensor, "batch retrieved items"]:
    gone = gone_within(visible, start, stop)
    return logits.index_fill_(2, gone, -torch.inf) if len(gone) else logits


def block_positions(blocks: Int[Tensor, "*lead"], size: int) -> Int[Tensor, "*lead items"]:
    return blocks.unsqueeze(-1) * size + torch.arange(size, device=blocks.device)


def score(
    queries: Float[Tensor, "batch retrieved key_dim"],
    keys: Keys,
    visible: Visible,
    *,
    temperature: float,
    keep_bytes: int = 0,
    compiled: bool | None = None,
) -> Scores:
    """Scores at a temperature; logits are kept if the histories are per input or they take at most `keep_bytes`.

    A kept product and a recomputed one may differ in the last bits, so what must not depend on the size of the
    history (prediction) leaves `keep_bytes` at 0. So may a compiled sum; where `compiled` is None, only large passes
    on an accelerator are compiled.
    """
    if temperature <= 0:
        raise SettingError(f"temperature is {temperature}: it must be positive, however small")
    scale = float(1.0 / (temperature * keys.width**0.5))
    if compiled is None:
        large = queries.shape[0] * queries.shape[1] * keys.num_items >= COMPILE_FROM
        compiled = large and queries.device.type != "cpu" and can_compile(queries.device.type)
    scores = Scores(queries.detach().float().contiguous(), keys, visible, scale, compiled)
    padded = scores.num_blocks * keys.block
    size = 4 * queries.shape[0] * queries.shape[1] * padded
    if not (isinstance(keys, OwnKeys) or size <= keep_bytes):
        return scores
    kept = keys.products(scores.scaled, keys.tile(0, padded))
    return replace(scores, kept=hide_gone_(kept, visible, 0, padded))


@dataclass(frozen=True)
class BlockSummary:
    """What one pass over the keys leaves behind, for every (input, query, block).

    `total` is the sum of 2 ** (logit - maximum), 0 in a block of which nothing is visible. Kept apart from the
    maximum: at temperature 0.001 a float32 has no room for both.
    """

    maximum: Float[Tensor, "batch retrieved blocks"]
    total: Float[Tensor, "batch retrieved blocks"]


def summarise(scores: Scores) -> BlockSummary:
    """One pass over the keys. The naive equivalent is

        maximum = logits.unflatten(2, (-1, block)).amax(-1)
        total = (logits.unflatten(2, (-1, block)) - maximum.unsqueeze(-1)).exp2().sum(-1)

    on masked logits. No input is masked in the pass: few of its blocks are cut, and these are put right afterwards.
    """
    batch, retrieved, _ = scores.queries.shape
    size, reduce = scores.keys.block, reduction(scores.compiled)
    maximum = scores.queries.new_full((batch, retrieved, scores.num_blocks), -torch.inf)
    total = torch.zeros_like(maximum)
    buffer = None if scores.kept is None else scores.buffer()
    starts, pending = [start for start, _ in scores.tiles()], []
    for (start, stop, logits), following in zip(scores.walk(), [*starts[1:], None], strict=False):
        blocks = logits.unflatten(2, (-1, size)).flatten(0, 2)
        # What is not kept may be overwritten.
        scratch = blocks if buffer is None else buffer[: logits.numel()].view_as(blocks)
        pending.append((start // size, *reduce(blocks, scratch)))
        # A few tiles at once: every row of the summary is on another page of memory.
        if len(pending) == TILES_AT_ONCE or stop != following:
            there = slice(pending[0][0], stop // size)
            maximum[:, :, there] = torch.cat([part.view(batch, retrieved, -1) for _, part, _ in pending], dim=2)
            total[:, :, there] = torch.cat([part.view(batch, retrieved, -1) for _, _, part in pending], dim=2)
            pending = []
    mend_cut_blocks(scores, cuts_of(scores), maximum, total)
    return BlockSummary(maximum, total)


@dataclass(frozen=True)
class Cuts:
    """Where a pass that masks no input is wrong: blocks `outside` of all intervals, and those (`row`, `block`) that are
    cut by an end of one or by a hidden item."""

    outside: Bool[Tensor, "batch blocks"]
    row: Int[Tensor, " cut"]
    block: Int[Tensor, " cut"]


def cuts_of(scores: Scores) -> Cuts:
    size = scores.keys.block
    first_block = torch.arange(scores.num_blocks, device=scores.queries.device) * size
    outside, cuts = None, []
    for start, stop in scores.visible.intervals:
        start, stop = start.unsqueeze(1), stop.unsqueeze(1)
        beyond = (first_block + size <= start) | (first_block >= stop) | (stop <= start)
        outside = beyond if outside is None else outside & beyond
        ends = torch.cat([start, stop], dim=1)
        cuts.append(ends.masked_fill((ends % size == 0) | (stop <= start), -1))
    assert outside is not None
    if scores.visible.hidden is not None:
        cuts.append(scores.visible.hidden)
    cut = torch.cat(cuts, dim=1)
    row, which = (cut >= 0).nonzero(as_tuple=True)
    return Cuts(outside, row, cut[row, which] // size)


def mend_cut_blocks(
    scores: Scores,
    cuts: Cuts,
    maximum: Float[Tensor, "batch retrieved blocks"],
    total: Float[Tensor, "batch retrieved blocks"] | None = None,
) -> None:
    """Blocks outside all intervals count for nothing; those that are cut are done again, masked."""
    maximum.masked_fill_(cuts.outside.unsqueeze(1), -torch.inf)
    if total is not None:
        total.masked_fill_(cuts.outside.unsqueeze(1), 0.0)
    size, row, block = scores.keys.block, cuts.row, cuts.block
    for part in row_slices(row.shape[0], 4 * size * (scores.keys.width + 4 * scores.queries.shape[1])):
        logits = scores.block_logits(row[part], 0, block[part].unsqueeze(1)).squeeze(1)
        maximum[row[part], :, block[part]], mended = reduce_blocks(logits)
        if total is not None:
            total[row[part], :, block[part]] = mended


def row_slices(rows: int, bytes_per_row: int, budget: int = 32 << 20) -> list[slice]:
    """Slices of a batch such that what is made per row stays within a budget."""
    size = max(1, budget // max(bytes_per_row, 1))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]
