"""Working ahead changes neither items nor errors, and leaves nothing behind."""

import threading
from collections.abc import Iterator

import pytest

from recollect.data.tables.ahead import ahead, two_at_a_time


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


def test_what_is_made_two_at_a_time_comes_in_the_order_of_the_items() -> None:
    second = threading.Event()

    def made(number: int) -> int:
        if number == 1:
            second.set()
        assert number != 0 or second.wait(10)  # the first is done only after the second has begun
        if number == 3:
            raise ValueError("the fourth is bad")
        return 10 * number

    found = two_at_a_time(made, iter(range(100)))
    assert [next(found) for _ in range(3)] == [0, 10, 20]
    with pytest.raises(ValueError, match="the fourth is bad"):
        next(found)


def test_stopping_early_or_by_an_error_ends_all_threads_and_closes_the_source() -> None:
    def items(closed: threading.Event) -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    threads = threading.active_count()
    stopped, failed = threading.Event(), threading.Event()
    found = two_at_a_time(str, items(stopped))
    assert next(found) == "0"
    found.close()
    with pytest.raises(ZeroDivisionError) as error:
        next(two_at_a_time(lambda number: 1 // number, items(failed)))
    assert error.tb is not None  # which still holds all that was going on
    assert stopped.is_set()
    assert failed.is_set()
    assert threading.active_count() == threads
