"""The service as a process: killed, stopped, told to load its model anew, and with no room on its disk."""

import json
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.client import Client, NewItem, ServiceError, ServiceUnreachable
from recollect.errors import CheckpointError, HistoryError, SettingError
from recollect.history.reader import History
from tests.serving.server import PATIENCE, ServerProcess, wait_for
from tests.serving.test_service import ROW


class Load:
    """Threads that predict, append and label until they are told to stop, and remember what was acknowledged."""

    def __init__(self, url: str, life: int) -> None:
        self.url, self.life = url, life
        self.acknowledged: dict[str, str] = {}
        self.failures: list[str] = []
        self.going = True
        self._threads = [threading.Thread(target=each) for each in (self._append, self._label)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.going = False
        for thread in self._threads:
            thread.join()

    def _append(self) -> None:
        with Client(self.url, retries=0) as client:
            for number in range(100_000):
                name, label = f"item-{self.life}-{number}", str(number % 2)
                if not self._try(lambda name=name, label=label: client.add([NewItem(name, ROW, label)])):  # type: ignore[misc]
                    return
                self.acknowledged[name] = label

    def _label(self) -> None:
        with Client(self.url, retries=0) as client:
            for number in range(100_000):
                name, label = f"asked-{self.life}-{number}", str(number % 2)
                if not self._try(lambda name=name: client.predict([ROW], ids=[name])):  # type: ignore[misc]
                    return
                if not self._try(lambda name=name, label=label: client.label({name: label})):  # type: ignore[misc]
                    return
                self.acknowledged[name] = label

    def _try(self, call: Any) -> bool:
        if not self.going:
            return False
        try:
            call()
        except ServiceUnreachable:
            return False
        except ServiceError as error:
            self.failures.append(str(error))
        return True


def test_killed_again_and_again_it_keeps_what_it_acknowledged(place: Path) -> None:
    chance = random.Random(0)
    expected: dict[str, str] = {}
    for life in range(3):
        with ServerProcess(place) as server:
            load = Load(server.url, life)
            wait_for(lambda load=load: len(load.acknowledged) > 10 + chance.randrange(10))
            server.kill()
            load.stop()
            assert not load.failures
            expected |= load.acknowledged
    view = History.open(place / "history").snapshot.as_of(time.time_ns() + 10**9)
    ids = view.column("id").tolist()
    found = dict(zip(ids, [view.snapshot.classes[code] for code in view.column("label")], strict=True))
    assert len(found) == len(ids)  # each exactly once
    assert {name: found.get(name) for name in expected} == expected


def test_it_ends_in_order_and_loads_anew_under_load(place: Path) -> None:
    with ServerProcess(place) as server:
        load = Load(server.url, 0)
        wait_for(lambda: len(load.acknowledged) > 3)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: any("was loaded in place of" in line["message"] for line in server.lines()))
        after = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > after + 3)
        assert server.stop() == 0
        load.stop()
        # What was asked too late was sent elsewhere; nothing else went wrong.
        assert not [each for each in load.failures if "closing" not in each]
        found = History.open(place / "history").snapshot.find(list(load.acknowledged))
        assert (found >= 0).all()
        assert all(line["level"] == "info" for line in server.lines())


def test_predictions_go_on_when_the_disk_is_full(place: Path) -> None:
    """No file may grow beyond a few kB more than the history's log has: as on a full disk, writing fails for real."""
    largest = max(path.stat().st_size for path in (place / "history").rglob("*") if path.is_file()) + 40_000
    before = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, resource.RLIM_INFINITY))"
    with ServerProcess(place, before=before) as server, server.client(retries=0) as client:
        count, refusal = 0, None
        while refusal is None and count < 200:
            try:
                client.add([NewItem(f"{count}-{number}", ROW, "1") for number in range(100)])
                count += 1
            except ServiceError as error:
                refusal = error
        assert refusal is not None
        assert (refusal.status, refusal.kind) == (507, "no-room")
        assert client.predict([ROW])[0].label in ("0", "1")
        with pytest.raises(ServiceError, match="507"):
            client.add([NewItem(f"more-{number}", ROW, "1") for number in range(100)])
        item = client.item(f"{count - 1}-99")
        assert item is not None
        assert client.item(f"{count}-0") is None
        # There is room again, and the same process goes on.
        subprocess.run(["prlimit", f"--pid={server.process.pid}", "--fsize=unlimited"], check=True)
        assert client.add([NewItem(f"{count}-0", ROW, "1")]) == ["added"]
        assert client.item(f"{count}-0") is not None
        server.stop()
    snapshot = History.open(place / "history").snapshot
    assert snapshot.num_rows == 360 + 100 * count + 1


def test_a_model_that_can_not_be_made_ready_ends_it(place: Path) -> None:
    broken = """
from recollect.deployed import Deployed
def features(self, columns):
    raise ValueError("these numbers don't fit")
Deployed.features = features
"""
    with ServerProcess(place, before=broken) as server:
        assert server.process.wait(PATIENCE) == 1
        assert server.log.read_text().splitlines()[-1] == (
            "recollect: the model could not be made ready: these numbers don't fit"
        )


def test_it_can_be_stopped_before_it_is_ready(place: Path) -> None:
    slow = """
import time
from recollect.answering.live import Live
score = Live._score
def slowly(self, *arguments):
    print("scoring", flush=True)
    time.sleep(0.2)
    return score(self, *arguments)
Live._score = slowly
import recollect.answering.live
recollect.answering.live.CHUNK = 1
"""
    with ServerProcess(place, before=slow) as server:
        wait_for(lambda: "scoring" in server.log.read_text())
        assert server.stop() == 0
        assert server.log.read_text().count("scoring") < 40


def test_mistakes_at_the_start_are_named(place: Path) -> None:
    def start(*arguments: Any) -> None:
        CliRunner().invoke(app, ["serve", *map(str, arguments)], catch_exceptions=False)

    history = ["--history", place / "history"]
    with pytest.raises(SettingError, match="RECOLLECT_TOKEN"):
        start(place / "model", *history, "--host", "0.0.0.0")
    with pytest.raises(HistoryError, match="no history"):
        start(place / "model", "--history", place / "nothing")
    weights = place / "model" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="checksums"):
        start(place / "model", *history)


def test_a_history_that_cant_be_written_is_one_line(place: Path) -> None:
    before = (
        "from recollect.history.writer import HistoryWriter\n"
        "def refuse(*arguments, **named): raise OSError(30, 'Read-only file system', 'lock')\n"
        "HistoryWriter.open = refuse"
    )
    with ServerProcess(place, before=before) as server:
        assert server.process.wait(PATIENCE) == 1
        (line,) = server.log.read_text().splitlines()
        assert "--read-only" in line


def test_every_line_of_the_log_is_json(place: Path) -> None:
    before = (
        "import threading, warnings\n"
        "from recollect.serving import guard\n"
        "log_as_json = guard.log_as_json\n"
        "def fail(): raise ValueError('private')\n"
        "def log():\n"
        "    log_as_json()\n"
        "    warnings.warn('private', UserWarning)\n"
        "    thread = threading.Thread(target=fail, name='some-thread'); thread.start(); thread.join()\n"
        "    raise ValueError('private')\n"
        "import recollect.serving.run as run; run.log_as_json = log"
    )
    with ServerProcess(place, before=before) as server:
        assert server.process.wait(PATIENCE) == 1
        text = server.log.read_text()
        lines = [json.loads(line) for line in text.splitlines()]
    assert "private" not in text
    assert [line["level"] for line in lines] == ["warning", "critical", "critical"]
    assert "UserWarning" in lines[0]["message"]
    assert "some-thread" in lines[1]["message"]
    assert {line["error"] for line in lines[1:]} == {"ValueError"}
