"""The next item of an iterator, made while this one is worked on; and work on two items at a time."""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
_END = object()


def ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """The same items in the same order, with at most one more of them in memory.

    An error comes where it would have come. Whoever stops early leaves nothing running: what is being made is waited
    for, and `items` is closed if it is a generator.
    """
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, items, _END)
        try:
            while (item := coming.result()) is not _END:
                coming = worker.submit(next, items, _END)
                yield item  # type: ignore[misc]
                del item  # or it would stay until the next one after it is there
        finally:
            wait([coming])
            _close(items)


def two_at_a_time(work: Callable[[Item], Made], items: Iterable[Item]) -> Generator[Made, None, None]:
    """What is made of each item, in the order of the items, while the next one is made of the item after it.

    Errors and stopping early are as with `ahead`.
    """
    with ThreadPoolExecutor(2) as workers:
        try:
            with closing(ahead(workers.submit(work, item) for item in items)) as coming:
                for made in coming:
                    yield made.result()
                    del made  # or it would stay until the next one after it is there
        finally:
            _close(items)


def _close(items: object) -> None:
    close = getattr(items, "close", None)
    if close is not None:
        close()
