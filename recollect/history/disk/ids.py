"""A 64-bit hash of an item's id, the same in every language, and finding rows by it.

The hash narrows a search down; what it finds is always compared with the id itself.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.history.disk.schema import IdKind

MAX_ID_BYTES = 1024

_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def hash_ids(ids: NDArray[Any], kind: IdKind) -> NDArray[np.uint64]:
    """Starts from the length in bytes, then takes in the id eight bytes at a time, the last ones filled with zeros.

    For whole numbers: their eight bytes.
    """
    if kind == "integer":
        lengths = np.full(len(ids), 8, np.uint64)
        words = np.ascontiguousarray(ids, "<i8").view("<u8").reshape(-1, 1)
    else:
        lengths = np.strings.str_len(ids).astype(np.uint64)
        width = -(-max(1, ids.dtype.itemsize) // 8) * 8
        words = np.ascontiguousarray(ids.astype(f"S{width}")).view("<u8").reshape(len(ids), width // 8)
    hashes = _mix(lengths)
    for place in range(words.shape[1]):
        # What lies beyond the end of an id is padding, and must not matter.
        hashes = np.where(lengths > 8 * place, _mix(hashes ^ words[:, place]), hashes)
    return hashes


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + _STEP
    values = (values ^ (values >> _SHIFTS[0])) * _FACTORS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _FACTORS[1]
    return values ^ (values >> _SHIFTS[2])


def sorted_hashes(hashes: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The two columns a segment is searched by: the hashes in order, and the row of each."""
    order = np.argsort(hashes, kind="stable")
    return hashes[order], order.astype(np.uint32)


def search(
    wanted: NDArray[np.uint64], hashes: NDArray[np.uint64], order: NDArray[np.uint32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (place in `wanted`, row) whose hashes agree."""
    first = np.searchsorted(hashes, wanted, "left")
    if len(hashes) == 0 or not bool((hashes[np.minimum(first, len(hashes) - 1)] == wanted).any()):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    counts = np.searchsorted(hashes, wanted, "right") - first
    places = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places, order[np.repeat(first, counts) + within].astype(np.int64)
