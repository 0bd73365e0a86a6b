"""The log: what a crash may leave of it reads as the last complete append; anything else is a named error."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.disk.log import Change, decode_all, encode
from recollect.history.disk.schema import Key, Schema
from recollect.history.reader import History
from recollect.history.rows import check_items
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, items, numbered


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, list[int]]:
    """A history, the bytes of its log, and where each of the records ends."""
    path = tmp_path_factory.mktemp("log") / "h"
    ends = []
    with HistoryWriter.create(path, SCHEMA) as writer:
        (log,) = path.glob("log-*.bin")
        for number in range(3):
            writer.append(items(numbered(2 * number, 2 * number + 2), time=number))
            ends.append(log.stat().st_size)
        writer.correct("item-0", 1, 10)
        ends.append(log.stat().st_size)
        writer.erase(["item-1"])
        ends.append(log.stat().st_size)
    return path, log.read_bytes(), ends


def set_log(path: Path, data: bytes) -> None:
    (log,) = path.glob("log-*.bin")
    log.write_bytes(data)


def test_cut_at_every_byte_the_complete_records_remain() -> None:
    """A few columns only, so that every byte can be tried."""
    schema = Schema(key=Key(1), time="number")
    kinds = [
        Change(1, check_items(dict(id=["a", "b"], time=[1, 2], label=[0, 1], key=[[1.0], [2.0]]), schema).rows),
        Change(2, superseded=np.array([0]), until=np.array([3.0])),
        Change(3, erased=np.array([1]), classes=("RHL1",)),
    ]
    records = [b"".join(encode(change, schema, "token")) for change in kinds]
    ends, data = np.cumsum([len(record) for record in records]).tolist(), b"".join(records)
    for length in range(len(data) + 1):
        changes, used = decode_all(data[:length], 1, schema, "log")
        assert [change.commit for change in changes] == [each + 1 for each, end in enumerate(ends) if end <= length]
        assert used == [0, *ends][len(changes)]


def test_cut_it_reads_as_the_last_complete_commit(written: tuple[Path, bytes, list[int]]) -> None:
    path, data, ends = written
    for length in [0, 1, ends[0] - 1, ends[0], ends[0] + 5, ends[2] - 1, ends[3] + 40, len(data) - 1]:
        set_log(path, data[:length])
        whole = sum(end <= length for end in ends)
        snapshot = History.open(path).snapshot
        assert snapshot.version == whole
        assert snapshot.column("id").tolist() == [*numbered(0, 6), "item-0"][: min(2 * whole, 6) + (whole > 3)]


def test_the_next_writer_cuts_the_tail_off_and_goes_on(written: tuple[Path, bytes, list[int]]) -> None:
    path, data, ends = written
    for length in [5, ends[0] + 3, ends[1] - 1, ends[4] - 1]:
        set_log(path, data[:length])
        whole = sum(end <= length for end in ends)
        with HistoryWriter.open(path) as writer:
            (log,) = path.glob("log-*.bin")
            assert log.stat().st_size == [0, *ends][whole]
            assert writer.append(items(["new"])).commit == whole + 1
        reader = History.open(path)
        assert reader.snapshot.column("id").tolist()[-1] == "new"


def test_a_flipped_byte_is_an_error_or_ends_the_log(written: tuple[Path, bytes, list[int]]) -> None:
    """In the last record it can't be told from a crash; before that it can."""
    _, data, ends = written
    honest, _ = decode_all(data, 1, SCHEMA, "log")
    for at in range(0, len(data), 41):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        if at < ends[-2]:
            with pytest.raises(HistoryDamagedError, match=r"log is damaged at byte|where 1 should be"):
                decode_all(damaged, 1, SCHEMA, "log")
        else:
            changes, used = decode_all(damaged, 1, SCHEMA, "log")
            assert (len(changes), used) == (len(honest) - 1, ends[-2])


def test_a_damaged_last_record_is_told_and_kept_aside(written: tuple[Path, bytes, list[int]], tmp_path: Path) -> None:
    """Wherever the byte is: it may have been acknowledged. Never is one such tail written over another."""
    whole, data, ends = written
    path = Path(shutil.copytree(whole, tmp_path / "h"))
    kept = []
    for at in (ends[-2], ends[-2] + 9, ends[-2] + 40, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        set_log(path, bytes(damaged))
        (problem,) = verify(path)
        assert f"log-00000001.bin ends in {len(data) - ends[-2]} bytes, from byte {ends[-2]} on" in problem
        assert f"commit {len(ends)}, which may have been acknowledged" in problem
        kept.append(bytes(damaged[ends[-2] :]))
        with HistoryWriter.open(path) as writer:
            assert writer.version == len(ends) - 1
        assert sorted(file.read_bytes() for file in path.glob("*.cut")) == sorted(kept)
        assert verify(path) == []
    with HistoryWriter.open(path) as writer:
        for _ in range(3):
            writer.append(items([f"more-{writer.version}"]))
            writer.compact()
    HistoryWriter.open(path).close()
    assert sorted(file.read_bytes() for file in path.glob("*.cut")) == sorted(kept)


def test_a_tail_cut_short_is_no_problem_and_is_dropped(written: tuple[Path, bytes, list[int]]) -> None:
    path, data, ends = written
    for length in (ends[0] + 3, ends[1] + 40, len(data) - 1):
        set_log(path, data[:length])
        assert verify(path) == []
        HistoryWriter.open(path).close()
        assert not list(path.glob("*.cut"))


def test_a_reader_names_the_damaged_log(written: tuple[Path, bytes, list[int]]) -> None:
    path, data, ends = written
    damaged = bytearray(data)
    damaged[ends[0] + 100] ^= 1
    set_log(path, bytes(damaged))
    with pytest.raises(HistoryDamagedError, match=r"log-00000001.bin is damaged at byte \d+, in commit 2, and goes on"):
        History.open(path)
    with pytest.raises(HistoryDamagedError, match="restore it from a copy"):
        HistoryWriter.open(path)


def test_a_missing_log_is_no_empty_log(written: tuple[Path, bytes, list[int]]) -> None:
    path, data, _ = written
    (log,) = path.glob("log-*.bin")
    log.unlink()
    try:
        for attempt in (History.open, HistoryWriter.open):
            with pytest.raises(HistoryDamagedError, match=r"names .*log-00000001.bin, which is gone"):
                attempt(path)
    finally:
        log.write_bytes(data)


def test_a_record_holds_everything_a_commit_can() -> None:
    rows = check_items(items(["a", "a longer id", "ß"], time=2.5), SCHEMA).rows
    change = Change(
        7, rows, None, np.array([3, 1]), np.array([0.5, 1e300]), np.array([9]), classes=("spam", "ham"), closing=False
    )
    (read,), _ = decode_all(b"".join(encode(change, SCHEMA, "token")), 7, SCHEMA, "log")
    assert read.rows is not None
    for name, array in rows.columns.items():
        np.testing.assert_array_equal(read.rows.columns[name], array)
    assert read.rows.payload == rows.payload
    for name in ("superseded", "until", "erased"):
        np.testing.assert_array_equal(getattr(read, name), getattr(change, name))
    assert (read.commit, read.classes, read.closing) == (7, ("spam", "ham"), False)


def test_a_failed_write_counts_for_nothing_and_ends_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HistoryWriter.create(tmp_path / "h", SCHEMA) as writer:
        writer.append(items(["before"]))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(OSError, match="No space left"):
                writer.append(items(["during"]))
        with pytest.raises(HistoryError, match=r"an earlier append to .* failed: open the history anew"):
            writer.append(items(["after"]))
    with HistoryWriter.open(tmp_path / "h") as writer:
        writer.append(items(["during"]))
    assert History.open(tmp_path / "h").snapshot.column("id").tolist() == ["before", "during"]
