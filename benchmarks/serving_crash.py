"""A service killed under mixed load, again and again; after each time everything acknowledged must be there once.

    python -m benchmarks.serving_crash [--kills 50] [--items 1900000]

Clients append items, ask for predictions and label them, and write down what was acknowledged. The service is killed
with SIGKILL at a random moment. Started again, it must be ready soon, hold every acknowledged item and label exactly
once with its label, and answer. Prints progress, and one JSON object as its last line. Exits with 1 at the first
failure.
"""

import argparse
import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import Server, make_history, make_model, make_row, place
from recollect.client import Client, NewItem, ServiceError, ServiceUnreachable
from recollect.history.reader import History


class Clients:
    """Some that append and some that ask and label, until the service is gone."""

    def __init__(self, url: str, life: int, count: int = 3) -> None:
        self.url, self.life = url, life
        self.acknowledged: dict[str, str] = {}
        self.failures: list[str] = []
        work = [self._append] * count + [self._label] * count
        self._threads = [threading.Thread(target=each, args=(number,)) for number, each in enumerate(work)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _append(self, number: int) -> None:
        self._go(number, "item", lambda client, name, row, label: client.add([NewItem(name, row, label)]))

    def _label(self, number: int) -> None:
        def both(client: Client, name: str, row: dict[str, float], label: str) -> Any:
            client.predict([row], ids=[name])
            return client.label({name: label})

        self._go(number, "asked", both)

    def _go(self, number: int, kind: str, act: Any) -> None:
        generator = np.random.default_rng([self.life, number])
        with Client(self.url, retries=0) as client:
            for count in range(10**9):
                name, label = f"{kind}-{self.life}-{number}-{count}", str(count % 2)
                try:
                    act(client, name, make_row(generator), label)
                except ServiceUnreachable:
                    return
                except ServiceError as error:
                    self.failures.append(str(error))
                    return
                self.acknowledged[name] = label


def check(folder: Path, expected: dict[str, str]) -> int:
    """Raises if anything acknowledged is not there exactly once; returns how many items there are."""
    snapshot = History.open(folder / "history").snapshot
    names = list(expected)
    rows = snapshot.find(names)
    for name, row in zip(names, rows.tolist(), strict=True):
        if row < 0:
            raise AssertionError(f"{name} was acknowledged and is not there")
        if snapshot.classes[int(snapshot.column("label", row, row + 1)[0])] != expected[name]:
            raise AssertionError(f"{name} has another label than was acknowledged")
    newest = snapshot.column("id", max(0, snapshot.num_rows - 2 * len(expected) - 1000))
    if len(set(newest.tolist())) < len(newest):
        raise AssertionError("an id is there twice")
    return snapshot.num_rows


def run(folder: Path, kills: int, items: int, longest: float, untrained: int) -> dict[str, Any]:
    chance = random.Random(0)
    model = make_model(folder, items, untrained)
    make_history(folder, model, items)
    expected: dict[str, str] = {}
    server = Server(folder)
    print(f"ready for the first time after {server.ready_s:.1f} s", flush=True)
    ready = []
    for kill in range(kills):
        clients = Clients(server.url, kill)
        time.sleep(chance.uniform(0.2, longest))
        server.end(signal.SIGKILL)
        clients.join()
        if clients.failures:
            raise AssertionError(clients.failures[0])
        expected |= clients.acknowledged
        server = Server(folder)
        ready.append(server.ready_s)
        rows = check(folder, expected)
        print(
            f"kill {kill + 1}: {len(expected)} acknowledged, {rows} rows, ready after {server.ready_s:.2f} s",
            flush=True,
        )
    server.end()
    return {
        "kills": kills,
        "items": items,
        "acknowledged": len(expected),
        "lost": 0,
        "twice": 0,
        "ready_s_median": round(float(np.median(ready)), 2),
        "ready_s_most": round(max(ready), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--items", type=int, default=1_900_000)
    parser.add_argument("--longest", type=float, default=5.0, help="seconds of load before a kill, at most")
    parser.add_argument("--untrained", type=int, default=10_000, help="newest items that the model was not trained on")
    parser.add_argument("--folder", type=Path, help="a new folder to work in and leave", default=None)
    arguments = parser.parse_args()
    with place(arguments.folder) as folder:
        try:
            result = run(folder, arguments.kills, arguments.items, arguments.longest, arguments.untrained)
        except AssertionError as error:
            print(f"failed: {error}")
            sys.exit(1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
