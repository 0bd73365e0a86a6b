"""Merging: how often and how much, and that nothing of what was erased remains."""

from pathlib import Path

import numpy as np
import pytest

from recollect.history.compaction import Limits, Merge, next_merge
from recollect.history.disk.format import FileEntry, SegmentEntry
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, TINY, items, numbered


def entry(name: str, size: int) -> SegmentEntry:
    return SegmentEntry(name, 1, (1, 1), (0, 0), 1, {"time": FileEntry(name, size, "")})


@pytest.mark.parametrize("sizes", [[10], [1, 40], [10, 1, 90, 2]])
def test_copying_stays_logarithmic(sizes: list[int]) -> None:
    """A thousand segments of these sizes in turn: few remain, and no byte is copied often."""
    limits, segments, copied, total = Limits(segment_bytes=1 << 40), [], 0, 0
    for number in range(1000):
        size = sizes[number % len(sizes)]
        total += size
        segments.append(entry(str(number), size))
        while run := next_merge(segments, limits):
            merged = sum(each.total_bytes for each in segments[run.start : run.stop])
            copied += merged
            result = Merge(tuple(segments[run.start : run.stop]), entry(f"m{number}", merged))
            segments = result.applied(segments)
    assert sum(each.total_bytes for each in segments) == total
    assert len(segments) <= 30
    assert copied <= 6 * total


def test_segments_do_not_outgrow_their_limit() -> None:
    segments = [entry(str(number), 10) for number in range(12)]
    assert next_merge(segments, Limits(segment_bytes=59)) is None
    run = next_merge(segments, Limits(segment_bytes=60))
    assert run is not None
    assert len(run) == 6


def test_a_merge_whose_segments_are_gone_changes_nothing() -> None:
    segments = [entry(name, 1) for name in "abcd"]
    _, b, c, d = segments
    assert Merge((entry("x", 1), b), entry("m", 2)).applied(segments) == segments
    assert Merge((b, d), entry("m", 2)).applied(segments) == segments
    assert [each.name for each in Merge((b, c), entry("m", 2)).applied(segments)] == ["a", "m", "d"]
    assert [each.name for each in Merge((b, c), None).applied(segments)] == ["a", "d"]


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


@pytest.mark.parametrize("sealed", [False, True])
def test_no_byte_of_an_erased_item_remains(path: Path, sealed: bool) -> None:
    """Not its id, its hash, its text or its features; in no segment, log or manifest."""
    with HistoryWriter.create(path, SCHEMA, limits=Limits(seal_rows=100, background=False)) as writer:
        secret = items(["secret-person"], wide=np.full((1, 5), 1234.5), text=["what the secret person said"])
        writer.append(items(numbered(0, 5)))
        writer.append(secret)
        writer.correct("secret-person", 1, 3)
        if sealed:
            writer.seal()
        marks = [b"secret-person", b"secret person said", np.full(5, 1234.5, np.float16).tobytes()]
        before = bytes_of(path)
        assert all(mark in before for mark in marks[: 1 if sealed else 3])
        assert writer.erase(["secret-person"]) == 2
        writer.compact()
        after = bytes_of(path)
        assert not any(mark in after for mark in marks)
        assert len(list(path.glob("manifest*"))) == 2
        snapshot = History.open(path).snapshot
        assert snapshot.column("id").tolist() == numbered(0, 5)
        assert [snapshot.as_of(t).erased_count for t in (0, 1, 3, 4)] == [0, 1, 1, 1]
        writer.compact()
        assert snapshot.version == writer.version
    assert verify(path) == []


def test_compaction_leaves_one_segment_and_the_same_answers(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        for number in range(30):
            writer.append(items(numbered(2 * number, 2 * number + 2), time=number % 7))
        reader = History.open(path)
        before = reader.snapshot.as_of(5)
        rows = before.rows.tolist()
        writer.compact()
        after = reader.refresh().as_of(5)
        assert len(list(path.glob("segments/*"))) == 1
        assert (after.rows.tolist(), reader.snapshot.generation) == (rows, 0)
        assert after.payload() == before.payload()
        assert writer.compact() is None


def test_merging_in_the_background(path: Path) -> None:
    limits = Limits(seal_rows=4, merge_width=3)
    with HistoryWriter.create(path, SCHEMA, limits=limits) as writer:
        for number in range(150):
            writer.append(items([f"item-{number}"]))
    assert verify(path) == []
    snapshot = History.open(path).snapshot
    assert snapshot.column("id").tolist() == numbered(0, 150)
    assert len(snapshot._parts) < 25
    assert snapshot.generation == 0


def test_a_history_of_erased_items_only(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 9)))
        writer.erase(numbered(0, 9))
        writer.compact()
        reader = History.open(path)
        assert (reader.snapshot.num_rows, reader.as_of(9).erased_count) == (0, 9)
        writer.append(items(["new"]))
        assert reader.refresh().column("id").tolist() == ["new"]
    assert verify(path) == []
