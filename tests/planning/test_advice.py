"""Advice is right: what is said to fit fits, and it is the mildest change of its kind that does."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.planning.advice import advise, most_items
from recollect.planning.plan import predict
from recollect.planning.sizes import Sizes

SIZES = Sizes(1_900_000, 256, 4, 64, 4096, chains=8, validation=512)


@settings(max_examples=10)
@given(st.floats(0.2, 0.999), st.integers(1, 4096), st.integers(1, 10**7), st.integers(2, 16))
def test_what_is_said_to_fit_fits(share: float, batch: int, items: int, chains: int) -> None:
    sizes = replace(SIZES, batch=batch, items=items, chains=chains)
    total = predict(sizes).total
    budget = int(share * total)
    changes = advise(sizes, budget)
    for change in changes:
        planned = predict(change.sizes).total
        assert change.fits == (planned <= budget)
        assert change.saves == total - planned > 0
    assert not any(change.fits for change in changes) or changes[-1].fits


def test_each_change_is_the_mildest_of_its_kind() -> None:
    budget = predict(SIZES).total - 200_000_000
    changes = {change.options[0]: change for change in advise(SIZES, budget)}
    assert set(changes) == {"--key-dtype", "--samples", "--batch", "--retrieved", "--retrieve", "--items"}
    assert str(changes["--key-dtype"]) == "--key-dtype float16 saves 243 MB: fits"
    milder = replace(SIZES, chains=changes["--samples"].sizes.chains + 1)
    assert predict(milder).total > budget
    assert predict(replace(SIZES, batch=2 * changes["--batch"].sizes.batch)).total > budget


def test_where_one_change_is_not_enough_several_are() -> None:
    sizes = replace(SIZES, items=20_000_000, batch=4096)
    budget = predict(sizes).total // 6
    changes = advise(sizes, budget)
    assert [change.fits for change in changes] == [False] * (len(changes) - 1) + [True]
    assert changes[-1].options[::2] == ("--key-dtype", "--samples", "--batch", "--items")


def test_no_change_helps_where_the_model_alone_is_too_large() -> None:
    assert not any(change.fits for change in advise(replace(SIZES, parameters=10**9), 10**9))


@pytest.mark.parametrize("budget", [10**9, 2 * 10**9, 50 * 10**9])
def test_the_largest_history_fits_and_a_larger_one_does_not(budget: int) -> None:
    items = most_items(SIZES, budget)
    assert predict(replace(SIZES, items=items)).total <= budget
    assert predict(replace(SIZES, items=int(1.12 * items))).total > budget


def test_no_history_fits_into_nothing() -> None:
    assert most_items(SIZES, 1000) == 0
