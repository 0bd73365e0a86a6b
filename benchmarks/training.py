"""Training on a history many times larger than the process: its peak memory, beside what `recollect plan` says.

    python benchmarks/training.py [--directory DIR --keep]

Writes a history (with the defaults 8.2 GB), and trains on it with the default recipe in a process of its own, whose
anonymous memory (RssAnon: what it allocated, without the files it has mapped) is watched from here. Nothing is
subtracted: `imported_bytes` is what the process had when it had only imported what it needs. The history is removed
at the end unless kept; one that is kept is used again. Prints progress, and one JSON object as its last line.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from recollect.config import RECIPES, chains_for, with_model
from recollect.history.compaction import Limits
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.key_table import KeyTable
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from recollect.inputs import Lookup
from recollect.planning.plan import predict
from recollect.planning.sizes import Sizes, show_bytes
from recollect.records import FeatureSpec
from recollect.reproduction.memory_step import read_sizes
from recollect.reproduction.peak import anonymous_bytes, run_apart
from recollect.training.batches import HistoryRows, known_before
from recollect.training.loop import Run, train
from recollect.training.objective import make_objective
from recollect.training.progress import Display

ROWS_AT_ONCE = 32_768
"""Per append, and so per segment; the files of much smaller segments would be held in memory whole."""

CUTOFF = 0.9
"""Items known before it are trained with, and the last tenth of those validated with; times run from 0 to 1."""


# The history


def schema_of(sizes: Sizes) -> Schema:
    embedding = Column("embedding", sizes.feature_type, (sizes.feature_width,))
    return Schema(key=Key(sizes.key_dim, sizes.key_type), features=(embedding,), id="integer", time="number")


def appends(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Items whose embedding begins with their key, and their key with their label; the rest of it is noise.

    Embeddings are about 1 long, as they come from encoders. To save time the noise of one append is that of all; only
    its place on disk matters here.
    """
    generator, scale = np.random.default_rng(0), sizes.feature_width**-0.5
    noise = generator.standard_normal((min(sizes.items, ROWS_AT_ONCE), sizes.feature_width), np.float32)
    embedding = (scale * noise).astype(sizes.feature_type)
    for first in range(0, sizes.items, ROWS_AT_ONCE):
        numbers = np.arange(first, min(sizes.items, first + ROWS_AT_ONCE))
        labels = generator.integers(0, sizes.classes, len(numbers))
        key = generator.standard_normal((len(numbers), sizes.key_dim), np.float32)
        key[:, : sizes.classes] += 3.0 * np.eye(sizes.classes, dtype=np.float32)[labels]
        embedding[: len(numbers), : sizes.key_dim] = scale * key
        yield {
            "id": numbers,
            "time": numbers / sizes.items,
            "label": labels,
            "key": key.astype(sizes.key_type),
            "embedding": embedding[: len(numbers)],
        }


def write_history(path: Path, sizes: Sizes, console: Console) -> None:
    """As large appends leave it, in several segments; the keys of these are joined in memory."""
    total = -(-sizes.items // ROWS_AT_ONCE)
    with HistoryWriter.create(path, schema_of(sizes), limits=Limits(background=False)) as writer:
        for items in track(appends(sizes), "writing the history", total, console=console):
            writer.append(items)
        writer.seal()  # what is in the log would be held in memory


@contextlib.contextmanager
def history_at(directory: Path | None, sizes: Sizes, *, keep: bool, console: Console) -> Iterator[Path]:
    """A history in a directory of its own, removed at the end unless kept; one that was kept is found again."""
    name = f"items-{sizes.items}-width-{sizes.feature_width}-key-{sizes.key_dim}-{sizes.key_type}"
    path = (directory or Path(tempfile.mkdtemp())) / name
    if path.exists():
        if History.open(path).snapshot.num_rows != sizes.items:
            raise SystemExit(f"{path} was not written to its end: remove it")
        yield path
        return
    try:
        write_history(path, sizes, console)
        yield path
    finally:
        if not keep:
            shutil.rmtree(path if directory else path.parent)


# Training


def train_on(path: Path, sizes: Sizes, steps: int) -> dict[str, Any]:
    """Train with the default recipe on a history on disk; meant for a fresh process."""
    imported = anonymous_bytes()
    recipe = with_model(RECIPES["default"], num_retrieved=sizes.retrieved)
    snapshot = History.open(path).snapshot
    lookup = Lookup(KeyTable().follow(snapshot), columns=("embedding",))
    rows = HistoryRows(lookup, known_before(lookup.view, CUTOFF))
    specs = [FeatureSpec("embedding", "embedded", sizes.feature_width)]
    objective = make_objective(
        recipe,
        specs,
        specs,
        key_dim=sizes.key_dim,
        num_classes=sizes.classes,
        label_classes=sizes.classes,
        has_times=True,
        seed=0,
    )
    border = len(rows.positions) * 9 // 10
    begin = time.perf_counter()
    with Display(Console(stderr=True)) as display:
        run = Run(
            steps,
            sizes.batch,
            validate_every=steps,
            validation_size=sizes.validation,
            bar=display.bar("training", steps),
        )
        progress = train(
            objective, rows.between(0, border), rows.between(border, len(rows.positions)), recipe.train, run
        )
    return {
        "imported_bytes": imported,
        "segments": snapshot.describe()["segments"],
        "steps": progress.step,
        "validation_loss": round(progress.best_loss, 4),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def compare(path: Path, sizes: Sizes, steps: int, *, gives_back: bool) -> dict[str, Any]:
    """Train apart, and say how far the peak of that process is from the plan."""
    request = json.dumps({"path": str(path), "sizes": asdict(sizes), "steps": steps})
    trained = run_apart([__file__, "--train", request], gives_back=gives_back)
    items_bytes = sum(file.stat().st_size for file in path.rglob("feature.*.npy"))
    peak, planned = trained.pop("process_bytes"), predict(sizes)
    return {
        "items_bytes": items_bytes,
        "peak_anonymous_bytes": peak,
        "ratio": round(items_bytes / peak, 2),
        "planned_bytes": planned.total,
        "planned_phase": planned.peak_phase.name,
        "plan_error": round(peak / planned.total - 1, 4),
        **trained,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--retrieved", type=int, default=8)
    parser.add_argument("--key-dim", type=int, default=64)
    parser.add_argument("--key-dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--feature-width", type=int, default=4096, help="of an embedding stored as float16")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--directory", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--keep", action="store_true", help="keep the history for the next time")
    parser.add_argument("--allocator", choices=["gives-back", "default"], default="gives-back")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        asked = json.loads(given.train)
        print(json.dumps(train_on(Path(asked["path"]), read_sizes(asked["sizes"]), asked["steps"])))
        return
    sizes = Sizes(
        given.items,
        given.batch,
        given.retrieved,
        given.key_dim,
        given.feature_width,
        chains_for(RECIPES["default"].step, given.retrieved),
        given.key_dtype,
        classes=4,
        validation=Run.validation_size,
    )
    console = Console()
    console.print(f"planned: {show_bytes(predict(sizes).total)}", highlight=False)
    with history_at(given.directory, sizes, keep=given.keep, console=console) as path:
        result = compare(path, sizes, given.steps, gives_back=given.allocator == "gives-back")
    print(json.dumps({"allocator": given.allocator, **asdict(sizes), **result}))


if __name__ == "__main__":
    main()
