"""The next item of an iterator, made while this one is worked on."""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
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
            close = getattr(items, "close", None)
            if close is not None:
                close()
