"""Where files lie: the lock with real processes, and what every kind of storage must do alike."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from recollect.errors import HistoryError, HistoryLockedError
from recollect.history.disk.storage import LocalStorage, Storage, storage_at
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, items

HOLDER = """
import sys, time
from pathlib import Path
from recollect.history.disk.storage import LocalStorage
storage = LocalStorage(Path(sys.argv[1]))
storage.lock()
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock of tmp_path/h."""
    HistoryWriter.create(tmp_path / "h", SCHEMA).close()
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "h")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_one_writer_at_a_time_and_a_killed_one_frees_the_lock(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    with pytest.raises(HistoryLockedError, match=f"has a writer already, process {holder.pid}: close that one"):
        HistoryWriter.open(tmp_path / "h")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with HistoryWriter.open(tmp_path / "h") as writer:
        writer.append(items(["a"]))


def test_one_writer_within_a_process(tmp_path: Path) -> None:
    with HistoryWriter.create(tmp_path / "h", SCHEMA), pytest.raises(HistoryLockedError, match="has a writer already"):
        HistoryWriter.open(tmp_path / "h")
    HistoryWriter.open(tmp_path / "h").close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_neither_keeps_the_lock_nor_writes(tmp_path: Path) -> None:
    """Otherwise a data loader's worker would hold the lock of a trainer that died."""
    writer = HistoryWriter.create(tmp_path / "h", SCHEMA)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            writer.append(items(["by the child"]))
            os.write(writing, b"appended")
        except HistoryError as error:
            os.write(writing, str(error).encode())
        signal.pause()
        os._exit(0)
    try:
        assert b"it belongs to another process: open the history again" in os.read(reading, 1000)
        writer.append(items(["by the parent"]))
        writer.close()
        HistoryWriter.open(tmp_path / "h").close()  # though the child is still alive
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "local":
        made: Storage = LocalStorage(tmp_path)
        yield made
        return
    yield storage_at(f"memory://{tmp_path.name}")
    fsspec.filesystem("memory").rm("/", recursive=True)


def test_files(storage: Storage) -> None:
    storage.write("folder/one", [b"ab", bytearray(b"cd"), memoryview(b"")])
    storage.sync(["folder/one"])
    assert storage.read("folder/one") == b"abcd"
    file = storage.open("folder/one")
    assert (file.size(), b"".join(file.chunks(3))) == (4, b"abcd")
    assert file.array(np.dtype("u1"), (3,), 1).tolist() == [98, 99, 100]
    assert storage.exists("folder/one")
    assert not storage.exists("folder/two")
    with pytest.raises(FileNotFoundError):
        storage.read("folder/two")
    assert storage.names() == ["folder/one"] == storage.names("folder")
    storage.remove(["folder/one", "folder/two"])
    assert storage.names() == []


def test_create_does_not_overwrite(storage: Storage) -> None:
    storage.create("one", b"first")
    with pytest.raises(FileExistsError):
        storage.create("one", b"second")
    assert storage.read("one") == b"first"


def test_replace_keeps_the_old(storage: Storage) -> None:
    storage.create("one", b"first")
    storage.replace("one", b"second", old=b"first", keep_as="before")
    storage.replace("two", b"new")
    assert [storage.read(name) for name in ("one", "before", "two")] == [b"second", b"first", b"new"]
    storage.replace("one", b"third", old=b"second", keep_as="before")
    assert [storage.read(name) for name in ("one", "before")] == [b"third", b"second"]


def test_another_writer_is_noticed_when_replacing() -> None:
    storage = storage_at("memory://replacing")
    storage.create("one", b"by another")
    with pytest.raises(HistoryLockedError, match="another writer has replaced one of memory://replacing"):
        storage.replace("one", b"by us", old=b"as we left it", keep_as="before")


def test_a_removed_file_stays_readable_for_who_opened_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for name, size in (("small", 10), ("large", 1 << 20)):
        storage.write(name, [bytes(size)])
        file = storage.open(name)
        storage.remove([name])
        assert sum(len(chunk) for chunk in file.chunks()) == size
        assert file.array(np.dtype("u1"), (size,), 0).sum() == 0


def test_a_scheme_nobody_knows() -> None:
    with pytest.raises(HistoryError, match="nowhere://at/all can't be reached"):
        storage_at("nowhere://at/all")


def test_a_writer_that_nobody_closed_frees_the_lock(path: Path) -> None:
    writer = HistoryWriter.create(path, SCHEMA)
    writer.append(items(["a"]))
    del writer
    gc.collect()
    HistoryWriter.open(path).close()
