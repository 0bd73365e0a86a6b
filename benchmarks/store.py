"""Fetching rows of a history, cold and warm, beside np.memmap; and how fast appends become durable.

    python benchmarks/store.py

Fetches are timed in turns, so that a busy moment of the machine falls on all alike, and the median of each is kept.
Cold means that the pages of the file were dropped before. The rows are drawn anew each time. np.memmap indexes a plain
file of the same rows, which is what the paper does. Prints progress, and one JSON object as its last line.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import HistoryWriter

WIDE = Schema(key=Key(1, "float16"), features=(Column("embedding", "float16", (4096,)),), id="integer", time="number")
# What a service would append: a key, a sentence's embedding, a few fields to show again.
PLAIN = Schema(
    key=Key(64),
    features=(Column("embedding", "float16", (384,)), Column("country", "int32")),
    payload=pa.schema([("text", pa.string()), ("amount", pa.float64())]),
)


# Fetching


def write_both(folder: Path, rows: int, chunk: int = 10_000) -> tuple[Path, Path]:
    """The same rows as a history and as a plain file."""
    history, plain = folder / "history", folder / "plain.bin"
    generator = np.random.default_rng(0)
    with HistoryWriter.create(history, WIDE) as writer, plain.open("wb") as file:
        for start in range(0, rows, chunk):
            numbers = np.arange(start, min(rows, start + chunk))
            wide = generator.integers(0, 1 << 15, (len(numbers), 4096), np.uint16).view(np.float16)
            file.write(wide.tobytes())
            columns = dict(id=numbers, time=numbers, label=numbers % 2, key=np.zeros((len(numbers), 1), np.float16))
            writer.append({**columns, "embedding": wide})
        writer.compact()
        file.flush()
        os.fsync(file.fileno())
    return history, plain


def drop_pages(path: Path) -> None:
    """Take a file, or all of a directory, out of the page cache."""
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def touch_pages(path: Path) -> None:
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        with file.open("rb") as opened:
            while opened.read(1 << 24):
                pass


def compare_fetches(folder: Path, rows: int, wanted: int, repeats: int) -> dict[str, float]:
    history, plain = write_both(folder, rows)
    print(f"{rows} rows of 4,096 x float16 written twice", flush=True)
    snapshot = History.open(history).snapshot
    mapped = np.memmap(plain, np.float16, "r").reshape(rows, 4096)
    generator = np.random.default_rng(1)
    rates: dict[str, list[float]] = {}

    def measure(name: str, fetch: Callable[[np.ndarray[Any, Any]], Any], path: Path, *, cold: bool) -> None:
        chosen = generator.integers(0, rows, wanted)
        if cold:
            drop_pages(path)
        begin = time.perf_counter()
        fetch(chosen)
        rates.setdefault(name, []).append(wanted / (time.perf_counter() - begin))

    def by_memmap(chosen: np.ndarray[Any, Any]) -> Any:
        return mapped[chosen]

    def by_us(chosen: np.ndarray[Any, Any]) -> Any:
        return snapshot.fetch(chosen)["embedding"]

    check_same(snapshot, mapped, generator.integers(0, rows, 100))
    for repeat in range(repeats):
        # A map keeps its own hold on pages, which dropping them does not loosen.
        del mapped
        mapped = np.memmap(plain, np.float16, "r").reshape(rows, 4096)
        snapshot = History.open(history).snapshot
        measure("memmap_cold", by_memmap, plain, cold=True)
        measure("ours_cold", by_us, history, cold=True)
        shown = {name: round(values[-1]) for name, values in rates.items()}
        print(f"cold {repeat + 1} of {repeats}: {shown} rows/s", flush=True)
    touch_pages(plain)
    touch_pages(history)
    for _ in range(2 * rows // wanted):  # both maps have met all their pages, as after a while of training
        by_memmap(generator.integers(0, rows, wanted))
        by_us(generator.integers(0, rows, wanted))
    for _ in range(3 * repeats):
        measure("memmap_warm", by_memmap, plain, cold=False)
        measure("ours_warm", by_us, history, cold=False)
    result = {name: round(statistics.median(values)) for name, values in rates.items()}
    print(f"medians: {result} rows/s", flush=True)
    return {
        **result,
        "cold_times_memmap": round(result["ours_cold"] / result["memmap_cold"], 2),
        "warm_times_memmap": round(result["ours_warm"] / result["memmap_warm"], 2),
    }


def check_same(snapshot: Snapshot, mapped: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]) -> None:
    ours = snapshot.fetch(chosen)["embedding"].view(torch.int16).numpy()
    if not np.array_equal(ours, mapped[chosen].view(np.int16)):
        raise SystemExit("the history and the plain file hold different rows")


# Appending


def plain_items(start: int, count: int, generator: np.random.Generator) -> dict[str, Any]:
    numbers = range(start, start + count)
    return {
        "id": [f"order-{number:010d}" for number in numbers],
        "time": np.arange(start, start + count) * 1_000_000_000,
        "label": np.arange(start, start + count) % 5,
        "key": generator.standard_normal((count, 64), np.float32),
        "embedding": generator.standard_normal((count, 384), np.float32).astype(np.float16),
        "country": np.arange(start, start + count, dtype=np.int32) % 200,
        "text": [f"what was said about order {number}, in a sentence or two" for number in numbers],
        "amount": np.arange(start, start + count) * 0.01,
    }


def batches(first: int, count: int, size: int) -> Iterator[dict[str, Any]]:
    generator = np.random.default_rng(2)
    for start in range(first, first + count, size):
        yield plain_items(start, min(size, first + count - start), generator)


def measure_appends(folder: Path, already: int, added: int, singles: int) -> dict[str, float]:
    path = folder / "appended"
    with HistoryWriter.create(path, PLAIN) as writer:
        for batch in batches(0, already, 100_000):
            writer.append(batch)
        print(f"{already} items there before", flush=True)
        seconds = []
        for batch in batches(already, added, 1000):
            begin = time.perf_counter()
            writer.append(batch)
            seconds.append(time.perf_counter() - begin)
        print(f"{added} items appended in batches of 1,000; the slowest took {1e3 * max(seconds):.0f} ms", flush=True)
        alone, raw = [], []
        with (folder / "raw").open("wb", buffering=0) as file:
            for batch in batches(already + added, singles, 1):
                begin = time.perf_counter()
                writer.append(batch)
                alone.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                file.write(bytes(1500))  # about as long as the record of one such item
                os.fsync(file.fileno())
                raw.append(time.perf_counter() - begin)
    return {
        "items_before": already,
        "append_items_per_s": round(added / sum(seconds)),
        "append_batch_max_ms": round(1e3 * max(seconds), 2),
        "append_p50_ms": round(1e3 * float(np.percentile(alone, 50)), 2),
        "append_p99_ms": round(1e3 * float(np.percentile(alone, 99)), 2),
        "fsync_p50_ms": round(1e3 * float(np.percentile(raw, 50)), 2),
        "fsync_p99_ms": round(1e3 * float(np.percentile(raw, 99)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--wanted", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--items-before", type=int, default=0, help="items the history holds before appends are timed")
    parser.add_argument("--items", type=int, default=200_000, help="items appended in batches of 1,000")
    parser.add_argument("--singles", type=int, default=2000, help="items appended one by one")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result: dict[str, Any] = {"rows": arguments.rows, "wanted": arguments.wanted}
        result |= compare_fetches(Path(folder), arguments.rows, arguments.wanted, arguments.repeats)
        result |= measure_appends(Path(folder), arguments.items_before, arguments.items, arguments.singles)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
