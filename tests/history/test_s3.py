"""A history on S3, through a real client and a local server: append, follow, fetch, a second writer, a crash."""

import json
import logging
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from recollect.errors import HistoryDamagedError, HistoryError, HistoryLockedError
from recollect.history.compaction import Limits
from recollect.history.disk.format import MANIFEST, PREVIOUS
from recollect.history.disk.log import RemoteLog
from recollect.history.disk.storage import RemoteStorage
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, TINY, items, numbered
from tests.history.s3 import BUCKET, s3_server


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with s3_server() as options:
        fsspec.filesystem("s3", **options).mkdir(BUCKET)
        yield options


@pytest.fixture
def url() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def ids(url: str, options: dict[str, Any]) -> list[str]:
    return History.open(url, options=options).snapshot.column("id").tolist()


def test_append_follow_and_fetch(url: str, options: dict[str, Any]) -> None:
    limits = Limits(seal_rows=10, background=False)
    with HistoryWriter.create(url, SCHEMA, limits=limits, options=options) as writer:
        reader = History.open(url, options=options)
        for number in range(8):
            writer.append(items(numbered(2 * number, 2 * number + 2), time=number, label=["spam", "ham"]))
            snapshot = reader.refresh()
            assert (snapshot.version, snapshot.num_rows) == (number + 1, 2 * number + 2)
            assert reader.refresh() is snapshot
        writer.append(items(numbered(100, 400), label=["eggs"] * 300))
        writer.correct("item-3", "eggs", 50)
        writer.erase(["item-5", "item-120"])
        snapshot = reader.refresh()
        assert snapshot.classes == ("spam", "ham", "eggs")
        rows = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(317), snapshot.erased))[:200].reshape(50, 4)
        names = snapshot.column("id")[rows.reshape(-1)].tolist()
        for _ in range(2):  # the second time from the cache
            fetched = snapshot.fetch(torch.from_numpy(rows))
            np.testing.assert_array_equal(fetched["wide"].reshape(-1, 5).numpy(), items(names)["wide"])
            np.testing.assert_array_equal(fetched["count"].reshape(-1).numpy(), items(names)["count"])
        assert snapshot.payload(rows).column("text").to_pylist() == [f"text of {name}" for name in names]
        before = snapshot.as_of(20).column("id").tolist()
        writer.compact()
        after = reader.refresh().as_of(20)
        assert (after.column("id").tolist(), after.erased_count) == (before, 2)
    assert verify(url, options=options) == []
    with HistoryWriter.open(url, options=options) as writer:
        assert writer.append(items(["item-5", "item-6"], label=["ham", "ham"]), on_duplicate="skip").skipped == 1
    assert ids(url, options)[-1] == "item-5"


def test_the_cache_saves_requests(url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with HistoryWriter.create(url, SCHEMA, limits=TINY, options=options) as writer:
        writer.append(items(numbered(0, 50)))
    snapshot = History.open(url, options=options).snapshot
    first = snapshot.fetch(range(50))
    filesystem = fsspec.filesystem("s3", **options)
    monkeypatch.setattr(type(filesystem), "cat_ranges", lambda *arguments, **others: pytest.fail("a request was made"))
    for name, values in snapshot.fetch(range(50)).items():
        assert torch.equal(values, first[name])


def test_a_second_writer_is_refused_and_loses_nobody_elses_items(url: str, options: dict[str, Any]) -> None:
    """There is no lock: both may open, and the first to commit goes on."""
    first = HistoryWriter.create(url, SCHEMA, limits=TINY, options=options)
    second = HistoryWriter.open(url, limits=TINY, options=options)
    first.append(items(["of the first"]))
    with pytest.raises(HistoryLockedError, match=r"another writer has made commit 1 of s3://.*let one process write"):
        second.append(items(["of the second"]))
    with pytest.raises(HistoryError, match="open the history anew"):
        second.append(items(["of the second"]))
    second.close()
    for number in range(9):
        first.append(items([f"item-{number}"]))
    third = HistoryWriter.open(url, limits=TINY, options=options)
    third.append(items(["of the third"]))
    with pytest.raises(HistoryLockedError, match="another writer"):
        first.seal()
    third.close()
    first.close()
    assert ids(url, options) == ["of the first", *numbered(0, 9), "of the third"]
    assert verify(url, options=options) == []


@pytest.mark.parametrize("seals", [1, 2, 3])
def test_a_writer_left_behind_by_several_logs_is_refused(url: str, options: dict[str, Any], seals: int) -> None:
    """The records of logs that are no longer needed are gone, and with them what stood in its way."""
    HistoryWriter.create(url, SCHEMA, options=options).close()
    behind = HistoryWriter.open(url, options=options)
    with HistoryWriter.open(url, options=options) as ahead:
        for number in range(seals):
            ahead.append(items([f"ahead-{number}"]))
            ahead.seal()
    with pytest.raises(HistoryLockedError, match=r"another writer has .* commit 1"):
        behind.append(items(["behind"]))
    behind.close()
    assert ids(url, options) == [f"ahead-{number}" for number in range(seals)]
    assert verify(url, options=options) == []


def test_a_put_that_is_repeated_into_a_removed_log_does_not_count(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first put is lost, and the client finds its own record when it puts it again."""
    HistoryWriter.create(url, SCHEMA, options=options).close()
    behind = HistoryWriter.open(url, options=options)
    with HistoryWriter.open(url, options=options) as ahead:
        for number in range(2):
            ahead.append(items([f"ahead-{number}"]))
            ahead.seal()
    create = RemoteStorage.create

    def twice(self: RemoteStorage, name: str, data: bytes) -> None:
        create(self, name, data)
        create(self, name, data)

    monkeypatch.setattr(RemoteStorage, "create", twice)
    with pytest.raises(HistoryLockedError, match="whether commit 1 of this one counts is not known"):
        behind.append(items(["behind"]))
    with HistoryWriter.open(url, options=options) as writer:
        writer.append(items(["ahead-2"]))
    assert ids(url, options) == ["ahead-0", "ahead-1", "ahead-2"]
    behind.close()


def test_a_look_that_fails_after_a_put_is_told_and_the_commit_may_count(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: RemoteStorage, name: str) -> bytes:
        raise TimeoutError("no answer")

    with HistoryWriter.create(url, SCHEMA, options=options) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(RemoteStorage, "read", fails)
            with pytest.raises(
                HistoryError, match=r"commit 1 .* failed \(TimeoutError.* whether it counts is not known"
            ):
                writer.append(items(["item-0"]))
        with pytest.raises(HistoryError, match="open the history anew"):
            writer.append(items(["item-1"]))
    with HistoryWriter.open(url, options=options) as writer:
        assert writer.append(items(["item-0"]), on_duplicate="skip").skipped == 1
    assert verify(url, options=options) == []


def test_compacting_beside_another_writer_loses_nothing(url: str, options: dict[str, Any]) -> None:
    HistoryWriter.create(url, SCHEMA, options=options).close()
    behind = HistoryWriter.open(url, options=options)
    with HistoryWriter.open(url, options=options) as ahead:
        for number in range(3):
            ahead.append(items([f"item-{number}"]))
            ahead.seal()
        ahead.append(items(["item-3"]))
        with pytest.raises(HistoryLockedError, match="another writer has"):
            behind.compact()
        behind.close()
    assert ids(url, options) == numbered(0, 4)
    assert verify(url, options=options) == []


def test_a_segment_whose_commit_comes_after_a_compaction_is_refused(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written before, and removed as nobody's."""
    limits = Limits(seal_rows=10, background=False)
    HistoryWriter.create(url, SCHEMA, limits=limits, options=options).close()
    slow = HistoryWriter.open(url, limits=limits, options=options)
    append = RemoteLog.append

    def after_a_compaction(self: RemoteLog, record: Any) -> None:
        monkeypatch.setattr(RemoteLog, "append", append)
        with HistoryWriter.open(url, limits=limits, options=options) as other:
            other.compact()
        append(self, record)

    monkeypatch.setattr(RemoteLog, "append", after_a_compaction)
    with pytest.raises(HistoryLockedError, match="another writer has"):
        slow.append(items(numbered(0, 40), label=["x"] * 40))
    slow.close()
    assert ids(url, options) == []
    assert verify(url, options=options) == []


def test_two_writers_at_once(url: str, options: dict[str, Any]) -> None:
    """Each that is refused opens anew; in the end every acknowledged item is there, once."""
    HistoryWriter.create(url, SCHEMA, limits=TINY, options=options).close()
    acknowledged: list[str] = []
    failures: list[BaseException] = []

    def write(name: str) -> None:
        try:
            writer = HistoryWriter.open(url, limits=TINY, options=options)
            for number in range(6):
                while True:
                    try:
                        writer.append(items([f"{name}-{number}"]))
                        acknowledged.append(f"{name}-{number}")
                        break
                    except HistoryError:
                        writer.close(wait=False)
                        writer = HistoryWriter.open(url, limits=TINY, options=options)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert sorted(ids(url, options)) == sorted(acknowledged)
    assert verify(url, options=options) == []


def test_going_back_to_the_manifest_before_loses_nothing(url: str, options: dict[str, Any]) -> None:
    with HistoryWriter.create(url, SCHEMA, limits=TINY, options=options) as writer:
        for number in range(9):
            writer.append(items([f"item-{number}"]))
    filesystem = fsspec.filesystem("s3", **options)
    filesystem.pipe_file(f"{url}/{MANIFEST}", b"{}")
    assert any("after commit 9, with 9 rows" in problem for problem in verify(url, options=options))
    filesystem.pipe_file(f"{url}/{MANIFEST}", filesystem.cat_file(f"{url}/{PREVIOUS}"))
    assert ids(url, options) == numbered(0, 9)
    with HistoryWriter.open(url, limits=TINY, options=options) as writer:
        assert writer.append(items(["item-9"])).commit == 10
    assert ids(url, options) == numbered(0, 10)
    assert verify(url, options=options) == []


def test_a_damaged_last_commit_is_refused(url: str, options: dict[str, Any]) -> None:
    with HistoryWriter.create(url, SCHEMA, options=options) as writer:
        for number in range(3):
            writer.append(items([f"item-{number}"]))
    filesystem = fsspec.filesystem("s3", **options)
    name = f"{url}/log-00000001/000000000003"
    data = filesystem.cat_file(name)
    for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data[:5], b""):
        filesystem.pipe_file(name, damaged)
        for attempt in (History.open, HistoryWriter.open):
            with pytest.raises(HistoryDamagedError, match="000000000003 is damaged: restore it from a copy"):
                attempt(url, options=options)
        assert len(verify(url, options=options)) == 1
    filesystem.pipe_file(name, data)
    assert ids(url, options) == numbered(0, 3)


UPLOADER = """
import json, sys
import numpy as np
from recollect.history.writer import HistoryWriter
from tests.history.test_s3 import large_items
url, options = sys.argv[1], json.loads(sys.argv[2])
writer = HistoryWriter.open(url, options=options)
print("uploading", flush=True)
writer.append(large_items())
print("done", flush=True)
"""


def large_items() -> dict[str, Any]:
    """So many that they become a segment of several objects."""
    return items(numbered(0, 5000))


def test_a_crash_in_mid_upload_leaves_nothing_that_counts(url: str, options: dict[str, Any]) -> None:
    with HistoryWriter.create(url, SCHEMA, options=options) as writer:
        writer.append(items(["before"]))
    command = [sys.executable, "-c", UPLOADER, url, json.dumps(options)]
    filesystem = fsspec.filesystem("s3", **options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "uploading\n"
        while process.poll() is None:  # some objects of the segment are there, others are not
            filesystem.invalidate_cache()
            found = filesystem.find(f"{url}/segments")
            if 1 <= len(found) <= 6:
                process.send_signal(signal.SIGKILL)
                break
        process.wait()
        assert process.stdout.read() == ""
    assert filesystem.find(f"{url}/segments"), "it was killed too early"
    assert ids(url, options) == ["before"]
    assert verify(url, options=options) == []
    with HistoryWriter.open(url, limits=Limits(background=False), options=options) as writer:
        assert writer.append(items(numbered(0, 3))).added == 3
        writer.compact()  # removes what the crash left
    filesystem.invalidate_cache()
    assert len({path.split("/")[-2] for path in filesystem.find(f"{url}/segments")}) == 1
    assert ids(url, options) == ["before", *numbered(0, 3)]
