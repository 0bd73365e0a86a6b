"""Reading a history ahead changes how soon it is open, and nothing else."""

import mmap
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.compaction import Limits
from recollect.history.disk.ahead import Ahead, checksum, identity
from recollect.history.disk.names import HEAD_BYTES
from recollect.history.disk.storage import HELD_BYTES
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, items, numbered

LARGE = HELD_BYTES // 8 + 100
LIMITS = Limits(seal_rows=400, background=False)
COLUMNS = ("key", "known_at", "time", "label", "id", "wide")


def write(path: Path, *, segments: int, logged: int, sealed: bool = True) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=LIMITS) as writer:
        for segment in range(segments):
            writer.append(items(numbered(segment * 100_000, segment * 100_000 + (LARGE if segment == 0 else 500))))
        if sealed:
            writer.seal()
        for item in range(logged):
            writer.append(items(numbered(900_000 + item, 900_001 + item)))


def key_file(path: Path) -> Path:
    return max(path.glob("segments/*/key.npy"), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize(("segments", "logged"), [(0, 0), (0, 3), (1, 0), (1, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize("sealed", [True, False])
def test_what_was_read_ahead_is_what_is_there(path: Path, segments: int, logged: int, sealed: bool) -> None:
    """Unsealed, segments are named by the log alone."""
    write(path, segments=segments, logged=logged, sealed=sealed)
    ahead = Ahead(path)
    history = History.open(path, ahead=ahead)
    plain = History.open(path).snapshot
    for _ in range(2):  # the second time what was joined has been taken
        for name in COLUMNS:
            np.testing.assert_array_equal(history.snapshot.column(name), plain.column(name))
    ahead.close()
    for name in COLUMNS:
        np.testing.assert_array_equal(history.snapshot.column(name), plain.column(name))


def test_keys_of_several_places_are_read_straight_to_where_they_go(path: Path) -> None:
    write(path, segments=2, logged=3)
    ahead = Ahead(path)
    history = History.open(path, ahead=ahead)
    wait_for(ahead)
    part = history.snapshot.column("key", 5, LARGE + 5)
    whole, again = history.snapshot.column("key"), history.snapshot.column("key")
    ahead.close()
    assert [isinstance(owner(array), mmap.mmap) for array in (part, whole, again)] == [False, True, False]
    with HistoryWriter.open(path) as writer:
        writer.append(items(["late"]))
    assert history.refresh().column("key").shape[0] == len(whole) + 1


def wait_for(ahead: Ahead) -> None:
    """What is asked for before it was begun, nobody waits for."""
    for reading in ahead._readings.values():
        reading.crc32.result()


def owner(array: np.ndarray) -> object:
    base: object = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


@pytest.mark.parametrize("logged", [0, 3])
def test_a_damaged_column_is_named(path: Path, logged: int) -> None:
    write(path, segments=1, logged=logged)
    file = key_file(path)
    with file.open("r+b") as opened:
        opened.seek(HEAD_BYTES + 1000)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
    ahead = Ahead(path)
    snapshot = History.open(path, ahead=ahead).snapshot
    with pytest.raises(HistoryDamagedError, match=r"key\.npy.*checksum"):
        snapshot.column("key")
    ahead.close()


def test_a_file_that_was_changed_since_is_read_again(path: Path) -> None:
    write(path, segments=1, logged=3)
    ahead = Ahead(path)
    file = key_file(path)
    wait_for(ahead)
    assert ahead.crc32(file, identity(file.stat())) is not None
    data = bytearray(file.read_bytes())
    data[HEAD_BYTES] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(0, 0))  # as if that had taken longer than the clock of the file system can tell
    snapshot = History.open(path, ahead=ahead).snapshot
    with pytest.raises(HistoryDamagedError, match=r"key\.npy.*checksum"):
        snapshot.column("key")
    ahead.close()


@pytest.mark.parametrize("manifest", [None, b"", b"[]", b'{"log": 1}', b'{"log": "one", "segments": 7}'])
def test_what_cant_be_read_is_left_to_whoever_opens_it(path: Path, manifest: bytes | None) -> None:
    write(path, segments=1, logged=0)
    if manifest is None:
        (path / "manifest.json").unlink()
    else:
        (path / "manifest.json").write_bytes(manifest)
    ahead = Ahead(path)
    with pytest.raises(HistoryError):
        History.open(path, ahead=ahead)
    ahead.close()


def test_a_missing_column_is_named(path: Path) -> None:
    write(path, segments=1, logged=0)
    key_file(path).unlink()
    ahead = Ahead(path)
    with pytest.raises(HistoryDamagedError, match=r"key\.npy"):
        History.open(path, ahead=ahead)
    ahead.close()


@pytest.mark.parametrize("size", [0, 1, HEAD_BYTES, HEAD_BYTES + 1, 3 * HEAD_BYTES + 7])
def test_the_checksum_is_that_of_the_whole_file(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    file = tmp_path / "file"
    file.write_bytes(data)
    with file.open("rb") as opened:
        assert checksum(opened.fileno(), size) == zlib.crc32(data)
        room = memoryview(bytearray(max(0, size - HEAD_BYTES)))
        assert checksum(opened.fileno(), size, room) == zlib.crc32(data)
        assert bytes(room) == data[HEAD_BYTES:]


def test_it_imports_none_of_what_it_is_ahead_of() -> None:
    call = "import sys, recollect.history.disk.ahead; print(sorted({'numpy', 'torch', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", call], text=True).strip() == "[]"
