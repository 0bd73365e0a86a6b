"""Threads that go through the keys of a long history side by side, each with tiles of its own.

Torch's own threads would share every small product of a prediction as well and wait for each other at each of them:
with a few cores that costs more than it gains. These meet once, at the end of the pass. There is one unless whoever
starts the process asks for more.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")

_helpers: list[ThreadPoolExecutor] = []


def use_workers(count: int) -> None:
    """From now on so many threads, the calling one among them."""
    for helper in _helpers:
        helper.shutdown()
    _helpers[:] = [ThreadPoolExecutor(1, f"recollect-keys-{number}") for number in range(1, count)]


def side_by_side(function: Callable[[T], None], parts: Sequence[T]) -> None:
    """Call it with every part, in any order; it is done with all of them when this returns."""
    left = iter(parts)  # of a sequence: each part is handed to one thread
    gradients = torch.is_grad_enabled()  # every thread has a setting of its own

    def work() -> None:
        with torch.set_grad_enabled(gradients):
            for part in left:
                function(part)

    others = [helper.submit(work) for helper in _helpers[: max(0, len(parts) - 1)]]
    work()
    for other in others:
        other.result()
