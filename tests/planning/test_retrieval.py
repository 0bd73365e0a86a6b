"""Retrieval's memory: bounded where it should be, and planned with the constants of the code."""

from dataclasses import replace
from inspect import signature

from recollect.planning import retrieval
from recollect.planning.retrieval import blocked, dense, tile_items
from recollect.planning.sizes import Sizes
from recollect.records import Visible
from recollect.retrieval import keys, scoring
from recollect.retrieval.scoring import SharedKeys, score
from recollect.training import step

SIZES = Sizes(1_000_000, 256, 4, 64, 512)


def test_the_constants_are_those_of_the_code() -> None:
    assert retrieval.TILE_BYTES == scoring.TILE_BYTES
    assert retrieval.TILES_AT_ONCE == scoring.TILES_AT_ONCE
    assert retrieval.ROWS == keys.ROWS
    assert signature(scoring.row_slices).parameters["budget"].default == retrieval.ROWS_BUDGET
    assert retrieval.KEEP_LOGITS_BYTES == step.KEEP_LOGITS_BYTES


def test_tiles_are_those_of_the_code() -> None:
    import torch

    for batch, items in ((2, 700), (3, 5000), (64, 3000)):
        visible = Visible(torch.zeros(batch, dtype=torch.long), torch.full((batch,), items))
        queries, table = torch.zeros(batch, 4, 8), SharedKeys(torch.zeros(items, 8))
        start, stop = score(queries, table, visible, temperature=1.0).tiles()[0]
        assert tile_items(replace(SIZES, items=items, batch=batch)) == stop - start


def test_beyond_the_summary_ours_does_not_grow_with_the_history() -> None:
    small, large = blocked(SIZES), blocked(replace(SIZES, items=10_000_000))
    assert large.summary == 2 * 4 * 256 * 4 * -(-10_000_000 // 256)
    assert large.selecting <= 1.3 * small.selecting
    assert large.gradient == small.gradient


def test_only_small_histories_have_their_logits_kept() -> None:
    assert blocked(replace(SIZES, items=1000)).kept == 4 * 256 * 4 * 1024
    assert blocked(SIZES).kept == 0


def test_dense_is_a_multiple_of_batch_times_items() -> None:
    once, twice = dense(SIZES), dense(replace(SIZES, items=2_000_000))
    assert twice.gradient == 2 * once.gradient == 2 * 13 * 256 * 1_000_000
    assert twice.selecting == 2 * once.selecting
    kept = dense(SIZES, keeps_slots=True)
    assert kept.kept == 5 * 256 * 1_000_000 * 4 * 2
    assert kept.kept + kept.gradient > once.gradient
