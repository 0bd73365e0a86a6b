"""Many picks in one pass are what a greedy chain of slots picks one by one."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.gradients import retrieve
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.scoring import Scores
from recollect.retrieval.top import top, top_of_groups


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(seed: int, ties: bool, *shape: int) -> Tensor:
    """Small whole numbers, so that products are exact and ties are many; or none at all."""
    if ties:
        return torch.randint(-2, 3, shape, generator=seeded(seed)).float()
    return torch.randn(shape, generator=seeded(seed))


def bounded(keys: SharedKeys) -> SharedKeys:
    """With the bound on norms by which most blocks need not be looked at."""
    longest = 0.0
    for part in (keys, keys.tail):
        if part is not None and len(part.keys):
            longest = max(longest, float(part.tile(0, len(part.keys)).norm(dim=1).max()))
    return replace(keys, longest=longest)


@pytest.fixture(params=["item by item", "the best blocks first"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "the best blocks first":
        monkeypatch.setattr("recollect.retrieval.top.MANY", 1)


@pytest.mark.usefixtures("_both_ways")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(0, 2000), st.booleans(), st.booleans())
def test_groups_select_what_a_greedy_chain_selects(seed: int, items: int, with_tail: bool, with_recency: bool) -> None:
    # Of equal items the later position counts as newer here, of which the chain knows better if one came out of order.
    generator = seeded(seed)
    batch, sizes = 5, (3, 1, 4)
    recency = made(seed + 3, not with_tail, items + 7) if with_recency else None
    tail = SharedKeys(made(seed + 1, False, 7, 4), None if recency is None else recency[items:]) if with_tail else None
    start = -(-items // 256) * 256
    after = torch.randint(items + 1, (7,), generator=generator).sort().values if with_tail else None
    keys = SharedKeys(
        made(seed, not with_tail, items, 4), None if recency is None else recency[:items], tail, after, start
    )
    ends = torch.randint(items + 1, (2, batch), generator=generator).sort(dim=0).values
    visible = Visible(
        ends[0],
        ends[1],
        (torch.full((batch,), start), torch.randint(start, start + 8, (batch,), generator=generator))
        if with_tail
        else None,
        hidden=torch.randint(-1, items, (batch, 2), generator=generator) if items else None,
        gone=torch.randint(max(1, items), (9,), generator=generator).unique() if items else None,
    )
    queries = made(seed + 2, not with_tail, batch, len(sizes), keys.width)
    expanded = queries.repeat_interleave(torch.tensor(sizes), dim=1)
    chain = retrieve(expanded, keys, visible, temperature=1.0).greedy().positions[:, 0]
    for each in (keys, bounded(keys)):
        assert torch.equal(top_of_groups(queries, sizes, each, visible), chain)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("hidden", [0, 300])
def test_what_nobody_sees_decides_no_tie(hidden: int) -> None:
    keys = torch.ones(600, 4)
    keys[400:] = torch.randn(200, 4, generator=seeded(hidden))
    visible = Visible(torch.tensor([0]), torch.tensor([400]))
    assert top(torch.ones(1, 4), SharedKeys(keys), visible, 3).tolist() == [[399, 398, 397]]


@pytest.mark.usefixtures("_both_ways")
def test_no_item_is_minus_one() -> None:
    visible = Visible(torch.tensor([0, 2]), torch.tensor([0, 4]))
    picks = top(torch.ones(2, 3), SharedKeys(torch.ones(5, 3)), visible, 4)
    assert picks.tolist() == [[-1] * 4, [3, 2, -1, -1]]


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("columns", [4, 17, 64])
def test_of_equal_items_the_newest_are_picked_wherever_the_interval_ends(columns: int) -> None:
    pool = made(0, False, 3, columns)
    keys = pool[torch.randint(3, (5000,), generator=seeded(1))]
    queries = torch.cat([pool, torch.zeros(3, 1)], dim=1)  # they ask for no recency
    stop = torch.tensor([5000, 4999, 4700])
    table = bounded(SharedKeys(keys, made(2, False, 5000)))
    picks = top(queries, table, Visible(torch.zeros(3, dtype=torch.long), stop), 9)
    for query, end, found in zip(queries, stop.tolist(), picks, strict=True):
        products = keys[:end].double() @ query[:-1].double()
        equal = (products >= products.max() - 1e-9).nonzero().squeeze(1)
        assert torch.equal(found, equal.flip(0)[:9])


def test_each_input_goes_its_own_way_whoever_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.retrieval.top.MANY", 500)
    keys, queries = SharedKeys(made(0, False, 900, 8)), made(1, False, 6, 2, 8)
    visible = Visible(torch.zeros(6, dtype=torch.long), torch.tensor([900, 100, 499, 500, 501, 0]))
    together = top_of_groups(queries, (4, 4), keys, visible)
    alone = [
        top_of_groups(queries[row : row + 1], (4, 4), keys, visible.take(slice(row, row + 1)))[0] for row in range(6)
    ]
    assert torch.equal(together, torch.stack(alone))
    assert together[5].tolist() == [-1] * 8


@pytest.mark.parametrize("noise", [0.0, 1e-7, 3e-7, 1e-6])
def test_nearly_equal_items_are_told_apart_alike_whoever_else_is_asked(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One row is multiplied by another routine than many are, and their last bits differ.
    monkeypatch.setattr("recollect.retrieval.top.MANY", 500)
    pool = made(0, False, 5, 64)
    keys = pool[torch.randint(5, (20_000,), generator=seeded(1))]
    keys = keys * (1.0 + noise * torch.randn(20_000, 64, generator=seeded(2)))
    table = bounded(SharedKeys(keys, torch.linspace(-1.0, 1.0, 20_000)))
    queries = torch.cat([made(3, False, 40, 2, 64), torch.zeros(40, 2, 1)], dim=2)
    visible = Visible(torch.zeros(40, dtype=torch.long), torch.arange(19_960, 20_000))
    together = top_of_groups(queries, (16, 16), table, visible)
    looked_at_all = top_of_groups(queries, (16, 16), replace(table, longest=torch.inf), visible)
    assert torch.equal(together, looked_at_all)
    for row in range(0, 40, 7):
        rows = slice(row, row + 1)
        assert torch.equal(top_of_groups(queries[rows], (16, 16), table, visible.take(rows)), together[rows])


def test_of_many_blocks_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.retrieval.top.MANY", 500)
    looked_at = []

    def counted(self: Scores, rows: slice, first_slot: int, blocks: Tensor) -> Tensor:
        looked_at.append(blocks.shape[1])
        return block_logits(self, rows, first_slot, blocks)

    block_logits = Scores.block_logits
    monkeypatch.setattr(Scores, "block_logits", counted)
    keys = bounded(SharedKeys(made(0, False, 50_000, 64), torch.linspace(0.0, 1.0, 50_000)))
    visible = Visible(torch.tensor([0]), torch.tensor([49_900]))
    top_of_groups(made(1, False, 1, 2, 65), (16, 16), keys, visible)
    assert sum(looked_at) < 60  # 1 that the interval cuts, 16 and 32
