"""Working ahead changes neither items nor errors, and leaves nothing behind."""

import threading
from collections.abc import Iterator

import pytest

from recollect.data.tables.ahead import ahead


def test_the_same_items_in_the_same_order() -> None:
    assert list(ahead(iter([3, None, 1, 2]))) == [3, None, 1, 2]
    assert list(ahead(iter([]))) == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second is bad")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="the second is bad"):
        next(found)


def test_the_next_item_is_made_while_this_one_is_worked_on_and_no_more() -> None:
    made: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    found = ahead(items())
    assert next(found) == 0
    assert second.wait(10)
    found.close()
    assert made == [0, 1]


def test_stopping_early_closes_the_source_and_ends_the_thread() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    threads = threading.active_count()
    found = ahead(items())
    next(found)
    found.close()
    assert closed.is_set()
    assert threading.active_count() == threads
