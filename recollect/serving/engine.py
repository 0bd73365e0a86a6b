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

from recollect.data.schema import TableSchema
from recollect.deployed import Deployed, Prediction
from recollect.errors import RecollectError
from recollect.predictor import TILE_ROWS
from recollect.serving.preparing import prepare, save
from recollect.serving.problems import Problem, closing, too_late, too_many
from recollect.serving.record import HeadsRecord
from recollect.serving.settings import Limits

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 128
"""Answered in one batch: more would keep the first of them waiting for the last."""

TOGETHER = TILE_ROWS - 1  # with one input, a tile
"""New items that are scored together with an input before it is answered. When more are waiting, the newest are
precedents at once, but count for the weights of the heads only when their turn has come."""

FEW = 7
"""Scored at a time while others ask and more are waiting than can be scored with an input: nobody waits long for so
few."""

QUIET_SECONDS = 0.1
NOBODY_SECONDS = 1.0
REST = 3.0
"""When items come faster than they can be scored, scoring is followed by so many times as long without, so that
predictions don't wait for that. Only when nobody has asked for a second it goes on and on."""

NO_NUMBER = (
    "the answer came out as no number, perhaps since an item of the history has a time beyond all sense (recollect "
    "history inspect shows the last): DELETE /items/{id}"
)

IDLE_SECONDS = 0.25
SAVED_AFTER = 1.0
"""Seconds between saves of the heads' record: what a crash costs the next start."""


@dataclass(frozen=True)
class Answered:
    """Predictions of one request by one model, as of one moment, at one version of the history. `unscored` items were
    waiting. `ages` are those of all precedents the model was shown."""

    predictions: list[Prediction]
    model: str
    as_of: int | float
    version: int
    unscored: int
    entropies: list[float]
    ages: list[float]


@dataclass
class Asked:
    columns: pl.DataFrame
    as_of: int | float | None
    most: int
    rows: bool
    answer: "Future[Answered]" = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


@dataclass
class Replacing:
    deployed: Deployed
    done: "Future[None]" = field(default_factory=Future)


@dataclass(frozen=True)
class Watching:
    """Told what happens, for those who count: sizes of batches, and each new version that is seen."""

    on_batch: Callable[[int], None] = lambda size: None
    on_version: Callable[[int], None] = lambda version: None


class Stopped(Exception):
    """The service is being stopped before it was ready."""


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
        present: Callable[[], int] = time.time_ns,
    ) -> None:
        """`present` is no later than the moments at which items that can't be seen yet will have become known."""
        self._deployed, self._state, self._limits, self._stores = deployed, state, limits, stores
        self._watching = watching or Watching()
        self._jobs: queue.SimpleQueue[Asked | Replacing | None] = queue.SimpleQueue()
        self._waiting_rows = 0
        self._lock = threading.Lock()
        self._closing = False
        self._record = HeadsRecord(deployed, state, stores=stores)
        self._clock, self._present = present, time.time_ns()
        self._saved_at = self._answered_at = self._rested_at = time.monotonic()
        self.ready = threading.Event()
        self.failed: RecollectError | None = None
        """Why it will never be ready."""
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
                raise closing()
            if self._waiting_rows + columns.height > max(self._limits.queue, columns.height):
                raise too_many("inputs")
            self._waiting_rows += columns.height
            self._jobs.put(asked)
        return asked.answer

    def wake(self) -> None:
        """There is something new in the history."""
        self._jobs.put(None)

    def replace(self, deployed: Deployed) -> "Future[None]":
        """From the next batch on this one answers; it must have caught up. Done when it does."""
        replacing = Replacing(deployed)
        with self._lock:
            if self._closing:
                raise closing()
            self._jobs.put(replacing)
        return replacing.done

    def close(self) -> None:
        """Answers what was asked, then ends."""
        with self._lock:
            self._closing = True
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()

    # The thread

    def _run(self) -> None:
        if self._prepare():
            self._serve()
        self._refuse_the_rest()

    def _refuse_the_rest(self) -> None:
        with self._lock:
            self._closing = True
        while not self._jobs.empty():
            job = self._jobs.get()
            if isinstance(job, Replacing):
                job.done.set_exception(closing())
            elif job is not None and self._wanted(job):
                self._done(job, closing())

    def _serve(self) -> None:
        asked: list[Asked] = []
        while not (self._closing and self._jobs.empty() and not asked):
            asked = self._gather(asked)
            try:
                self._follow()
                asked = self._answer(asked) if asked else []
                if not asked and self._jobs.empty() and self._may_score():
                    with self._resting_after():
                        self._catch_up(self._now(), FEW if self._since_answer() < NOBODY_SECONDS else TOGETHER)
                self._save_now_and_then()
            except Exception as error:
                logger.exception("a batch failed")
                for each in asked:
                    if not each.answer.done():
                        self._done(each, error)
                asked = []
        self._save()

    def _prepare(self) -> bool:
        try:
            prepare(self._deployed, self._record, self._stop_if_closing)
        except Stopped:
            return False
        except Exception as error:
            if not isinstance(error, RecollectError):
                logger.exception("the model could not be made ready")
            self.failed = RecollectError(f"the model could not be made ready: {error}")
            return False
        self.ready.set()
        return True

    def _stop_if_closing(self, done: int, total: int) -> None:
        if self._closing:
            raise Stopped

    def _gather(self, asked: list[Asked]) -> list[Asked]:
        """Whatever waits, up to one batch; nothing if nothing comes for a while."""
        rows = 0  # those left over as of some moment of the past don't keep anybody out
        wait = not asked and not self._closing and not self._may_score()
        patience = QUIET_SECONDS if self.unscored else IDLE_SECONDS
        while rows < ROWS_AT_ONCE:
            try:
                job = self._jobs.get(wait, patience) if wait else self._jobs.get_nowait()
            except queue.Empty:
                break
            wait = False
            if isinstance(job, Replacing):
                self._save()
                self._deployed = job.deployed
                self._record = HeadsRecord(job.deployed, self._state, stores=self._stores)
                job.done.set_result(None)
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
        self._present = self._clock()  # before looking: what is not seen then became known later
        deployed.refresh()
        if deployed.snapshot.version != version:
            self._catch_up(self._now(), 0)  # only counts what is to be scored
            self._watching.on_version(deployed.snapshot.version)

    def _now(self) -> int | float:
        return self._deployed.now(self._present)

    def _answer(self, asked: list[Asked]) -> list[Asked]:
        """Answers those it can, together if they are as of the same moment: first those as of now. Returns those whose
        moment has items that are still to be scored; some are scored for one of these moments at a time."""
        together: dict[int | float | None, list[Asked]] = {None: []}
        for each in asked:
            if _fits(each, self._deployed.intake.schema):
                together.setdefault(each.as_of, []).append(each)
            else:
                self._done(each, reloaded())
        as_of_now = together.pop(None)
        if as_of_now:
            self._answer_group(as_of_now, self._now())
        later: list[Asked] = []
        for as_of, group in together.items():
            assert as_of is not None
            if self._catch_up(as_of, 0 if later else TOGETHER):
                later += group
            else:
                self._answer_group(group, as_of)
        return later

    def _answer_group(self, group: list[Asked], as_of: int | float) -> None:
        self._watching.on_batch(sum(each.columns.height for each in group))
        try:
            self._answer_together(group, as_of)
        except Exception:
            for each in group:  # one by one: who is to blame, and nobody else, is told
                try:
                    self._answer_together([each], as_of)
                except Exception as error:
                    self._done(each, error)

    def _answer_together(self, asked: list[Asked], moment: int | float) -> None:
        deployed = self._deployed
        columns = pl.concat([each.columns for each in asked])
        as_of = self._moments(moment, columns.height)
        features, keys = deployed.features(columns)
        if self.unscored <= TOGETHER or time.monotonic() > self._rested_at:
            with self._resting_after():
                most = TOGETHER if self.unscored <= TOGETHER else FEW
                answers = deployed.live.answer(features, keys, as_of, most=most)
        else:
            answers = deployed.live.answer(features, keys, as_of, most=0)
        if answers.log_probs.isnan().any():
            raise Problem(500, "no-number", NO_NUMBER)
        most, rows = max(each.most for each in asked), any(each.rows for each in asked)
        predictions = deployed.described(answers, keys, as_of, most=most, rows=rows)
        share = answers.attention.double()
        entropies = (-torch.special.xlogy(share, share).sum(1)).tolist()
        ages = deployed.ages(answers.precedents, as_of)
        first = 0
        for each in asked:
            end = first + each.columns.height
            found = [_as_wanted(prediction, each) for prediction in predictions[first:end]]
            answered = Answered(
                found,
                deployed.fingerprint,
                moment,
                deployed.snapshot.version,
                self.unscored,
                entropies[first:end],
                ages[first:end][answers.precedents[first:end] >= 0].tolist(),
            )
            self._done(each, answered)
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
        since = self._since_answer()
        rested = since > NOBODY_SECONDS or time.monotonic() > self._rested_at
        return self.unscored > 0 and since > QUIET_SECONDS and rested

    def _since_answer(self) -> float:
        return time.monotonic() - self._answered_at

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
        save(self._record)


def reloaded() -> Problem:
    detail = "a model of another table was loaded while this was waiting: send this again, with the columns of that one"
    return Problem(503, "reloaded", detail, retry_after=1)


def _fits(asked: Asked, schema: TableSchema) -> bool:
    """Whether it was read for a model of the same table: another may have been loaded since."""
    same_times = asked.as_of is None or isinstance(asked.as_of, float) == schema.plain_times
    return same_times and tuple(asked.columns.columns) == schema.features


def _as_wanted(prediction: Prediction, asked: Asked) -> Prediction:
    precedents: list[Any] = prediction.precedents[: asked.most]
    if not asked.rows:
        precedents = [replace(each, row=None) for each in precedents]
    return replace(prediction, precedents=precedents)
