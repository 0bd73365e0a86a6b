"""Splits hold what they promise, whatever rows and sizes they are made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.splits import Splits, SplitSizes, draw_from_bins, equal_bins, quarters, split_past
from recollect.errors import SettingError

PARTS = ("train", "train_history", "validation", "validation_history")

sizes = st.builds(SplitSizes, *[st.integers(1, 30)] * 4)
pasts = st.sets(st.integers(0, 500), min_size=1, max_size=200).map(lambda rows: np.array(sorted(rows)))


def drawn(past: np.ndarray, wanted: SplitSizes, seed: int = 0) -> Splits:
    return split_past(past, wanted, np.random.default_rng(seed))


@given(pasts, sizes, st.integers(0, 3))
def test_parts_are_disjoint_of_the_past_and_the_same_for_a_seed(
    past: np.ndarray, wanted: SplitSizes, seed: int
) -> None:
    total = sum(getattr(wanted, part) for part in PARTS)
    if any(getattr(wanted, part) * len(past) < total for part in PARTS) and total > len(past):
        with pytest.raises(SettingError, match="too few"):
            drawn(past, wanted, seed)
        return
    splits = drawn(past, wanted, seed)
    rows = np.concatenate([getattr(splits, part) for part in PARTS])
    assert len(np.unique(rows)) == len(rows)
    assert np.isin(rows, past).all()
    share = min(1.0, len(past) / total)
    for part in PARTS:
        assert len(getattr(splits, part)) == int(getattr(wanted, part) * share + 1e-9)
        np.testing.assert_array_equal(getattr(splits, part), getattr(drawn(past, wanted, seed), part))
    np.testing.assert_array_equal(splits.examples, np.sort(np.concatenate([splits.train, splits.validation])))


def test_another_seed_is_another_split() -> None:
    past = np.arange(1000)
    one, other = (drawn(past, SplitSizes(), seed) for seed in (0, 1))
    assert not np.array_equal(one.train_history, other.train_history)


def test_the_papers_sizes_are_kept_where_they_fit_and_its_proportions_where_not() -> None:
    assert SplitSizes().fitted_to(4_000_000) == SplitSizes(100_000, 1_900_000, 20_000, 1_900_000)
    assert SplitSizes().fitted_to(39_200) == SplitSizes(1_000, 19_000, 200, 19_000)


@pytest.mark.parametrize("part", PARTS[1:])
def test_a_row_in_two_parts_is_refused(part: str) -> None:
    parts = {name: np.arange(10 * index, 10 * index + 5) for index, name in enumerate(PARTS)}
    Splits(**parts)
    parts[part] = np.array([3, 100])
    with pytest.raises(SettingError, match=f"row 3 is in train and in {part}"):
        Splits(**parts)


def test_a_row_twice_in_a_part_is_refused() -> None:
    nothing = np.empty(0, np.int64)
    with pytest.raises(SettingError, match="validation are not in order"):
        Splits(nothing, nothing, np.array([1, 1]), nothing)


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=50), st.integers(1, 120))
def test_bins_are_equally_long(times: list[int], count: int) -> None:
    first, last = min(times), max(times)
    expected = [min((time - first) * count // max(1, last - first), count - 1) for time in times]
    found = equal_bins(np.array(times), count)
    # An edge that falls between two nanoseconds is rounded down: a row may be a bin later, never elsewhere.
    assert ((found == expected) | (found == np.array(expected) + 1)).all() or first == last
    assert found[times.index(first)] == 0 or first == last
    assert (np.diff(found[np.argsort(times)]) >= 0).all()
    assert found.max() < count


def test_bins_of_plain_numbers() -> None:
    assert equal_bins(np.array([0.0, 0.24, 0.25, 0.99, 1.0]), 4).tolist() == [0, 0, 1, 3, 3]
    assert equal_bins(np.empty(0), 4).tolist() == []


def test_quarters_are_the_calendars() -> None:
    days = ["2011-12-31T23:59:59", "2012-01-01", "2012-03-31", "2012-04-01", "2013-01-01"]
    time = np.array(days, "datetime64[ns]").astype(np.int64)
    assert quarters(time).tolist() == [0, 1, 1, 2, 5]


@given(st.lists(st.integers(0, 6), max_size=80), st.integers(1, 9), st.integers(0, 3))
def test_up_to_so_many_of_every_bin(bins: list[int], per_bin: int, seed: int) -> None:
    rows = draw_from_bins(np.array(bins, np.int64), np.random.default_rng(seed), per_bin=per_bin)
    assert (np.diff(rows) > 0).all()
    for each in set(bins):
        assert sum(bins[row] == each for row in rows) == min(per_bin, bins.count(each))


def test_rows_of_a_bin_are_drawn_at_random() -> None:
    bins = np.zeros(1000, np.int64)
    one, other = (draw_from_bins(bins, np.random.default_rng(seed), per_bin=100) for seed in (0, 1))
    assert len(one) == 100
    assert not np.array_equal(one, other)
