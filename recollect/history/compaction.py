"""Which segments to merge, and merging them: so that their number grows with the logarithm of the items'.

Knows sizes and rows; the writer decides when, and publishes the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recollect.history.disk.format import SegmentEntry
from recollect.history.disk.schema import Schema
from recollect.history.disk.segments import Segment, copy_segments
from recollect.history.disk.state import Changes, Part, State, gather, is_in
from recollect.history.disk.storage import Storage


@dataclass(frozen=True)
class Limits:
    """When the log is sealed, and how segments are merged.

    The log is sealed at `seal_rows` items or `seal_bytes`; an append of half of either is written as a segment at
    once. `merge_width` segments or more are merged if none of them outweighs the others, up to `segment_bytes`.
    """

    seal_rows: int = 8192
    seal_bytes: int = 64 << 20
    merge_width: int = 6
    segment_bytes: int = 4 << 30
    background: bool = True

    def is_large(self, rows: int, size: int) -> bool:
        return rows >= max(2, self.seal_rows // 2) or size >= self.seal_bytes // 2

    def is_full(self, rows: int, size: int) -> bool:
        return rows >= self.seal_rows or size >= self.seal_bytes


@dataclass(frozen=True)
class Merge:
    """A segment (or none, if nothing was left) that takes the place of several, as long as these are what they were."""

    replaced: tuple[SegmentEntry, ...]
    result: SegmentEntry | None

    def applied(self, entries: Sequence[SegmentEntry]) -> list[SegmentEntry]:
        """The entries with the result in the place of what it replaces; as they were if that is no longer there."""
        if self.replaced[0] not in entries:
            return list(entries)
        first = entries.index(self.replaced[0])
        last = first + len(self.replaced)
        if tuple(entries[first:last]) != self.replaced:
            return list(entries)
        return [*entries[:first], *([self.result] if self.result else []), *entries[last:]]


def next_merge(entries: Sequence[SegmentEntry], limits: Limits) -> range | None:
    """The cheapest run of neighbours worth merging.

    None of a run may be larger than the others together: then every copy at least doubles the segment an item lies in,
    and an item is copied no more often than the logarithm of their number.
    """
    sizes = [entry.total_bytes for entry in entries]
    best: tuple[int, range] | None = None
    for start in range(len(sizes)):
        total = largest = 0
        for stop, size in enumerate(sizes[start:], start + 1):
            total, largest = total + size, max(largest, size)
            if total > (limits.segment_bytes if best is None else min(limits.segment_bytes, best[0] - 1)):
                break
            if stop - start >= limits.merge_width and 2 * largest <= total:
                best = total, range(start, stop)
    return best and best[1]


def merge_run(
    storage: Storage, name: str, schema: Schema, sources: Sequence[Segment], going_on: Callable[[], None]
) -> Merge:
    """All rows stay, erased ones too, so that their numbers do."""
    result = copy_segments(storage, name, schema, sources, [None] * len(sources), going_on)
    return Merge(tuple(source.entry for source in sources), result)


def next_rewrite(parts: Sequence[Part], erased: NDArray[np.int64], limits: Limits) -> range | None:
    """What `compact` does next: a run that fits into one segment, or one segment with erased rows."""
    sizes = [part.source.entry.total_bytes if isinstance(part.source, Segment) else None for part in parts]
    start = 0
    while start < len(parts):
        stop, total = start, 0
        while stop < len(parts) and (size := sizes[stop]) is not None and total + size <= limits.segment_bytes:
            total += size
            stop += 1
        if stop - start > 1:
            return range(start, stop)
        if sizes[start] is not None and bool(_erased_in(parts[start], erased).any()):
            return range(start, start + 1)
        start = max(stop, start + 1)
    return None


def _erased_in(part: Part, erased: NDArray[np.int64]) -> NDArray[np.bool_]:
    gone = np.zeros(part.rows, bool)
    low, high = np.searchsorted(erased, [part.first, part.first + part.rows])
    gone[erased[low:high] - part.first] = True
    return gone


def rewrite(
    storage: Storage,
    name: str,
    schema: Schema,
    parts: Sequence[Part],
    erased: NDArray[np.int64],
    going_on: Callable[[], None],
) -> tuple[Merge, NDArray[np.int64]]:
    """The run as one segment without what was erased, and the storage rows it leaves out."""
    sources = [part.source for part in parts if isinstance(part.source, Segment)]
    assert len(sources) == len(parts)
    gone = [_erased_in(part, erased) for part in parts]
    keep = [~mask if mask.any() else None for mask in gone]
    result = copy_segments(storage, name, schema, sources, keep, going_on)
    dropped = np.concatenate([part.first + np.flatnonzero(mask) for part, mask in zip(parts, gone, strict=True)])
    return Merge(tuple(source.entry for source in sources), result), dropped


def without_rows(state: State, dropped: NDArray[np.int64]) -> Changes:
    """The changes as they read when these rows are gone: later rows move up, and of the dropped ones moments remain."""
    changes = state.changes()
    known_at, commit = gather(state.parts, "known_at", dropped), gather(state.parts, "commit", dropped)
    until = np.full(len(dropped), state.schema.never, state.schema.time_type)
    until_commit = np.zeros(len(dropped), np.int64)
    was_superseded = is_in(changes.superseded_row, dropped)
    places = np.searchsorted(dropped, changes.superseded_row[was_superseded])
    until[places] = changes.superseded_until[was_superseded]
    until_commit[places] = changes.superseded_commit[was_superseded]
    stays = ~was_superseded
    erased = changes.erased_row[~is_in(changes.erased_row, dropped)]
    superseded = changes.superseded_row[stays]
    return Changes(
        superseded_row=superseded - np.searchsorted(dropped, superseded),
        superseded_until=changes.superseded_until[stays],
        superseded_commit=changes.superseded_commit[stays],
        erased_row=erased - np.searchsorted(dropped, erased),
        removed_known_at=np.concatenate([changes.removed_known_at, known_at]),
        removed_commit=np.concatenate([changes.removed_commit, commit]),
        removed_until=np.concatenate([changes.removed_until, until]),
        removed_until_commit=np.concatenate([changes.removed_until_commit, until_commit]),
    )
