"""Inputs kept for labels to come: durable soon, found at once, gone when erased or too old."""

import time
from pathlib import Path

import pytest

from recollect.errors import SettingError
from recollect.serving import kept_inputs
from recollect.serving.kept_inputs import KeptInput, KeptInputs
from tests.serving.server import wait_for

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


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / kept_inputs.FILE).write_text("not a database " * 100)
    with pytest.raises(SettingError, match="--state"):
        KeptInputs(tmp_path, keep_seconds=DAY)
