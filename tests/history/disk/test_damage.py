"""A file that is cut, changed or gone: a named error or the state before, never a wrong answer."""

import json
import shutil
from pathlib import Path

import pytest

from recollect.errors import HistoryDamagedError, HistoryError
from recollect.history.compaction import Limits
from recollect.history.disk.format import HEAD_BYTES, MANIFEST, PREVIOUS, Manifest
from recollect.history.disk.schema import Key
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
                if file.name.startswith("log-"):  # the last record: perhaps a power cut, and never acknowledged
                    continue
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
    """What the error says to do works: the state before, and the logs that lead on from there, to the last commit."""
    before, version = read_everything(path), History.open(path).snapshot.version
    lose_the_manifest(path)
    assert History.open(path).snapshot.version == version
    assert read_everything(path) == before
    assert verify(path) == []
    with HistoryWriter.open(path) as writer:
        assert read_everything(path) == before
        assert writer.append(items(["next"])).commit == version + 1
    assert verify(path) == []
    assert not list(path.glob("*.cut"))


def lose_the_manifest(path: Path) -> None:
    """And do what the error says. Verify has said before what that gives."""
    snapshot = History.open(path).snapshot
    (path / MANIFEST).write_bytes(b"{}")
    told = f"{PREVIOUS} is the state after commit {snapshot.version}, with {snapshot.num_rows} rows"
    problems = verify(path)
    assert any(told in problem for problem in problems), problems
    shutil.copy(path / PREVIOUS, path / MANIFEST)


def test_going_back_loses_no_single_append(tmp_path: Path) -> None:
    """Again and again, at every distance from the last seal."""
    path, acknowledged = tmp_path / "h", []
    limits = Limits(seal_rows=8, merge_width=3, background=False)
    HistoryWriter.create(path, SCHEMA, limits=limits).close()
    for number in range(40):
        with HistoryWriter.open(path, limits=limits) as writer:
            writer.append(items([f"item-{number}"]))
            acknowledged.append(f"item-{number}")
        if number >= 8 and number % 3 == 0:
            lose_the_manifest(path)
            assert History.open(path).snapshot.column("id").tolist() == acknowledged
    assert History.open(path).snapshot.column("id").tolist() == acknowledged
    assert verify(path) == []


def test_going_back_with_large_commits_and_corrections_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(["first", "second"]))
        writer.seal()
        writer.append(items(numbered(0, 9)))
        writer.correct("item-3", 1, 5)
        writer.erase(["first"])
    (path / MANIFEST).write_bytes((path / PREVIOUS).read_bytes())
    with HistoryWriter.open(path, limits=TINY) as writer:
        writer.compact()
    assert History.open(path).snapshot.column("id").tolist() == ["second", *numbered(0, 9), "item-3"]
    assert verify(path) == []


def rekeyed(path: Path) -> None:
    """A log whose rows have another schema than that of the state before."""
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(["before"]))
        writer.rekey(Key(2, "float32", "another"), lambda features: features["wide"][:, :2])
        writer.append(items(["after"]) | {"key": [[1.0, 2.0]]})


def test_a_log_that_does_not_go_on_from_the_state_before_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h"
    rekeyed(path)
    (path / MANIFEST).write_bytes((path / PREVIOUS).read_bytes())
    logs = {file.name: file.read_bytes() for file in path.glob("log-*")}
    assert len(verify(path)) == 1
    for _ in range(2):
        with pytest.raises(
            HistoryDamagedError, match=r"a rekey came between: restore .* or move log-\d+.bin elsewhere"
        ):
            HistoryWriter.open(path)
    assert logs == {file.name: file.read_bytes() for file in path.glob("log-*")}
    max(path.glob("log-*")).rename(tmp_path / "moved")
    HistoryWriter.open(path).close()
    assert History.open(path).snapshot.column("id").tolist() == ["before"]
    assert verify(path) == []


def test_a_log_that_lost_its_end_is_refused_while_another_follows(path: Path) -> None:
    lose_the_manifest(path)
    first, second = sorted(path.glob("log-*"))
    data = first.read_bytes()
    first.write_bytes(data[:-1])
    kept = second.read_bytes()
    assert any("has lost its end" in problem for problem in verify(path))
    with pytest.raises(HistoryDamagedError, match="has lost its end"):
        HistoryWriter.open(path)
    assert second.read_bytes() == kept


def test_a_log_of_a_history_without_manifests_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "h"
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["lost"]))
    data = (path / "log-00000001.bin").read_bytes()
    (path / MANIFEST).unlink()
    HistoryWriter.create(path, SCHEMA).close()
    assert (path / "log-00000001.cut").read_bytes() == data
    assert History.open(path).snapshot.num_rows == 0


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
