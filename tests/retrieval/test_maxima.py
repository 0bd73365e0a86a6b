"""What a bound leaves out of a pass holds none of the best items: they are those that a pass over everything finds."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from recollect.records import Extents, Visible
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.top import top_of_groups

STRETCH = 512
"""Two blocks: so that a few thousand items have many stretches."""


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.retrieval.top.MANY", 1)
    monkeypatch.setattr("recollect.retrieval.maxima.STRETCH", STRETCH)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reaching(keys: SharedKeys) -> SharedKeys:
    """With what is known of how far its keys reach."""
    norms = keys.keys.norm(dim=1)
    recency = torch.zeros(len(keys.keys)) if keys.recency is None else keys.recency
    extents = Extents(
        torch.stack([part.max() for part in norms.split(STRETCH)]),
        torch.stack([part.min() for part in recency.split(STRETCH)]),
        torch.stack([part.max() for part in recency.split(STRETCH)]),
    )
    parts = [keys] if keys.tail is None else [keys, keys.tail]
    lengths = torch.cat([part.tile(0, len(part.keys)).norm(dim=1) for part in parts]).nan_to_num(0.0, 0.0)
    return replace(keys, extents=extents, longest=float(lengths.max()))


def read_by(table: SharedKeys, monkeypatch: pytest.MonkeyPatch, queries: Tensor, visible: Visible) -> list[int]:
    """The positions that are read to find the best items, which are those of a pass over everything."""
    read: list[int] = []

    def watched(self: SharedKeys, queries: Tensor, start: int, stop: int) -> Tensor:
        read.extend(range(start, stop))
        return products_at(self, queries, start, stop)

    products_at = SharedKeys.products_at
    expected = top_of_groups(queries, (4, 4), replace(table, extents=None), visible)
    with monkeypatch.context() as patch:
        patch.setattr(SharedKeys, "products_at", watched)
        assert torch.equal(top_of_groups(queries, (4, 4), table, visible), expected)
    assert len(read) == len(set(read)), "something was read twice"
    return sorted(read)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10_000),
    items=st.integers(1, 9000),
    steepness=st.sampled_from([None, -30.0, 0.0, 1.0, 30.0, 3000.0]),
    ties=st.booleans(),
    with_tail=st.booleans(),
    outlier=st.sampled_from([None, 1e3, 1e38, math.inf, math.nan]),
)
def test_the_best_items_are_those_of_a_pass_over_everything(
    seed: int, items: int, steepness: float | None, ties: bool, with_tail: bool, outlier: float | None
) -> None:
    generator, batch, late = seeded(seed), 4, 7
    keys = torch.randn(items + late, 5, generator=generator)
    if ties:
        keys = keys.sign()
    if outlier is not None:
        keys[int(torch.randint(items, (1,), generator=generator))] = outlier
    # By and large in order, as times are when labels come at different delays.
    recency = (torch.arange(items + late) + torch.randint(900, (items + late,), generator=generator)) / items
    start = -(-items // 256) * 256
    tail = SharedKeys(keys[items:], None if steepness is None else recency[items:]) if with_tail else None
    after = torch.randint(items + 1, (late,), generator=generator).sort().values if with_tail else None
    table = reaching(
        SharedKeys(keys[:items], None if steepness is None else recency[:items], tail, after, start if with_tail else 0)
    )
    ends = torch.randint(items + 1, (2, batch), generator=generator).sort(dim=0).values
    ends[:, 0] = torch.tensor([0, items])
    visible = Visible(
        ends[0],
        ends[1],
        (torch.full((batch,), start), torch.randint(start, start + late + 1, (batch,), generator=generator))
        if with_tail
        else None,
        hidden=torch.randint(-1, items, (batch, 2), generator=generator),
        gone=torch.randint(items, (9,), generator=generator).unique(),
    )
    queries = torch.randn(batch, 2, table.width, generator=generator)
    if steepness is not None:
        queries[:, :, -1] = steepness * torch.rand(batch, 2, generator=generator)
    sizes = (3, 6)
    together = top_of_groups(queries, sizes, table, visible)
    assert torch.equal(together, top_of_groups(queries, sizes, replace(table, extents=None), visible))
    assert torch.equal(top_of_groups(queries[:1], sizes, table, visible.take(slice(0, 1))), together[:1])


@pytest.mark.parametrize("along", [-1.0, 1.0])
def test_queries_that_prefer_one_end_of_time_read_only_that(along: float, monkeypatch: pytest.MonkeyPatch) -> None:
    table = reaching(SharedKeys(torch.randn(20_000, 8, generator=seeded(0)), torch.linspace(0.0, 1.0, 20_000)))
    queries = torch.randn(3, 2, 9, generator=seeded(1))
    queries[:, :, -1] = along * 1000.0
    visible = Visible(torch.tensor([0, 100, 3]), torch.tensor([20_000, 19_000, 19_999]))
    read = read_by(table, monkeypatch, queries, visible)
    assert len(read) <= 8000
    assert all(position > 12_000 if along > 0 else position < 8000 for position in read)


def test_short_keys_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randn(20_000, 8, generator=seeded(0))
    keys[1000:15_000] *= 0.01
    queries, visible = (
        torch.randn(2, 2, 8, generator=seeded(1)),
        Visible(torch.zeros(2).long(), torch.full((2,), 20_000)),
    )
    read = read_by(reaching(SharedKeys(keys)), monkeypatch, queries, visible)
    assert all(position < 1024 or position >= 14_848 for position in read)


def test_items_like_each_other_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each is as large as any can be: of equal ones the newest count, and none may be left out by rounding.
    table = reaching(SharedKeys(torch.full((5000, 3), 0.1)))
    visible = Visible(torch.tensor([0]), torch.tensor([5000]))
    assert len(read_by(table, monkeypatch, torch.full((1, 2, 3), 0.7), visible)) == 5120
    assert top_of_groups(torch.full((1, 2, 3), 0.7), (2, 1), table, visible).tolist() == [[4999, 4998, 4997]]


def test_erased_and_invisible_items_make_nothing_look_large(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randn(6000, 4, generator=seeded(0))
    keys[2100:2110] *= 1e3
    keys[5000:] *= 1e3
    table = reaching(SharedKeys(keys, torch.linspace(0.0, 1.0, 6000)))
    queries = torch.randn(1, 2, 5, generator=seeded(1))
    for hidden in (None, torch.arange(2100, 2110).unsqueeze(0)):
        gone = torch.arange(2100, 2110) if hidden is None else None
        visible = Visible(torch.tensor([300]), torch.tensor([5000]), hidden=hidden, gone=gone)
        read_by(table, monkeypatch, queries, visible)


def test_where_nothing_is_seen_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = reaching(SharedKeys(torch.randn(3000, 4, generator=seeded(0))))
    visible = Visible(torch.tensor([700]), torch.tensor([700]))
    assert read_by(table, monkeypatch, torch.randn(1, 2, 4), visible) == []
