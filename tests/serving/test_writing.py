"""Changes that one thread writes: where a commit is not known to have counted, what is told is what is so."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from recollect.history.disk.log import RemoteLog
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from recollect.serving.changes import Erasing
from recollect.serving.kept_inputs import KeptInputs
from recollect.serving.writing import Writing
from recollect.trained import Trained
from tests.history.items import SCHEMA, items


@pytest.fixture
def url() -> str:
    return f"memory://writing-{uuid4().hex}"


@pytest.fixture
def writing(url: str, tmp_path: Path) -> Iterator[Writing]:
    with HistoryWriter.create(url, SCHEMA) as writer:
        writer.append(items(["a", "b"]))
    kept = KeptInputs(tmp_path, keep_seconds=60.0)
    found = Writing(History.open(url), no_model, kept, queue_items=100, on_commit=lambda version, since: None)
    found.start()
    yield found
    found.close()
    kept.close()


def no_model() -> Trained:
    raise AssertionError("nothing is added here")


def test_an_erasure_whose_commit_counts_unseen_is_told_as_done(
    url: str, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is put, the look at the manifest after it gets no answer, and the next attempt finds nothing left."""
    looked, unanswered = RemoteLog._is_named, ["once"]

    def fails_once(self: RemoteLog) -> bool:
        if unanswered:
            raise TimeoutError(f"no answer, {unanswered.pop()}")
        return looked(self)

    monkeypatch.setattr(RemoteLog, "_is_named", fails_once)
    job = Erasing("a")
    writing.submit(job)
    assert job.done.result(60) == (1, False)
    assert not unanswered
    assert (History.open(url).snapshot.find(["a", "b"]) >= 0).tolist() == [False, True]


def test_an_erasure_of_what_is_not_there_finds_nothing(writing: Writing) -> None:
    job = Erasing("c")
    writing.submit(job)
    assert job.done.result(60) == (0, False)
