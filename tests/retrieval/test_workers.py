"""Threads that share the pass over the keys change no bit of what is found, and an error in one is everyone's."""

from collections.abc import Iterator

import pytest
import torch

from recollect.records import Visible
from recollect.retrieval.scoring import SharedKeys
from recollect.retrieval.top import MANY, top_of_groups
from recollect.retrieval.workers import side_by_side, use_workers


@pytest.fixture
def three_workers() -> Iterator[None]:
    use_workers(3)
    yield
    use_workers(1)


def test_every_part_goes_to_one_thread(three_workers: None) -> None:
    seen: list[int] = []
    side_by_side(seen.append, range(1000))
    assert sorted(seen) == list(range(1000))


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_fewer_parts_than_threads(three_workers: None, parts: int) -> None:
    seen: list[int] = []
    side_by_side(seen.append, range(parts))
    assert sorted(seen) == list(range(parts))


def test_threads_compute_gradients_only_if_the_caller_does(three_workers: None) -> None:
    seen: list[bool] = []
    with torch.no_grad():
        side_by_side(lambda part: seen.append(torch.is_grad_enabled()), range(200))
    assert not any(seen)


def test_an_error_reaches_the_caller(three_workers: None) -> None:
    def fail(part: int) -> None:
        if part == 150:
            raise ValueError("part 150")

    with pytest.raises(ValueError, match="part 150"):
        side_by_side(fail, range(200))


def test_the_same_items_are_found() -> None:
    generator = torch.Generator().manual_seed(0)
    count = 4 * MANY
    keys = SharedKeys(torch.randn(count, 8, generator=generator), torch.arange(count) / count, longest=20.0)
    queries = torch.randn(3, 2, 9, generator=generator)
    visible = Visible(torch.tensor([0, 5, 300]), torch.tensor([count, count - 7, MANY + 400]))
    alone = top_of_groups(queries, [4, 9], keys, visible)
    use_workers(4)
    try:
        assert torch.equal(top_of_groups(queries, [4, 9], keys, visible), alone)
    finally:
        use_workers(1)
