"""Inputs kept for labels to come: durable soon, found at once, gone when erased or too old."""

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from recollect.client import Client
from recollect.errors import SettingError
from recollect.serving import kept_inputs
from recollect.serving.kept_inputs import KeptInput, KeptInputs
from recollect.serving.rows import Rows
from tests.serving.server import served, wait_for
from tests.serving.test_service import ROW

DAY = 86_400.0


def make(number: int, text: str = "plain") -> KeptInput:
    return KeptInput(f"id-{number}", 2**62 + number, {"text": text, "n": 0.1}, "yes")


def test_found_at_once_and_after_a_restart(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    kept.keep([make(1), make(2, "ü \u2028 'q'")])
    assert kept.find(["id-1", "id-2", "id-3"]) == {"id-1": make(1), "id-2": make(2, "ü \u2028 'q'")}
    # Another process sees it without being told.
    other = KeptInputs(tmp_path, keep_seconds=DAY)
    wait_for(lambda: len(other.find(["id-1", "id-2"])) == 2)
    kept.close()
    assert other.find(["id-2"])["id-2"].time == 2**62 + 2
    other.keep([make(1, "newer")])
    assert other.find(["id-1"])["id-1"].row["text"] == "newer"
    other.close()
    again = KeptInputs(tmp_path, keep_seconds=DAY)
    assert again.find(["id-1"])["id-1"].row["text"] == "newer"
    again.close()


def test_hours_count_what_came_back(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    kept.keep([make(number) for number in range(5)])
    kept.flush()
    kept.labelled([("id-0", True), ("id-1", False)])
    kept.labelled([("id-2", True)])
    hours = kept.hours()
    assert [sum(getattr(each, name) for each in hours) for name in ("predictions", "labelled", "right")] == [5, 3, 2]
    assert kept.hours(time.time() + DAY) == []
    assert set(kept.find([f"id-{number}" for number in range(5)])) == {"id-3", "id-4"}
    kept.close()


def test_what_is_erased_leaves_no_bytes(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    kept.keep([make(1, "a secret"), make(2)])
    kept.flush()
    kept.keep([make(3, "another secret")])
    assert kept.erase("id-1")
    assert kept.erase("id-3")
    assert not kept.erase("id-1")
    kept.flush()
    assert set(kept.find(["id-1", "id-2", "id-3"])) == {"id-2"}
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())
    kept.close()


def test_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "PRUNED_EVERY", 0.0)
    monkeypatch.setattr(kept_inputs.time, "time", lambda: 1e9)
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    kept.may_prune = lambda: True
    kept.keep([make(1)])
    kept.flush()
    monkeypatch.setattr(kept_inputs.time, "time", lambda: 1e9 + DAY + 1)
    kept.keep([make(2)])
    wait_for(lambda: set(kept.find(["id-1", "id-2"])) == {"id-2"})
    kept.close()


def test_nothing_is_kept_if_nothing_is_to_be(tmp_path: Path) -> None:
    kept = KeptInputs(tmp_path, keep_seconds=0.0)
    kept.keep([make(1)])
    kept.flush()
    assert kept.find(["id-1"]) == {}
    assert [each.predictions for each in kept.hours()] == [1]
    kept.close()


def test_an_input_that_cant_be_stored_harms_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    kept.keep([make(1), make(2, "private \ud800"), KeptInput("id-3", 2**70, {}, "yes"), make(4)])
    wait_for(lambda: kept.lost == 2)
    kept.keep([make(5)])
    kept.flush()
    assert set(kept.find([f"id-{number}" for number in range(6)])) == {"id-1", "id-4", "id-5"}
    assert kept.going
    kept.close()
    assert "UnicodeEncodeError" in caplog.text
    assert "private" not in caplog.text
    assert not kept.going


def full(path: Path) -> sqlite3.Connection:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    raise error


def test_on_a_full_disk_inputs_wait_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = KeptInputs(tmp_path, keep_seconds=DAY)
    before.keep([make(0)])
    before.close()
    monkeypatch.setattr(kept_inputs, "RETRIED_EVERY", 0.1)
    with monkeypatch.context() as context:
        context.setattr(kept_inputs, "_open", full)
        kept = KeptInputs(tmp_path, keep_seconds=DAY, queue_length=3)
        kept.keep([make(1), make(2), make(3)])
        kept.keep([make(4)])
        kept.flush()
        kept.labelled([("id-3", True), ("id-0", True)])
        assert set(kept.find([f"id-{number}" for number in range(5)])) == {"id-1", "id-2"}
        assert [(each.predictions, each.labelled) for each in kept.hours()] == [(4, 2)]
        assert (kept.going, kept.lost) == (True, 1)
        with pytest.raises(sqlite3.OperationalError):
            kept.erase("id-0")  # it is still on the disk
    other = KeptInputs(tmp_path, keep_seconds=DAY)
    wait_for(lambda: set(other.find([f"id-{number}" for number in range(5)])) == {"id-1", "id-2"})
    assert [(each.predictions, each.labelled, each.right) for each in kept.hours()] == [(5, 2, 2)]
    assert kept.hours() == other.hours()
    kept.close()
    other.close()


def test_inputs_that_wait_have_a_bound_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "_open", full)
    monkeypatch.setattr(kept_inputs, "PENDING_BYTES", 10_000)
    kept = KeptInputs(tmp_path, keep_seconds=DAY)
    for number in range(20):
        kept.keep([make(number, "x" * 1000)])
    assert len(kept.find([f"id-{number}" for number in range(20)])) + kept.lost == 20
    assert 10 < kept.lost < 15
    kept.close()
    assert kept.lost == 20


def test_only_one_of_those_who_share_a_file_prunes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_inputs, "PRUNED_EVERY", 0.0)
    writer = KeptInputs(tmp_path, keep_seconds=DAY)
    writer.may_prune = lambda: True
    writer.keep([make(1)])
    writer.flush()
    reader = KeptInputs(tmp_path, keep_seconds=0.0)
    reader.keep([make(2)])
    reader.close()
    assert set(writer.find(["id-1", "id-2"])) == {"id-1"}
    writer.close()


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    kept = KeptInputs(None, keep_seconds=DAY)
    kept.keep([make(1)])
    kept.flush()
    assert kept.find(["id-1"]) == {}
    assert not kept.erase("id-1")
    assert [each.predictions for each in kept.hours()] == [1]
    kept.close()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / kept_inputs.FILE).write_text("not a database " * 100)
    with pytest.raises(SettingError, match="--state"):
        KeptInputs(tmp_path, keep_seconds=DAY)


def test_only_what_the_model_reads_is_kept(place: Path) -> None:
    with served(place) as (url, service), Client(url, retries=0) as client:
        schema = replace(service.rows.schema, ignored={"note": "not read"})
        service.rows = Rows(schema, longest=service.settings.limits.text)
        client.predict([{**ROW, "note": "\ud800" * 30_000}], ids=["a"])
        assert service.kept.find(["a"])["a"].row == ROW
        service.kept.flush()
        assert service.kept.lost == 0
        assert client.label({"a": "1"}) == ["added"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_that_keeps_nothing_any_more_is_not_ready(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError

    with served(place) as (url, service), Client(url, retries=0) as client:
        assert client.ready()
        with monkeypatch.context() as context:
            context.setattr(service.kept, "_write", fail)
            client.predict([ROW])
            wait_for(lambda: not client.ready())
        assert client.predict([ROW])


def test_a_service_that_only_reads_writes_nothing(place: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    with served(place, read_only=True, stores=False) as (url, service), Client(url, retries=0) as client:
        client.predict([ROW])
        assert client.ready()
        assert sum(each["predictions"] for each in client.status()["hours"]) == 1
        service.reload_now()
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
