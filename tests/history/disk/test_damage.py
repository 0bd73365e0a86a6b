"""A file that is cut, changed or gone: a named error or the state before, never a wrong answer."""

import json
import shutil
from pathlib import Path

import pytest

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.disk.format import HEAD_BYTES, MANIFEST, PREVIOUS, Manifest
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, TINY, items, numbered


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments, a correction, an erasure, and one item in the log."""
    path = tmp_path_factory.mktemp("damage") / "h"
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 7)))
        writer.correct("item-3", 1, 5)
        writer.erase(["item-5"])
        for number in range(10, 17):
            writer.append(items([f"item-{number}"]))
        assert verify(path) == []
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "h"))


def read_everything(path: Path) -> list[object]:
    """All that a history holds, features left out: those are compared with their checksums by verify alone."""
    snapshot = History.open(path).snapshot
    view = snapshot.as_of(100)
    columns = [snapshot.column(name).tolist() for name in ("time", "known_at", "label", "commit", "key")]
    return [*columns, view.rows.tolist(), view.payload().to_pylist(), snapshot.find(numbered(0, 20)).tolist()]


def files_of(path: Path) -> list[Path]:
    """Every file that the present state needs."""
    manifest = Manifest.decode((path / MANIFEST).read_bytes(), "manifest")
    named = [path / name for name in sorted(manifest.paths())]
    return [path / MANIFEST, path / f"log-{manifest.log:08d}.bin", *named]


def test_every_file_cut(path: Path, whole: Path) -> None:
    """Cut by a byte, to its head, to nothing."""
    before = read_everything(whole)
    for file in files_of(path):
        data = file.read_bytes()
        for length in {0, min(HEAD_BYTES, len(data) - 1), len(data) - 1}:
            file.write_bytes(data[:length])
            if file.name.startswith("log-"):
                assert History.open(path).snapshot.version < History.open(whole).snapshot.version or not data
            elif file.parent.name == "segments" or file.suffix in (".npy", ".parquet"):
                with pytest.raises(HistoryDamagedError, match=f"segment {file.parent.name} .*{file.name}: it has"):
                    History.open(path)
                assert any(file.parent.name in each and file.name in each for each in verify(path))
            else:
                with pytest.raises(HistoryDamagedError, match="damaged"):
                    History.open(path)
                assert verify(path)
        file.write_bytes(data)
    assert read_everything(path) == before
    assert verify(path) == []


def test_every_file_with_a_flipped_byte(path: Path, whole: Path) -> None:
    """Verify names the file. A reader raises, or answers as if nothing had happened: never otherwise."""
    before = read_everything(whole)
    for file in files_of(path):
        data = file.read_bytes()
        if file.name.startswith("log-"):
            continue  # see test_log
        for at in {9, len(data) // 2, len(data) - 2}:
            damaged = bytearray(data)
            damaged[at] ^= 0x04
            file.write_bytes(damaged)
            problems = verify(path)
            assert any(file.name in problem for problem in problems), (file, at, problems)
            if "segments" in file.parts:
                assert any(f"segment {file.parent.name}" in problem for problem in problems)
            try:
                found = read_everything(path)
            except HistoryError:
                pass
            else:
                assert file.stem == "payload" or "feature" in file.name, file
                assert found == before, file
        file.write_bytes(data)


def test_every_file_gone(path: Path) -> None:
    for file in files_of(path):
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(HistoryError, match=r"gone: restore it|there is no history"):
            History.open(path)
        assert file.name == MANIFEST or verify(path) != []
        file.write_bytes(data)


def test_the_manifest_cut_at_every_byte(whole: Path) -> None:
    data = (whole / MANIFEST).read_bytes()
    for length in range(0, len(data), 11):
        with pytest.raises(HistoryDamagedError, match=r"copy manifest.previous.json over it"):
            Manifest.decode(data[:length], "manifest.json")
    for at in range(0, len(data), 11):
        damaged = bytearray(data)
        damaged[at] ^= 0x01
        with pytest.raises(HistoryError):
            Manifest.decode(bytes(damaged), "manifest.json")


def test_going_back_to_the_manifest_before(path: Path) -> None:
    """What the error says to do works: the state before, and the log that led on from there."""
    (path / MANIFEST).write_bytes(b"{}")
    assert any(f"{PREVIOUS} is the state after commit" in problem for problem in verify(path))
    shutil.copy(path / PREVIOUS, path / MANIFEST)
    snapshot = History.open(path).snapshot
    assert "item-0" in snapshot.column("id").tolist()
    with HistoryWriter.open(path) as writer:
        writer.append(items(["next"]))
    assert verify(path) == []


def test_an_unknown_version_is_said_before_anything_else(path: Path) -> None:
    written = json.loads((path / MANIFEST).read_bytes())
    written["version"] = 99
    (path / MANIFEST).write_text(json.dumps(written))
    with pytest.raises(HistoryError, match="has format version 99, this recollect reads 1: use the version"):
        History.open(path)


def test_a_merge_does_not_hide_damage(path: Path) -> None:
    """Copying a damaged column would give it a checksum that fits."""
    file = next(path.glob("segments/*/feature.wide.npy"))
    data = bytearray(file.read_bytes())
    data[HEAD_BYTES + 3] ^= 1
    file.write_bytes(data)
    with HistoryWriter.open(path, limits=TINY) as writer:
        with pytest.raises(HistoryDamagedError, match=r"feature.wide.npy: it does not match its checksum"):
            writer.compact()
        writer.append(items(["still works"]))
    assert len(verify(path)) == 1


def test_what_nothing_names_is_ignored_and_removed(path: Path) -> None:
    stray = path / "segments" / "00000099-dead" / "time.npy"
    stray.parent.mkdir()
    stray.write_bytes(b"half a segment")
    (path / ".manifest.json.tmp").write_bytes(b"half a manifest")
    before = read_everything(path)
    HistoryWriter.open(path, limits=TINY).close()
    assert not stray.parent.exists()
    assert not (path / ".manifest.json.tmp").exists()
    assert read_everything(path) == before
