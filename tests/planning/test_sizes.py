"""Numbers as people write them, and sizes that make no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import SettingError
from recollect.planning import sizes
from recollect.planning.sizes import Sizes, exact_number, parse_number, round_down, show_bytes, show_number
from recollect.retrieval.keys import BLOCK


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1.9M", 1_900_000),
        ("2k", 2000),
        ("2K", 2000),
        (" .5 G ", 500_000_000),
        ("16GB", 16 * 10**9),
        ("1.1T", 1_100_000_000_000),
    ],
)
def test_suffixes(text: str, number: int) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["", "M", "1.9X", "-3", "1e6", "1.2.3k", "12 34", "1kM"])
def test_what_is_no_number_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(SettingError, match=r"is not a number: write digits .* as in 1\.9M"):
        parse_number(text)


def test_half_a_thing_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'1\.5' is not a whole number"):
        parse_number("1.5")


@given(st.integers(0, 10**15))
def test_numbers_can_be_read_back(number: int) -> None:
    assert parse_number(exact_number(number)) == number
    assert parse_number(show_number(number)) == pytest.approx(number, rel=0.006)


@given(st.integers(0, 10**15))
def test_rounding_down_never_adds(number: int) -> None:
    assert 0.9 * number <= round_down(number) <= number


def test_bytes_have_three_digits() -> None:
    counts = [0, 999, 1000, 12_345, 486_400_000, 1_234_000_000, 2 * 10**12]
    shown = ["0 B", "999 B", "1 kB", "12.3 kB", "486 MB", "1.23 GB", "2 TB"]
    assert [show_bytes(count) for count in counts] == shown


@pytest.mark.parametrize("name", ["items", "batch", "retrieved", "key_dim", "feature_width", "chains", "classes"])
def test_impossible_sizes_are_refused(name: str) -> None:
    good = dict(items=10, batch=2, retrieved=1, key_dim=4, feature_width=8)
    with pytest.raises(SettingError, match=f"{name} is -1: give [01] or more"):
        Sizes(**{**good, name: -1})  # type: ignore[arg-type]


def test_blocks_are_as_large_as_retrievals() -> None:
    assert sizes.BLOCK == BLOCK
