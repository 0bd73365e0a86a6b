"""The thread that answers: it owns a model following a history, and answers together whatever waits at a time.

Before each batch it looks at the history, so that what was acknowledged before a request arrived counts in its answer.
New items are scored between batches, a few at a time. Knows nothing of HTTP, nor of who writes.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from recollect.deployed import Deployed, Prediction
from recollect.predictor import TILE_ROWS
from recollect.serving.problems import Problem, too_late, too_many
from recollect.serving.record import HeadsRecord
from recollect.serving.settings import Limits

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 128
"""Answered in one batch: more would keep the first of them waiting for the last."""

TOGETHER = TILE_ROWS - 1  # with one input, a tile
"""New items that are scored together with an input before it is answered. When more are waiting, the newest are
precedents at once, but count for the weights of the heads only when their turn has come."""

QUIET_SECONDS = 0.1
NOBODY_SECONDS = 1.0
REST = 3.0
"""When items come faster than they can be scored, scoring is followed by so many times as long without, so that
predictions don't wait for that. Only when nobody has asked for a second it goes on and on."""

IDLE_SECONDS = 0.25
SAVED_AFTER = 1.0
"""Seconds between saves of the heads' record: what a crash costs the next start."""


@dataclass(frozen=True)
class Answered:
    """Predictions of one request, as of one moment, at one version of the history. `unscored` items were waiting."""

    predictions: list[Prediction]
    as_of: int | float
    version: int
    unscored: int
    entropies: list[float]


@dataclass
class Asked:
    columns: pl.DataFrame
    as_of: int | float | None
    most: int
    rows: bool
    answer: "Future[Answered]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Watching:
    """Told what happens, for those who count: sizes of batches, seconds waited, and each new version that is seen."""

    on_batch: Callable[[int], None] = lambda size: None
    on_version: Callable[[int], None] = lambda version: None


class Engine:
    """Ask it from any thread; it answers in its own."""

    def __init__(
        self,
        deployed: Deployed,
        state: Path,
        limits: Limits,
        watching: Watching | None = None,
        *,
        stores: bool = True,
    ) -> None:
        self._deployed, self._state, self._limits, self._stores = deployed, state, limits, stores
        self._watching = watching or Watching()
        self._jobs: queue.SimpleQueue[Asked | Deployed | None] = queue.SimpleQueue()
        self._waiting_rows = 0
        self._lock = threading.Lock()
        self._closing = False
        self._record = HeadsRecord(deployed, state, stores=stores)
        self._saved_at = self._answered_at = self._rested_at = time.monotonic()
        self.ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recollect-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def deployed(self) -> Deployed:
        """Whose numbers may be looked at by anyone; to be called by the engine's thread alone."""
        return self._deployed

    @property
    def waiting_rows(self) -> int:
        return self._waiting_rows

    def ask(self, columns: pl.DataFrame, as_of: int | float | None, *, most: int, rows: bool) -> "Future[Answered]":
        """As of a moment, exactly as a replay would answer; or as of now."""
        asked = Asked(columns, as_of, most, rows)
        with self._lock:
            if self._closing:
                raise Problem(503, "closing", "the service is being stopped: send this elsewhere", retry_after=1)
            if self._waiting_rows + columns.height > max(self._limits.queue, columns.height):
                raise too_many("inputs")
            self._waiting_rows += columns.height
        self._jobs.put(asked)
        return asked.answer

    def wake(self) -> None:
        """There is something new in the history."""
        self._jobs.put(None)

    def replace(self, deployed: Deployed) -> None:
        """From the next batch on this one answers; it must have caught up."""
        self._jobs.put(deployed)

    def close(self) -> None:
        """Answers what was asked, then ends."""
        with self._lock:
            self._closing = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # The thread

    def _run(self) -> None:
        try:
            prepare(self._deployed, self._record)
            self.ready.set()
        except Exception:
            logger.exception("the model could not be made ready")
        asked: list[Asked] = []
        while not (self._closing and self._jobs.empty() and not asked):
            asked = self._gather(asked)
            try:
                self._follow()
                asked = self._answer(asked) if asked else []
                if not asked and self._jobs.empty() and self._may_score():
                    with self._resting_after():
                        self._catch_up(self._deployed.now(), TOGETHER)
                self._save_now_and_then()
            except Exception as error:
                logger.exception("a batch failed")
                for each in asked:
                    self._done(each, error)
                asked = []
        self._save()

    def _gather(self, asked: list[Asked]) -> list[Asked]:
        """Whatever waits, up to one batch; nothing if nothing comes for a while."""
        rows = sum(each.columns.height for each in asked)
        wait = not asked and not self._closing and not self._may_score()
        patience = QUIET_SECONDS if self.unscored else IDLE_SECONDS
        while rows < ROWS_AT_ONCE:
            try:
                job = self._jobs.get(wait, patience) if wait else self._jobs.get_nowait()
            except queue.Empty:
                break
            wait = False
            if isinstance(job, Deployed):
                self._save()
                self._deployed, self._record = job, HeadsRecord(job, self._state, stores=self._stores)
            elif job is not None:
                asked.append(job)
                rows += job.columns.height
        return [each for each in asked if self._wanted(each)]

    def _wanted(self, asked: Asked) -> bool:
        """Nobody waits any longer for what was cancelled, or came too long ago."""
        if not asked.answer.running() and not asked.answer.set_running_or_notify_cancel():
            with self._lock:
                self._waiting_rows -= asked.columns.height
            return False
        if time.monotonic() - asked.since > self._limits.request_seconds:
            self._done(asked, too_late(self._limits.request_seconds))
            return False
        return True

    def _follow(self) -> None:
        deployed, version = self._deployed, self._deployed.snapshot.version
        deployed.refresh()
        if deployed.snapshot.version != version:
            self._catch_up(deployed.now(), 0)  # only counts what is to be scored
            self._watching.on_version(deployed.snapshot.version)

    def _answer(self, asked: list[Asked]) -> list[Asked]:
        """Answers those it can, together if they are as of the same moment; returns those whose moment has items that
        are still to be scored."""
        now = self._deployed.now()
        together: dict[int | float, list[Asked]] = {}
        later = []
        for each in asked:
            as_of = now if each.as_of is None else each.as_of
            if each.as_of is not None and self._catch_up(as_of, TOGETHER):
                later.append(each)
            else:
                together.setdefault(as_of, []).append(each)
        for as_of, group in together.items():
            self._watching.on_batch(sum(each.columns.height for each in group))
            try:
                self._answer_together(group, as_of)
            except Exception:
                for each in group:  # one by one: who is to blame, and nobody else, is told
                    try:
                        self._answer_together([each], as_of)
                    except Exception as error:
                        self._done(each, error)
        return later

    def _answer_together(self, asked: list[Asked], moment: int | float) -> None:
        deployed = self._deployed
        columns = pl.concat([each.columns for each in asked])
        as_of = self._moments(moment, columns.height)
        features, keys = deployed.features(columns)
        if self.unscored <= TOGETHER or time.monotonic() > self._rested_at:
            with self._resting_after():
                answers = deployed.live.answer(features, keys, as_of, most=TOGETHER)
        else:
            answers = deployed.live.answer(features, keys, as_of, most=0)
        most, rows = max(each.most for each in asked), any(each.rows for each in asked)
        predictions = deployed.described(answers, keys, as_of, most=most, rows=rows)
        share = answers.attention.double()
        entropies = (-torch.special.xlogy(share, share).sum(1)).tolist()
        first = 0
        for each in asked:
            end = first + each.columns.height
            found = [_as_wanted(prediction, each) for prediction in predictions[first:end]]
            self._done(each, Answered(found, moment, deployed.snapshot.version, self.unscored, entropies[first:end]))
            first = end

    def _done(self, asked: Asked, outcome: Answered | BaseException) -> None:
        self._answered_at = time.monotonic()
        with self._lock:
            self._waiting_rows -= asked.columns.height
        if isinstance(outcome, BaseException):
            asked.answer.set_exception(outcome)
        else:
            asked.answer.set_result(outcome)

    @property
    def unscored(self) -> int:
        """Items that are to count for the weights of the heads, and don't yet."""
        return self._deployed.live.unscored

    def _may_score(self) -> bool:
        """Whether there are new items to score, and whoever asks next will hardly have to wait for that."""
        now = time.monotonic()
        since = now - self._answered_at
        return self.unscored > 0 and since > QUIET_SECONDS and (since > NOBODY_SECONDS or now > self._rested_at)

    @contextmanager
    def _resting_after(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self._rested_at = ended + REST * (ended - began)

    def _moments(self, moment: int | float, rows: int = 1) -> torch.Tensor:
        return torch.full((rows,), moment, dtype=self._deployed.live.lookup.view.items.known_at.dtype)

    def _catch_up(self, as_of: int | float, most: int) -> int:
        return self._deployed.live.catch_up(self._moments(as_of), most=most)

    def _save_now_and_then(self) -> None:
        new = self._deployed.snapshot.num_rows - self._record.saved_rows
        if new and time.monotonic() - self._saved_at > SAVED_AFTER:
            self._save()

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        _save(self._record)


def prepare(deployed: Deployed, record: HeadsRecord) -> None:
    """Everything that the first answer would have to wait for."""
    found = record.load()
    dtype = deployed.live.lookup.view.items.known_at.dtype
    now = torch.tensor([deployed.now()], dtype=dtype)
    # What came after a record was saved need not keep everyone waiting: it is scored as if it came now.
    deployed.live.catch_up(now, most=0 if found else None)
    # An empty row goes the whole way, so that the embedder is loaded and memory has been asked for.
    features, keys = deployed.features(_empty_row(deployed))
    deployed.described(deployed.live.answer(features, keys, now, most=0), keys, now, most=1, rows=True)
    if found:
        record.saved_rows = deployed.snapshot.num_rows
    else:
        _save(record)


def _save(record: HeadsRecord) -> None:
    try:
        record.save()
    except OSError as error:
        logger.warning("the heads' record could not be saved: %s", error.strerror)


def _empty_row(deployed: Deployed) -> pl.DataFrame:
    schema = deployed.intake.schema
    columns: list[pl.Series] = [pl.Series(name, [None], pl.Float64) for name in schema.numeric]
    columns += [pl.Series(name, [None], pl.String) for name in (*schema.categorical, *schema.text)]
    columns += [pl.Series(name, [None], pl.Array(pl.Float32, width)) for name, width in schema.embedding.items()]
    return pl.DataFrame(columns)


def _as_wanted(prediction: Prediction, asked: Asked) -> Prediction:
    precedents: list[Any] = prediction.precedents[: asked.most]
    if not asked.rows:
        precedents = [replace(each, row=None) for each in precedents]
    return replace(prediction, precedents=precedents)
