"""Memory of retrieval: ours, which goes over the keys in blocks, and the dense one of the paper's equation.

Read off `recollect.retrieval` pass by pass, in bytes; traces of real steps agree within a few per cent. Knows nothing
of networks.
"""

from dataclasses import dataclass

from recollect.planning.sizes import BLOCK, BYTES, Sizes

FLOAT, INT = 4, 8

# As in `retrieval.scoring` and `training.step`, which would bring torch with them; a test compares them.
TILE_BYTES = 8 << 20
TILES_AT_ONCE = 16
ROWS = 8
ROWS_BUDGET = 32 << 20
KEEP_LOGITS_BYTES = 128 << 20

DENSE_SELECTING = 9
"""Bytes per input and item while a slot is drawn: log-probabilities and noise (float32), and a mask."""

DENSE_GRADIENT = 13
"""Bytes per input and item while a slot is differentiated: log-probabilities, their gradient from the pick, that of
the logits (float32 each), and the mask of what is invisible or taken."""

DENSE_KEPT = 5
"""Bytes per input, item, slot and chain that plain autograd keeps: log-probabilities and mask."""


@dataclass(frozen=True)
class RetrievalTerms:
    """Bytes of one step, by what they are for.

    `summary` lives while items are selected, beside `selecting` (the pass over the keys, then the drawing: never
    both). `kept` lives from there until the backward pass has gone through retrieval, which takes `gradient`.
    """

    summary: int
    selecting: int
    kept: int
    gradient: int


def blocked(sizes: Sizes) -> RetrievalTerms:
    """Ours. The logits of a small history are kept instead of multiplied again."""
    logits = FLOAT * sizes.queries * sizes.blocks * BLOCK
    keeps = logits <= KEEP_LOGITS_BYTES
    return RetrievalTerms(
        summary=2 * FLOAT * sizes.queries * sizes.blocks,
        selecting=max(_scoring(sizes, keeps), _mending(sizes, keeps), _drawing(sizes, keeps)),
        kept=logits if keeps else 0,
        gradient=_gradient(sizes),
    )


def dense(sizes: Sizes, *, keeps_slots: bool = False) -> RetrievalTerms:
    """The paper's: batch x items logits, one slot at a time and freed after sampling, as it says, then computed again
    for the gradient; or kept for every slot of every chain, as plain autograd does."""
    pairs = sizes.batch * sizes.items
    if not keeps_slots:
        return RetrievalTerms(0, DENSE_SELECTING * pairs, 0, DENSE_GRADIENT * pairs)
    kept = DENSE_KEPT * pairs * sizes.chains * sizes.retrieved
    return RetrievalTerms(0, (DENSE_SELECTING - DENSE_KEPT) * pairs, kept, (DENSE_GRADIENT - DENSE_KEPT) * pairs)


def tile_items(sizes: Sizes) -> int:
    """Items whose scores are computed at once."""
    return min(max(1, TILE_BYTES // (FLOAT * sizes.queries * BLOCK)), sizes.blocks) * BLOCK


def _buffer(sizes: Sizes) -> int:
    """The scores of one tile."""
    return FLOAT * (sizes.queries + ROWS) * tile_items(sizes)


def _keys_copied(sizes: Sizes, items: int) -> int:
    """Keys in float32 with their recency coordinate, and what they are made from. Plain float32 keys are not copied."""
    width = sizes.query_width if sizes.recency else 0
    if BYTES[sizes.key_type] < FLOAT:
        width += sizes.key_dim
    return FLOAT * items * width


def _scoring(sizes: Sizes, keeps: bool) -> int:
    """The pass that fills the summary."""
    scaled = FLOAT * sizes.queries * sizes.query_width
    if keeps:  # all in one product
        return scaled + _keys_copied(sizes, sizes.items)
    waiting = 2 * FLOAT * sizes.queries * min(TILES_AT_ONCE * (tile_items(sizes) // BLOCK), sizes.blocks)
    return scaled + _buffer(sizes) + _keys_copied(sizes, tile_items(sizes)) + waiting


def _looking_again(sizes: Sizes, keeps: bool) -> int:
    """Of one row, where a block is looked at again: positions, logits, and unless these are kept the block's keys."""
    keys = 0
    if not keeps:
        keys = sizes.key_dim + (1 + sizes.query_width if sizes.recency else 0)
    return BLOCK * (FLOAT * keys + 3 * INT + 2 * FLOAT * sizes.retrieved)


def _rows_at_once(sizes: Sizes, bytes_per_row: int) -> int:
    return min(sizes.batch, max(1, ROWS_BUDGET // bytes_per_row))


def _budgeted(sizes: Sizes) -> int:
    """What `row_slices` is told that a block costs, less than it does."""
    return FLOAT * BLOCK * (sizes.query_width + 4 * sizes.retrieved)


def _mending(sizes: Sizes, keeps: bool) -> int:
    """Blocks that an input sees in part are done again while the last tile is still there."""
    rows = _rows_at_once(sizes, _budgeted(sizes))
    # Kept logits are copied whole for these rows.
    copied = FLOAT * sizes.retrieved * sizes.blocks * BLOCK if keeps else 0
    return _buffer(sizes) + rows * (_looking_again(sizes, keeps) + copied)


def _drawing(sizes: Sizes, keeps: bool) -> int:
    """Slot by slot: for every chain a copy of the slot's summary, its running sum, and one block of keys."""
    rows = _rows_at_once(sizes, sizes.chains * (32 * sizes.blocks + _budgeted(sizes)))
    # First the running sum in double precision with what it is summed from, then the block.
    summing, block = 28 * sizes.blocks, 16 * sizes.blocks + _looking_again(sizes, keeps)
    return rows * sizes.chains * max(summing, block)


def _gradient(sizes: Sizes) -> int:
    """The second pass: keys of the picks, what every chain may still select at each slot, and tiles of weights."""
    tile = tile_items(sizes)
    picks = sizes.chains * (sizes.retrieved - 1)  # what the slots before the last took
    pairs = sizes.fetched * picks
    picked = FLOAT * sizes.fetched * sizes.query_width
    picked_keys = FLOAT * sizes.batch * picks * sizes.query_width
    held = picked + picked_keys + (FLOAT + 1) * pairs
    comparing = picked_keys + (INT + 2 * FLOAT) * pairs
    # A row that ends within a tile is copied and masked: at worst every row.
    masking = 2 * _buffer(sizes) + (INT + 3) * sizes.batch * tile
    walking = _buffer(sizes) + 2 * _keys_copied(sizes, tile) + masking
    # Every chain gets its own copy of the picked keys.
    joining = _buffer(sizes) + sizes.chains * picked_keys + 2 * picked
    return max(3 * picked, held + max(comparing, walking, joining))
