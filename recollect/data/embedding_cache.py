"""A column of texts becomes an array of embeddings, each text embedded once: what is embedded stays on disk.

Rows are found again by their text and by the embedder's fingerprint. Knows nothing of models: an embedder is whatever
turns a list of texts into rows, each by itself, so no row knows anything of a later text.
"""

import hashlib
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NewType

import numpy as np
from jaxtyping import Float16
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from recollect.console import plain_console
from recollect.data.embedding import Embedder
from recollect.data.mapped import mapped_rows
from recollect.errors import DataError, SettingError

# Texts of like length share a batch, so that little is padded. They are sorted inside windows, not all at once: the
# time left is foretold from the batches done, and these must resemble those to come.
WINDOW = 8192

SECONDS_BETWEEN_LINES = 30

Digest = NewType("Digest", bytes)
DIGEST_BYTES = 16


def embed_column(
    texts: Sequence[str | None],
    embedder: Embedder,
    cache: Path,
    *,
    batch: int | None = None,
    progress: bool = True,
    folder: Path | None = None,
) -> Float16[np.ndarray, "texts width"]:
    """The rows of all texts in their order; naively, `embedder.embed(texts)` in half precision.

    Equal texts are embedded once, and those in the cache not at all. A batch is on disk before the next begins: a run
    that was killed has lost at most one, and the next run goes on from there. None, and a text of nothing but white
    space, is a row of zeros: it resembles nothing, its dot product with everything is 0. A column larger than memory
    can be handed over in pieces, and rows that outgrow it be mapped from a file in `folder`. Several processes may
    share a cache; at worst both embed the same text.
    """
    cleaned = [clean_text(text, row) for row, text in enumerate(texts)]
    digests = [None if text is None else _digest(text) for text in cleaned]
    kept = cache / f"{re.sub(r'[^A-Za-z0-9.]+', '_', Path(embedder.name).name)}-{embedder.fingerprint}"
    with EmbeddingCache(kept, embedder.width) as known:
        missing = {
            digest: text
            for digest, text in zip(digests, cleaned, strict=True)
            if digest is not None and text is not None and digest not in known
        }
        with text_progress(f"embedding with {embedder.name}", len(missing), visible=progress) as advance:
            for chosen in _batches(missing, batch or embedder.batch):
                known.add(chosen, embed_batch(embedder, [missing[digest] for digest in chosen]))
                advance(len(chosen))
        return known.look_up(digests, folder)


def clean_text(text: object, row: int) -> str | None:
    """What is embedded of a cell: None if there is nothing in it."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise DataError(f"row {row} of the texts is {text!r}, not a text: make it a str, or None if there is none")
    # JSON may carry half a surrogate pair, which no tokenizer takes.
    return text.encode("utf-8", "replace").decode() if text.strip() else None


def _digest(text: str) -> Digest:
    return Digest(hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest())


def _batches(missing: dict[Digest, str], batch: int) -> Iterator[list[Digest]]:
    digests = list(missing)
    for start in range(0, len(digests), WINDOW):
        # The longest first: what does not fit in memory fails at once.
        window = sorted(digests[start : start + WINDOW], key=lambda digest: -len(missing[digest]))
        for first in range(0, len(window), batch):
            yield window[first : first + batch]


def embed_batch(embedder: Embedder, texts: list[str]) -> Float16[np.ndarray, "texts width"]:
    """The rows of cleaned texts as they are kept, and as everyone sees them who embeds without a cache."""
    rows = embedder.embed(texts)
    if not np.isfinite(rows).all():
        broken = texts[int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])]
        raise SettingError(
            f"{embedder.name} gives a row that is not finite for {broken[:60]!r}: run it in another number format"
        )
    return rows.astype(np.float16)


@contextmanager
def text_progress(name: str, total: int, *, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """Texts done, texts per second and time left: a bar on a terminal, and a line now and then where there is none."""
    console = plain_console(stderr=True)
    if visible and total and not console.is_terminal:
        yield _Lines(name, total).advance
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn())
    rate = TextColumn("{task.fields[rate]}")
    disabled = not (visible and total)
    with Progress(*columns, rate, TimeRemainingColumn(), console=console, disable=disabled) as bar:
        task = bar.add_task(name, total=total, rate="")

        def advance(done: int) -> None:
            bar.advance(task, done)
            speed = bar.tasks[0].speed
            bar.update(task, rate="" if speed is None else f"{speed:,.0f} texts/s")

        yield advance


class _Lines:
    """A run of hours that is logged to a file shows that it is alive; one that is soon over leaves no line."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done = name, total, 0
        self.started = self.told = time.monotonic()

    def advance(self, done: int) -> None:
        self.done += done
        now = time.monotonic()
        if now - self.told < SECONDS_BETWEEN_LINES:
            return
        self.told = now
        speed = self.done / (now - self.started)
        left = timedelta(seconds=round((self.total - self.done) / speed))
        rate = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
        line = f"{self.name}: {self.done:,} of {self.total:,} texts, {rate} texts/s, {left} left"
        print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Part:
    """What one process wrote: rows and, in the same order, the digests of their texts."""

    rows: Path
    first: int
    count: int


class EmbeddingCache(AbstractContextManager["EmbeddingCache"]):
    """Rows of one embedder by the digests of their texts, in pairs of append-only files, one pair per process.

    `<name>.rows` holds float16 rows end to end, `<name>.digests` 16 bytes for each. Rows are on disk before their
    digests are written, so a digest promises a row, and whatever a killed process left behind its last digest is never
    looked at. A process only ever appends to the pair it created: nothing needs a lock. A pair that lost its rows is
    passed over, and its texts are embedded again.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.folder, self.width = folder, width
        self._positions: dict[Digest, int] = {}
        self._parts: list[_Part] = []
        self._total = 0
        self._own: tuple[BinaryIO, BinaryIO] | None = None
        for digests in sorted(folder.glob("*.digests")):
            self._read(digests)

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, digest: Digest) -> bool:
        return digest in self._positions

    def add(self, digests: list[Digest], rows: Float16[np.ndarray, "texts width"]) -> None:
        """Make rows durable; they are found from now on, here and by processes that start later."""
        rows_file, digests_file = self._own or self._create()
        rows_file.write(rows.tobytes())
        rows_file.flush()
        os.fsync(rows_file.fileno())
        digests_file.write(b"".join(digests))
        digests_file.flush()
        self._remember(digests)

    def look_up(
        self, digests: Sequence[Digest | None], folder: Path | None = None
    ) -> Float16[np.ndarray, "texts width"]:
        """A row each, zeros for None; in memory, or in a file in the folder."""
        found = mapped_rows(len(digests), self.width, folder)
        positions = np.array([-1 if digest is None else self._positions[digest] for digest in digests], np.int64)
        for part in self._parts:
            mine = np.flatnonzero((positions >= part.first) & (positions < part.first + part.count))
            if len(mine):
                rows = np.memmap(part.rows, np.float16, "r", shape=(part.count, self.width))
                for start in range(0, len(mine), WINDOW):
                    some = mine[start : start + WINDOW]
                    found[some] = rows[positions[some] - part.first]
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._own or ():
            file.close()

    def _create(self) -> tuple[BinaryIO, BinaryIO]:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        self._own = ((self.folder / f"{name}.rows").open("xb"), (self.folder / f"{name}.digests").open("xb"))
        self._parts.append(_Part(self.folder / f"{name}.rows", self._total, 0))
        return self._own

    def _read(self, path: Path) -> None:
        rows = path.with_suffix(".rows")
        if not rows.exists():
            return
        content = path.read_bytes()
        count = min(len(content) // DIGEST_BYTES, rows.stat().st_size // (2 * self.width))
        self._parts.append(_Part(rows, self._total, 0))
        self._remember([Digest(content[at : at + DIGEST_BYTES]) for at in range(0, count * DIGEST_BYTES, DIGEST_BYTES)])

    def _remember(self, digests: list[Digest]) -> None:
        """Rows were appended to the last part."""
        for number, digest in enumerate(digests, self._total):
            self._positions.setdefault(digest, number)
        last = self._parts[-1]
        self._parts[-1] = _Part(last.rows, last.first, last.count + len(digests))
        self._total += len(digests)
