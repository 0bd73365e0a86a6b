"""A writer killed at random moments, again and again; after each time every acknowledged change must be there.

    python benchmarks/crash.py [--kills 500]

A child process appends, corrects and erases items, with sealing, merging and compaction happening all the time, and
says before and after each change what it is. It is killed with SIGKILL. Then the history must hold every change that
was acknowledged, and of the one under way all or nothing; every byte must match its checksum, and the next writer
must be able to go on. Prints progress, and one JSON object as its last line. Exits with 1 at the first failure.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recollect.history.compaction import Limits
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter

# Sealed after a few appends and merged after a few seals, so that a kill often falls into either.
LIMITS = Limits(seal_rows=30, merge_width=3)
SCHEMA = Schema(
    key=Key(4), features=(Column("wide", "float16", (64,)),), time="number", payload=pa.schema([("text", pa.string())])
)
LIVES = 50  # of a history, before a new one is begun

Change = tuple[str, list[int], int]
"""What is done ("append", "correct", "erase"), to which items, and the label they get."""


def items(numbers: list[int], label: int) -> dict[str, Any]:
    """Items whose content follows from their numbers."""
    values = np.array(numbers, np.float64)
    return {
        "id": [f"item-{number}" for number in numbers],
        "time": values,
        "label": np.full(len(numbers), label),
        "key": values[:, None] + np.arange(4),
        "wide": (values[:, None] % 1000 + np.arange(64)).astype(np.float16),
        "text": [f"text of {number}" for number in numbers],
    }


# The child


def changes(seed: int, first: int, there: list[int]) -> Iterator[Change]:
    """An endless sequence of changes that fit what is there."""
    chance, there, number = random.Random(seed), list(there), first
    while True:
        label = chance.randrange(100)
        kind = chance.random()
        if kind < 0.7 or len(there) < 10:
            count = chance.choice([1, 1, 1, 5, 20, 50])
            new = list(range(number, number + count))
            number += count
            there += new
            yield "append", new, label
        elif kind < 0.85:
            yield "correct", [chance.choice(there)], label
        elif kind < 0.95:
            gone = chance.sample(there, 3)
            there = [each for each in there if each not in gone]
            yield "erase", gone, 0
        else:
            yield "compact", [], 0


def write_until_killed(path: Path, pipe: int, seed: int, first: int, there: list[int]) -> None:
    with HistoryWriter.open(path, limits=LIMITS) as writer:
        os.write(pipe, b"ready\n")
        for change in changes(seed, first, there):
            os.write(pipe, json.dumps(change).encode() + b"\n")
            apply(writer, change)
            os.write(pipe, b"done\n")


def apply(writer: HistoryWriter, change: Change) -> None:
    kind, numbers, label = change
    if kind == "append":
        writer.append(items(numbers, label))
    elif kind == "correct":
        writer.correct(f"item-{numbers[0]}", label, 1e9)
    elif kind == "erase":
        writer.erase([f"item-{number}" for number in numbers])
    else:
        writer.compact()


# The parent


def applied(expected: dict[int, int], change: Change) -> dict[int, int]:
    """The items that are there, with their labels, after a change."""
    kind, numbers, label = change
    if kind == "erase":
        return {number: label for number, label in expected.items() if number not in numbers}
    return expected | dict.fromkeys(numbers, label)


def kill_once(path: Path, seed: int, expected: dict[int, int], first: int) -> tuple[dict[int, int], Change | None, int]:
    """What must be there afterwards, the change that was under way, and how many were acknowledged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            write_until_killed(path, writing, seed, first, sorted(expected))
        except BaseException as error:
            os.write(writing, f"failed: {error!r}\n".encode())
        os._exit(1)
    os.close(writing)
    chance = random.Random(seed)
    with os.fdopen(reading) as lines:
        said = []
        if chance.random() < 0.2:  # while it opens the history, and mends what the last one left
            time.sleep(chance.uniform(0, 0.1))
        else:
            said.append(lines.readline())
            time.sleep(chance.uniform(0, 0.5))
        os.kill(child, signal.SIGKILL)
        said += lines.readlines()
        os.waitpid(child, 0)
    under_way: Change | None = None
    acknowledged = 0
    for line in said:
        if line == "ready\n":
            continue
        if line == "done\n":
            assert under_way is not None
            expected, under_way, acknowledged = applied(expected, under_way), None, acknowledged + 1
        elif line.startswith("failed"):
            raise AssertionError(line)
        elif line.endswith("]\n"):  # the last line may have been cut off in the pipe, before its change began
            kind, numbers, label = json.loads(line)
            under_way = (kind, numbers, label)
    return expected, under_way, acknowledged


def found_in(path: Path) -> dict[int, int]:
    """What a reader finds; raises if any item is not whole."""
    problems = verify(path)
    if problems:
        raise AssertionError("; ".join(problems))
    view = History.open(path).as_of(1e10)
    numbers = [int(name.removeprefix("item-")) for name in view.column("id").tolist()]
    if len(set(numbers)) < len(numbers):
        raise AssertionError("an id is there twice")
    made = items(numbers, 0)
    fetched = view.fetch(["wide", "key"])
    whole = np.array_equal(fetched["wide"].numpy(), made["wide"]) and np.array_equal(
        fetched["key"].numpy(), made["key"]
    )
    if not whole or view.payload().column("text").to_pylist() != made["text"]:
        raise AssertionError("an item is not what was appended")
    return dict(zip(numbers, view.column("label").tolist(), strict=True))


def run(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    changes_acknowledged = under_way_kept = seals = 0
    expected: dict[int, int] = {}
    first = 0
    for kill in range(kills):
        path = folder / f"life-{kill // LIVES}"
        if kill % LIVES == 0:
            HistoryWriter.create(path, SCHEMA).close()
            expected = {}
        expected, under_way, acknowledged = kill_once(path, seed + kill, expected, first)
        changes_acknowledged += acknowledged
        found = found_in(path)
        if under_way is not None and under_way[0] != "compact" and found == applied(expected, under_way):
            expected, under_way_kept = found, under_way_kept + 1
        if found != expected:
            lost = sorted(set(expected) - set(found))[:5]
            raise AssertionError(f"kill {kill}: of what was acknowledged {lost or 'a label'} is missing or changed")
        first = max([first, *found, *(under_way[1] if under_way else [])]) + 1
        seals = sum(max(int(log.stem.removeprefix("log-")) for log in life.glob("log-*")) for life in folder.iterdir())
        if (kill + 1) % 25 == 0 or kill + 1 == kills:
            print(f"kill {kill + 1}: {len(found)} items there, {changes_acknowledged} changes acknowledged", flush=True)
    return {
        "kills": kills,
        "changes_acknowledged": changes_acknowledged,
        "changes_lost": 0,
        "changes_half_there": 0,
        "unacknowledged_but_whole": under_way_kept,
        "manifests_written": seals,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = run(arguments.kills, arguments.seed, Path(folder))
        except AssertionError as error:
            print(f"failed: {error}")
            sys.exit(1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
