"""Visible intervals against a mask that looks at every item."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import SettingError
from recollect.history.visibility import (
    EVERYTHING,
    Exceptions,
    Window,
    check_order,
    visible_before,
    visible_with,
    without,
)
from recollect.records import Visible

# Few distinct moments, so that ties are the rule.
moments = st.integers(-4, 8)
histories = st.lists(moments, max_size=12).map(sorted)
inputs = st.lists(moments, min_size=1, max_size=5)


def mask(known_at: list[int], as_of: int, window: Window) -> list[bool]:
    """One input's visible items, by the words of the definition."""
    seen = [known < as_of for known in known_at]
    if window.time is not None:
        seen = [this and as_of - known < window.time for this, known in zip(seen, known_at, strict=True)]
    if window.items is not None:
        before = sum(known < as_of for known in known_at)
        seen = [this and place >= before - window.items for place, this in enumerate(seen)]
    return seen


def as_masks(visible: Visible, items: int) -> list[list[bool]]:
    ends = zip(visible.start.tolist(), visible.stop.tolist(), strict=True)
    return [[start <= place < stop for place in range(items)] for start, stop in ends]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
@given(
    known_at=histories,
    as_of=inputs,
    items=st.none() | st.integers(0, 14),
    time=st.none() | st.integers(0, 14) | st.sampled_from([0.5, 1.5, 3.0]),
)
def test_intervals_equal_the_mask(
    dtype: torch.dtype, known_at: list[int], as_of: list[int], items: int | None, time: float | None
) -> None:
    window = Window(items, time)
    visible = visible_before(torch.tensor(known_at, dtype=dtype), torch.tensor(as_of, dtype=dtype), window)
    assert as_masks(visible, len(known_at)) == [mask(known_at, moment, window) for moment in as_of]
    assert (visible.start <= visible.stop).all()
    assert (visible.start >= 0).all()
    assert (visible.stop <= len(known_at)).all()


def test_ties_are_invisible() -> None:
    known_at = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0], dtype=torch.float64)
    as_of = torch.tensor([2.0, 2.0 + 1e-12], dtype=torch.float64)
    assert visible_before(known_at, as_of).stop.tolist() == [1, 4]


def test_an_empty_history_shows_nothing() -> None:
    visible = visible_before(torch.empty(0), torch.tensor([1.0, 2.0]), Window(3, 2.0))
    assert (visible.start.tolist(), visible.stop.tolist()) == ([0, 0], [0, 0])


def test_an_input_older_than_everything_sees_nothing() -> None:
    visible = visible_before(torch.tensor([5.0, 6.0]), torch.tensor([1.0, 5.0]), EVERYTHING)
    assert visible.stop.tolist() == [0, 0]


@pytest.mark.parametrize("width", [15, 15.0])
def test_nanoseconds_are_not_rounded(width: float) -> None:
    now = 1_700_000_000_000_000_000
    known_at = now + torch.tensor([-40, -15, -14, -1, 0, 1])
    visible = visible_before(known_at, torch.tensor([now]), Window(time=width))
    assert (visible.start.item(), visible.stop.item()) == (2, 4)


def test_moments_need_not_lie_side_by_side() -> None:
    as_of = torch.tensor([[1.0, 9.0], [3.0, 9.0]])[:, 0]
    visible = visible_before(torch.tensor([0.0, 1.0, 2.0]), as_of, Window(time=1.5))
    assert (visible.start.tolist(), visible.stop.tolist()) == ([0, 2], [1, 3])


def test_unsorted_items_are_refused() -> None:
    with pytest.raises(SettingError, match=r"item 2 has 2\.0 after 3\.0: sort them"):
        check_order(torch.tensor([1.0, 3.0, 2.0]))
    check_order(torch.tensor([1.0, 2.0, 2.0]))
    check_order(torch.tensor([]))


# Exceptions


@dataclass(frozen=True)
class Kept:
    """An item where it is kept: in the list or in the tail, erased or not, corrected or not."""

    known_at: int
    late: bool
    erased: bool
    until: int | None


kept_items = st.lists(st.builds(Kept, moments, st.booleans(), st.booleans(), st.none() | moments), max_size=14)


@given(
    items=kept_items,
    as_of=inputs,
    count=st.none() | st.integers(0, 14),
    time=st.none() | st.integers(0, 14),
    block=st.sampled_from([0, 3]),
)
def test_exceptions_equal_the_mask(
    items: list[Kept], as_of: list[int], count: int | None, time: int | None, block: int
) -> None:
    items = sorted(items, key=lambda item: item.known_at)  # the true order; equal ones as they came
    listed = [item for item in items if not item.late]
    tail = [item for item in items if item.late]
    offset = len(listed) + block
    position = {id(item): place for place, item in enumerate(listed)}
    position |= {id(item): offset + place for place, item in enumerate(tail)}
    after = [sum(not other.late for other in items[:place]) for place, item in enumerate(items) if item.late]
    corrected = [item for item in items if item.until is not None]
    exceptions = Exceptions(
        offset,
        torch.tensor([item.known_at for item in tail], dtype=torch.int64),
        torch.tensor(after, dtype=torch.int64),
        torch.tensor(sorted(position[id(item)] for item in items if item.erased), dtype=torch.int64),
        torch.tensor([position[id(item)] for item in corrected], dtype=torch.int64),
        torch.tensor([item.until for item in corrected], dtype=torch.int64),
    )
    known_at = torch.tensor([item.known_at for item in listed], dtype=torch.int64)
    visible = visible_with(known_at, exceptions, torch.tensor(as_of), Window(count, time))
    size = offset + len(tail)
    found = visible.sees(torch.arange(size).expand(len(as_of), -1))
    for row, moment in enumerate(as_of):
        seen = [
            item
            for item in items
            if item.known_at < moment and not item.erased and (item.until is None or moment <= item.until)
        ]
        if count is not None:
            seen = seen[max(0, len(seen) - count) :]
        if time is not None:
            seen = [item for item in seen if moment - item.known_at < time]
        assert found[row].nonzero().squeeze(1).tolist() == sorted(position[id(item)] for item in seen)


def test_what_is_excluded_is_not_seen() -> None:
    visible = visible_before(torch.arange(5.0), torch.tensor([3.0, 9.0]))
    less = without(without(visible, torch.tensor([[1, -1], [4, 0]])), torch.tensor([[2], [2]]))
    seen = less.sees(torch.arange(5).expand(2, -1))
    assert [row.nonzero().squeeze(1).tolist() for row in seen] == [[0], [1, 3]]
