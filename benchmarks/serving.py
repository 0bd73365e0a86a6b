"""The service under mixed load: how long predictions take beside one bare product over the same keys, and how many
appends become durable meanwhile.

    python benchmarks/serving.py [--items 1900000] [--seconds 600] [--timeless]

A small model that may look at the whole history is served by `recollect serve`, a process of its own, from a history of
random items with 64-wide keys, the newest of which it was not trained on. Its queries prefer newer items, as those of
any model do at first, so that keys far back need not be read; with --timeless they don't, and every key is. Three
phases share the time, and in each of them predictions and appends go on together: one client predicting while items
arrive at a steady pace, 32 clients predicting at the same pace of items, and one client predicting while 16 append as
fast as they can. Every prediction must be of a version that has all that was acknowledged before it was asked. Then it
is killed and started again, to see how soon it is ready. Prints progress, and one JSON object as its last line.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from recollect.answering.live import TrainedOn
from recollect.client import Client, NewItem
from recollect.data.inference import infer_schema
from recollect.data.reading import read_all
from recollect.deployed import ROW, create_history
from recollect.trained import Trained
from recollect.training.progress import Display
from recollect.training.table import train_table

COLUMNS, KEY_DIM = 80, 64
START = np.datetime64("2010-01-01", "ns").astype(np.int64).item()
STEP = 200 * 10**9  # nanoseconds from item to item
PATIENCE = 600.0
CALL = "from recollect.cli import main; main()"


# What is served


def make_row(generator: np.random.Generator) -> dict[str, float]:
    return {f"x{place}": round(float(value), 4) for place, value in enumerate(generator.normal(size=COLUMNS))}


def make_model(folder: Path, items: int, untrained: int, *, timeless: bool = False) -> Trained:
    """A few steps of training: what it says is not looked at, only how long that takes."""
    generator = np.random.default_rng(0)
    rows = 3000
    table = pl.DataFrame(generator.normal(size=(rows, COLUMNS)), schema=[f"x{place}" for place in range(COLUMNS)])
    table = table.with_columns(
        (pl.col("x0") > 0).cast(pl.Int8).cast(pl.String).alias("label"),
        pl.Series("when", START + STEP * np.arange(rows)).cast(pl.Datetime("ns")),
    )
    schema = infer_schema(table, time="when", label="label")
    events, _ = read_all(table, schema)
    with Display() as display:
        model = train_table(events, schema, cache=folder, steps=20, display=display, embedder=None)
    assert model.keys.key_dim == KEY_DIM, model.keys.key_dim
    until = START + STEP * max(0, items - untrained)
    model = replace(model, window=None, trained_on=TrainedOn(until))
    if timeless:
        assert model.system.recency is not None
        model.system.recency.initial.mul_(1e-9)
    model.save(folder / "model")
    return model


def make_history(folder: Path, model: Trained, items: int, chunk: int = 100_000) -> None:
    generator = np.random.default_rng(1)
    (spec,) = model.specs
    with create_history(folder / "history", model) as writer:
        for first in range(0, items, chunk):
            numbers = np.arange(first, min(items, first + chunk))
            times = START + STEP * numbers
            keys = generator.normal(size=(len(numbers), KEY_DIM)).astype(np.float32)
            writer.append(
                {
                    "id": [f"item-{number}" for number in numbers.tolist()],
                    "time": times,
                    "known_at": times,
                    "label": [str(number % 2) for number in numbers.tolist()],
                    "key": keys,
                    ROW: ['{"x0": 0.5}'] * len(numbers),
                    spec.name: generator.normal(size=(len(numbers), spec.width)).astype(np.float32),
                }
            )
        writer.compact()


def product_ms(folder: Path, model: Trained, repeats: int = 15) -> float:
    """One blocked product of one input's queries over all keys, the median of some."""
    from recollect.history.reader import History

    keys = torch.from_numpy(np.ascontiguousarray(History.open(folder / "history").snapshot.column("key")))
    count = len(model.system.group_sizes or ()) or model.recipe.model.num_retrieved
    queries = torch.randn(count, KEY_DIM)
    block = 1 << 14
    out = torch.empty(count, block)
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        for part in keys.split(block):
            torch.mm(queries, part.T, out=out[:, : len(part)] if len(part) < block else out)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken)


# The server


class Server:
    """`recollect serve` in a process of its own."""

    def __init__(self, folder: Path, *, history: str = "history") -> None:
        self.log = folder / f"log-{time.monotonic_ns()}"
        began = time.perf_counter()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CALL, "serve", folder / "model", "--history", folder / history, "--port", "0"],
                stderr=log,
                stdout=log,
            )
        self.url = self._wait(self._address)
        with Client(self.url) as client:
            self._wait(client.ready)
        self.ready_s = time.perf_counter() - began

    def _address(self) -> str:
        found = re.search(r"running on (http://[^ ]+)", self.log.read_text())
        return found.group(1) if found else ""

    def _wait(self, what: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := what()):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the server did not come up: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)
        return found

    def memory_mb(self) -> float:
        """Its own, not what it has mapped of files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found.group(1)) / 1024 if found else 0.0

    def metric(self, name: str) -> float:
        import urllib.request

        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and "#" not in line)

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)


# The load


class Load:
    """Clients in threads, for some seconds; counts what they did and what went wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.latencies: list[float] = []
        self.appended = 0
        self.errors: list[str] = []
        self._version = 0
        self._names = itertools.count()
        self._going = threading.Event()

    def run(self, seconds: float, *, predicting: int, appending: int, per_second: float | None = None) -> None:
        """With `per_second`, appenders keep that pace together instead of going as fast as they can."""
        self._going.set()
        pause = 0.0 if per_second is None else appending / per_second
        threads = [threading.Thread(target=self._guarded, args=(self._predict, place)) for place in range(predicting)]
        threads += [
            threading.Thread(target=self._guarded, args=(self._append, place, pause)) for place in range(appending)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._going.clear()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self.errors.append(repr(error))

    def _predict(self, place: int) -> None:
        generator = np.random.default_rng(place)
        with Client(self.url, retries=0) as client:
            while self._going.is_set():
                row, known = make_row(generator), self._version
                began = time.perf_counter()
                (found,) = client.predict([row])
                self.latencies.append(1000 * (time.perf_counter() - began))
                if found.version < known:
                    self.errors.append(f"version {known} was acknowledged, the answer rests on {found.version}")

    def _append(self, place: int, pause: float) -> None:
        generator = np.random.default_rng(1000 + place)
        with Client(self.url, retries=0) as client:
            while self._going.is_set():
                began = time.perf_counter()
                name = f"new-{time.time_ns()}-{next(self._names)}"
                body = {"items": [vars(NewItem(name, make_row(generator), str(place % 2)))]}
                version = client._send("POST", "/items", body)["version"]
                self._version = max(self._version, version)
                self.appended += 1
                time.sleep(max(0.0, pause - (time.perf_counter() - began)))


def quantile(values: list[float], share: float) -> float:
    return round(float(np.quantile(values, share)), 2) if values else float("nan")


def run(
    folder: Path, items: int, seconds: float, pace: float, untrained: int, timeless: bool = False
) -> dict[str, Any]:
    model = make_model(folder, items, untrained, timeless=timeless)
    began = time.perf_counter()
    make_history(folder, model, items)
    print(f"a history of {items} items, made in {time.perf_counter() - began:.0f} s", flush=True)
    bare = product_ms(folder, model)
    print(f"one bare product: {bare:.1f} ms", flush=True)
    server = Server(folder)
    result: dict[str, Any] = {"items": items, "timeless": timeless, "first_ready_s": round(server.ready_s, 2)}
    print(f"ready for the first time after {server.ready_s:.1f} s", flush=True)
    errors: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: server.process.kill())
        warm = Load(server.url)
        warm.run(min(5.0, seconds / 10), predicting=2, appending=2, per_second=pace)
        before = server.memory_mb()
        one = Load(server.url)
        one.run(seconds / 3, predicting=1, appending=1, per_second=pace)
        print(f"one client: {len(one.latencies)} predictions, {one.appended} appends", flush=True)
        many = Load(server.url)
        many.run(seconds / 3, predicting=32, appending=1, per_second=pace)
        print(f"32 clients: {len(many.latencies)} predictions, {many.appended} appends", flush=True)
        lag = [server.metric(f"recollect_visible_lag_seconds_{part}") for part in ("sum", "count")]
        middle = server.memory_mb()
        fast = Load(server.url)
        fast.run(seconds / 3, predicting=1, appending=16)
        print(f"16 appending: {len(fast.latencies)} predictions, {fast.appended} appends", flush=True)
        fast_lag = [server.metric(f"recollect_visible_lag_seconds_{part}") for part in ("sum", "count")]
        after = server.memory_mb()
        errors = [*warm.errors, *one.errors, *many.errors, *fast.errors]
        for error in errors[:5]:
            print(f"error: {error}", flush=True)
        server.end(signal.SIGKILL)
        again = product_ms(folder, model)
        second = Server(folder)
        stack.callback(lambda: second.process.kill())
        second.end()
    result |= {
        "p50_ms": quantile(one.latencies, 0.5),
        "p99_ms": quantile(one.latencies, 0.99),
        "product_ms": round((bare + again) / 2, 2),
        "throughput_32": round(len(many.latencies) / (seconds / 3), 1),
        "p99_32_ms": quantile(many.latencies, 0.99),
        "appends_per_s": round(fast.appended / (seconds / 3), 1),
        "p50_while_appending_ms": quantile(fast.latencies, 0.5),
        "visible_lag_ms": round(1000 * lag[0] / max(1.0, lag[1]), 2),
        "visible_lag_while_appending_ms": round(1000 * (fast_lag[0] - lag[0]) / max(1.0, fast_lag[1] - lag[1]), 2),
        "ready_after_kill_s": round(second.ready_s, 2),
        "memory_mb": round(after, 1),
        "memory_growth_mb": round(after - before, 1),
        "memory_growth_predicting_mb": round(middle - before, 1),
        "threads": torch.get_num_threads(),
        "errors": len(errors),
    }
    return result


@contextlib.contextmanager
def place(given: Path | None) -> Iterator[Path]:
    if given is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        given.mkdir(parents=True)
        yield given


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=1_900_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--pace", type=float, default=5.0, help="items a second in the first two phases")
    parser.add_argument("--untrained", type=int, default=10_000, help="newest items that the model was not trained on")
    parser.add_argument("--timeless", action="store_true", help="queries that don't mind how old an item is")
    parser.add_argument("--folder", type=Path, help="a new folder to work in and leave", default=None)
    arguments = parser.parse_args()
    os.environ.pop("RECOLLECT_TOKEN", None)
    with place(arguments.folder) as folder:
        result = run(
            folder, arguments.items, arguments.seconds, arguments.pace, arguments.untrained, arguments.timeless
        )
    print(json.dumps(result))
    if result["errors"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
