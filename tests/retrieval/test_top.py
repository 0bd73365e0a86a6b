"""Many picks in one pass are what a greedy chain of slots picks one by one."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.gradients import retrieve
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.top import top, top_of_groups


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(seed: int, ties: bool, *shape: int) -> Tensor:
    """Small whole numbers, so that products are exact and ties are many; or none at all."""
    if ties:
        return torch.randint(-2, 3, shape, generator=seeded(seed)).float()
    return torch.randn(shape, generator=seeded(seed))


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 700), st.booleans())
def test_groups_select_what_a_greedy_chain_selects(seed: int, items: int, with_tail: bool) -> None:
    # Of equal items the later position counts as newer here, of which the chain knows better if one came out of order.
    generator = seeded(seed)
    batch, sizes = 5, (3, 1, 4)
    tail = SharedKeys(made(seed + 1, False, 7, 4)) if with_tail else None
    start = -(-items // 256) * 256
    after = torch.randint(items + 1, (7,), generator=generator).sort().values if with_tail else None
    keys = SharedKeys(made(seed, not with_tail, items, 4), None, tail, after, start)
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
    queries = made(seed + 2, not with_tail, batch, len(sizes), 4)
    expanded = queries.repeat_interleave(torch.tensor(sizes), dim=1)
    chain = retrieve(expanded, keys, visible, temperature=1.0).greedy().positions[:, 0]
    picks = top_of_groups(queries, sizes, keys, visible)
    assert torch.equal(picks, chain)


@pytest.mark.parametrize("hidden", [0, 300])
def test_what_nobody_sees_decides_no_tie(hidden: int) -> None:
    keys = torch.ones(600, 4)
    keys[400:] = torch.randn(200, 4, generator=seeded(hidden))
    visible = Visible(torch.tensor([0]), torch.tensor([400]))
    assert top(torch.ones(1, 4), SharedKeys(keys), visible, 3).tolist() == [[399, 398, 397]]


def test_no_item_is_minus_one() -> None:
    visible = Visible(torch.tensor([0, 2]), torch.tensor([0, 4]))
    picks = top(torch.ones(2, 3), SharedKeys(torch.ones(5, 3)), visible, 4)
    assert picks.tolist() == [[-1] * 4, [3, 2, -1, -1]]
