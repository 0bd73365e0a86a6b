"""All parts of a service put together: what a request asks for, done. Knows nothing of HTTP.

Threads: one answers (`engine`), one writes (`writing`), one keeps inputs (`kept_inputs`); requests only wait for them.
"""

import asyncio
import json
import logging
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, TypeVar

from recollect.deployed import ROW, Deployed
from recollect.errors import RecollectError
from recollect.history.disk.ahead import Ahead
from recollect.history.reader import History
from recollect.serving.changes import Adding, Correcting, Erasing, Written, not_kept, not_there
from recollect.serving.engine import Answered, Engine, Watching
from recollect.serving.kept_inputs import KeptInput, KeptInputs
from recollect.serving.metrics import Metrics
from recollect.serving.preparing import prepare
from recollect.serving.problems import Problem, not_ready, too_late, too_many_at_once
from recollect.serving.record import HeadsRecord
from recollect.serving.rows import Given, Moment, Rows
from recollect.serving.settings import Settings
from recollect.serving.writing import Writing
from recollect.trained import Trained

logger = logging.getLogger(__name__)

T = TypeVar("T")
SHOWN_HOURS = 14 * 24
SOON = 0.06
"""Seconds after which an input that another process answered is kept."""


class Service:
    """Open it, `start` it, `close` it. Its methods are for one event loop."""

    def __init__(self, settings: Settings, ahead: Ahead | None = None) -> None:
        """What was read `ahead` of the history is not read again."""
        self.settings = settings
        self.metrics = Metrics()
        model = Trained.load(settings.model)
        deployed = Deployed(model, History.open(settings.history, ahead=ahead))
        self._use(model)
        folder = settings.state if settings.stores else None
        self.kept = KeptInputs(folder, keep_seconds=settings.keep_seconds)
        self._submitted: dict[int, float] = {}
        self._seen = deployed.snapshot.version
        self._lag = threading.Lock()
        watching = Watching(self.metrics.batches.observe, self._on_version)
        self.engine = Engine(
            deployed,
            settings.state,
            settings.limits,
            watching,
            stores=settings.stores,
            present=lambda: self.writing.present(),
        )
        self.writing = Writing(
            deployed.history.another(),
            lambda: self.model,
            self.kept,
            queue_items=settings.limits.queue,
            on_commit=self._on_commit,
        )
        self.kept.may_prune = lambda: self.writing.is_writer
        self._reloading = threading.Lock()
        self.on_reload: Callable[[], None] = lambda: None
        self._started = False

    def _use(self, model: Trained) -> None:
        assert model.intake is not None
        self.model = model
        self.rows = Rows(model.intake.schema, longest=self.settings.limits.text)

    @property
    def fingerprint(self) -> str:
        """Of the model that answers."""
        return self.engine.deployed.fingerprint

    def start(self) -> None:
        """Once; another time it does nothing."""
        if self._started:
            return
        self._started = True
        self.engine.start()
        if not self.settings.read_only:
            self.writing.start()

    def close(self) -> None:
        """In-flight work is finished, and nothing acknowledged is lost."""
        self.writing.close()
        self.engine.close()
        self.kept.close()

    # Predicting

    async def predict(
        self, given: Sequence[Given], as_of: Moment | None, *, most: int, payloads: bool
    ) -> tuple[Answered, list[str]]:
        if not self.engine.ready.is_set():
            raise not_ready()
        rows = self.rows
        self._check_batch(given)
        columns = rows.inputs(given, "#/inputs")
        ids = [each.id or uuid.uuid4().hex for each in given]
        moment = None if as_of is None else rows.moment(as_of, "#/as_of")
        answered = await self._within_time(self.engine.ask(columns, moment, most=most, rows=payloads))
        self.kept.keep(
            [
                KeptInput(id, _happened(answered.as_of, moment), rows.read(each.row), prediction.label)
                for id, each, prediction in zip(ids, given, answered.predictions, strict=True)
            ]
        )
        self.metrics.answered(answered.predictions, answered.entropies, answered.ages)
        return answered, ids

    # Writing

    async def add(self, given: Sequence[Given]) -> tuple[Written, list[str]]:
        self._check_writable()
        self._check_batch(given)
        events, times, known_at = self.rows.items(given, "#/items")
        job = Adding(events, times, known_at, "#/items")
        self.writing.submit(job)
        written = await self._within_time(job.done)
        ids = events.id.to_list()
        assert events.label is not None
        await self._count(ids, events.label.to_list(), written)
        return written, ids

    async def label(self, given: Sequence[Given]) -> tuple[Written, list[str]]:
        """Labels for inputs answered earlier make items of them."""
        self._check_writable()
        self._check_batch(given)
        ids = [each.id or "" for each in given]
        kept = await asyncio.to_thread(self.kept.find, ids)
        unknown = await self._unknown(ids, kept)
        if unknown:
            await asyncio.sleep(SOON)
            kept = await asyncio.to_thread(self.kept.find, ids)
            unknown = await self._unknown(ids, kept)
        if unknown:
            raise not_kept([f"#/labels/{index}" for index in unknown])
        # An id that is not kept is an item already: then only its label is compared.
        items = [
            Given(
                kept[each.id].row if each.id in kept else {},
                each.id,
                each.label,
                self.rows.shown(kept[each.id].time) if each.id in kept else None,
                each.known_at,
            )
            for each in given
            if each.id is not None
        ]
        events, times, known_at = self.rows.items(items, "#/labels")
        job = Adding(events, times, known_at, "#/labels", of_kept=True)
        self.writing.submit(job)
        written = await self._within_time(job.done)
        assert events.label is not None
        await self._count(ids, events.label.to_list(), written)
        return written, ids

    async def _unknown(self, ids: Sequence[str], kept: dict[str, KeptInput]) -> list[int]:
        missing = [index for index, id in enumerate(ids) if id not in kept]
        if not missing:
            return []
        there = await asyncio.to_thread(lambda: self.writing.snapshot().find([ids[index] for index in missing]))
        return [index for index, row in zip(missing, there.tolist(), strict=True) if row < 0]

    async def _count(self, ids: Sequence[str], labels: Sequence[str], written: Written) -> None:
        """What is stored is stored: who sent it is told so even where it can't be counted."""
        self.metrics.items.inc(written.statuses.count("added"))
        try:
            await self._compare(*_added(written, ids, labels))
        except (sqlite3.Error, OSError) as error:
            logger.warning("%d labels could not be compared with what was answered: %s", len(ids), error)

    async def _compare(self, ids: Sequence[str], labels: Sequence[str]) -> None:
        """How good the answers were to what now has a label."""
        kept = await asyncio.to_thread(self.kept.find, ids)
        outcomes = [(id, kept[id].predicted == label) for id, label in zip(ids, labels, strict=True) if id in kept]
        if outcomes:
            await asyncio.to_thread(self.kept.labelled, outcomes)
            self.metrics.labelled([right for _, right in outcomes])

    async def correct(self, id: str, label: str, at: Moment | None) -> Written:
        self._check_writable()
        job = Correcting(id, label, None if at is None else self.rows.moment(at, "#/at"))
        self.writing.submit(job)
        return await self._within_time(job.done)

    async def erase(self, id: str) -> tuple[int, bool]:
        """The item, and the input of that id if one is kept: it must not come back."""
        self._check_writable()
        job = Erasing(id)
        self.writing.submit(job)
        erased, dropped = await self._within_time(job.done)
        if not erased and not dropped:
            raise not_there(id)
        return erased, dropped

    # Looking

    async def item(self, id: str, *, payloads: bool) -> dict[str, Any]:
        return await asyncio.to_thread(self._item, id, payloads)

    def _item(self, id: str, payloads: bool) -> dict[str, Any]:
        snapshot = self.writing.snapshot()
        row = int(snapshot.find([id])[0])
        if row < 0:
            raise not_there(id)
        label, when, known_at = (
            snapshot.column(name, row, row + 1)[0].item() for name in ("label", "time", "known_at")
        )
        raw = snapshot.payload([row]).column(ROW).to_pylist()[0] if payloads else None
        return {
            "id": id,
            "label": snapshot.classes[label],
            "time": self.rows.shown(when),
            "known_at": self.rows.shown(known_at),
            "row": None if raw is None else json.loads(raw),
        }

    async def status(self) -> dict[str, Any]:
        hours = await asyncio.to_thread(self.kept.hours, time.time() - SHOWN_HOURS * 3600)
        snapshot = self.engine.deployed.snapshot
        newest = self.engine.deployed.live.lookup.view.newest
        writes = "never" if self.settings.read_only else "here" if self.writing.is_writer else "elsewhere"
        return {
            "model": self.fingerprint,
            "version": snapshot.version,
            "items": snapshot.num_items,
            "newest": None if newest is None else self.rows.shown(newest),
            "classes": list(snapshot.classes),
            "columns": self.rows.schema.roles(),
            "plain_times": self.rows.schema.plain_times,
            "writes": writes,
            "unscored": self.engine.unscored,
            "inputs_lost": self.kept.lost,
            "hours": [
                {
                    "start": datetime.fromtimestamp(each.start, UTC).isoformat(),
                    "predictions": each.predictions,
                    "labelled": each.labelled,
                    "accuracy": each.right / each.labelled if each.labelled else None,
                }
                for each in hours
            ],
        }

    def metrics_text(self) -> bytes:
        snapshot = self.engine.deployed.snapshot
        return self.metrics.text(
            {
                "history_items": snapshot.num_items,
                "history_version": snapshot.version,
                "unscored_items": self.engine.unscored,
                "waiting_inputs": self.engine.waiting_rows,
                "waiting_items": self.writing.waiting,
                "inputs_lost": self.kept.lost,
                "is_writer": self.writing.is_writer,
            }
        )

    # Reloading

    async def reload(self) -> tuple[str, str]:
        """The model anew from its directory; the old one answers until it is ready. New and old fingerprint."""
        return await asyncio.to_thread(self.reload_now)

    def reload_now(self) -> tuple[str, str]:
        if not self._reloading.acquire(blocking=False):
            raise Problem(409, "reloading", "the model is being loaded already: wait for that")
        try:
            before = self.fingerprint
            model = Trained.load(self.settings.model)
            deployed = Deployed(model, History.open(self.settings.history))
            prepare(deployed, HeadsRecord(deployed, self.settings.state, stores=self.settings.stores))
        except RecollectError as error:
            raise Problem(409, "not-loaded", f"{error}; the model that was loaded goes on answering") from error
        else:
            self.engine.replace(deployed).result()
            self._use(model)
            self._on_version(deployed.snapshot.version)
            self.on_reload()
            return deployed.fingerprint, before
        finally:
            self._reloading.release()

    # Both sides of a commit

    def _on_commit(self, version: int, submitted: float) -> None:
        with self._lag:
            self._submitted[version] = submitted
        self._observe_lag(self._seen)  # it may have been seen before this was told
        self.engine.wake()

    def _on_version(self, version: int) -> None:
        self._seen = max(self._seen, version)
        self._observe_lag(self._seen)

    def _observe_lag(self, seen: int) -> None:
        now = time.monotonic()
        with self._lag:
            for version in [version for version in self._submitted if version <= seen]:
                self.metrics.visible_lag.observe(now - self._submitted.pop(version))

    def _check_batch(self, given: Sequence[Given]) -> None:
        if len(given) > self.settings.limits.batch:
            raise too_many_at_once(len(given), self.settings.limits.batch)

    def _check_writable(self) -> None:
        if self.settings.read_only:
            raise Problem(403, "read-only", "this service is read-only: send changes to the one that writes")

    async def _within_time(self, future: "Future[T]") -> T:
        seconds = self.settings.limits.request_seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            raise too_late(seconds) from None


def _added(written: Written, ids: Sequence[str], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is sent again was counted when it came first."""
    new = [index for index, status in enumerate(written.statuses) if status == "added"]
    return [ids[index] for index in new], [labels[index] for index in new]


def _happened(as_of: int | float, asked: int | float | None) -> int | float:
    """When an input happened that may get a label: who asks as of the future will have the label before."""
    return as_of if asked is None or isinstance(as_of, float) else min(as_of, time.time_ns())
