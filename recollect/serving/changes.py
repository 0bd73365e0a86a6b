"""What may be asked of the thread that writes, and what it says of what can't be done."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from recollect.data.events import Events
from recollect.deployed import ROW, raw_json
from recollect.history.snapshot import Snapshot
from recollect.serving.problems import Problem
from recollect.serving.rows import Times

Status = Literal["added", "there"]


@dataclass(frozen=True)
class Written:
    """What became of each item, and the version of the history that has them."""

    statuses: list[Status]
    version: int


@dataclass
class Adding:
    """Items whose time or known_at may be the moment they arrive. `of_kept`: new ones only of inputs that are kept."""

    events: Events
    time: Times
    known_at: Times
    place: str
    of_kept: bool = False
    since: float = field(default_factory=monotonic)
    done: "Future[Written]" = field(default_factory=Future)


@dataclass
class Correcting:
    id: str
    label: str
    at: int | float | None
    since: float = field(default_factory=monotonic)
    done: "Future[Written]" = field(default_factory=Future)


@dataclass
class Erasing:
    """Gives how many rows were taken out, and whether an input was dropped.

    `found` is what attempts have met: where one isn't known to have counted, the next may find nothing left.
    """

    id: str
    found: tuple[int, bool] = (0, False)
    since: float = field(default_factory=monotonic)
    done: "Future[tuple[int, bool]]" = field(default_factory=Future)


Job = Adding | Correcting | Erasing


@dataclass(frozen=True)
class Stored:
    """What is there of an id: its raw columns as JSON, its time, and each label it has had with when that was known."""

    row: str | None
    time: int | float
    labels: list[tuple[str, int | float]]

    @property
    def label(self) -> str:
        return self.labels[-1][0]

    def other(self, job: Adding, index: int, row: dict[str, Any] | None) -> str | None:
        """What somebody sends differently now; None if it is what they sent before, be it corrected since or not.
        Of an input that was answered they send the label only; its row is None if it is no longer kept."""
        assert job.events.label is not None
        label = job.events.label[index]
        known = [known_at for name, known_at in self.labels if name == label]
        if not known:
            return "label"
        if not job.of_kept and job.time.given[index] and job.time.values[index] != self.time:
            return "time"
        if not job.of_kept and job.known_at.given[index] and job.known_at.values[index] not in known:
            return "known_at"
        if row is None or self.row is None:
            return None
        return "row" if json.loads(raw_json(row)) != json.loads(self.row) else None


def not_there(id: str) -> Problem:
    return Problem(404, "no-such-item", "there is no item of this id: check it, or POST it to /items")


def not_kept(pointers: Sequence[str]) -> Problem:
    detail = "no input of this id is kept: it was never answered, or too long ago; POST it to /items instead"
    errors = [{"pointer": pointer, "detail": detail} for pointer in pointers]
    return Problem(404, "no-such-input", f"{pointers[0]}: {detail}", errors=errors)


def contradicts(job: Adding, refused: Sequence[tuple[int, str]]) -> Problem:
    """`refused` are places in the job, and what of each is other than before."""
    remedies = {"label": "to change that, PATCH /items/{id}"}
    otherwise = (
        "PATCH /items/{id} changes a label only; to change this, DELETE it and send it again, or take another id"
    )
    errors = [
        {
            "pointer": f"{job.place}/{index}",
            "detail": f"the id {job.events.id[index]!r} is there with another {what}: {remedies.get(what, otherwise)}",
        }
        for index, what in refused
    ]
    kind = "other-label" if refused[0][1] == "label" else "other-content"
    return Problem(409, kind, f"{errors[0]['pointer']}: {errors[0]['detail']}", errors=errors)


def stored_of(snapshot: Snapshot, rows: list[int]) -> Stored:
    """An item, of which these rows are the versions."""

    def at(name: str, row: int) -> Any:
        return snapshot.column(name, row, row + 1)[0].item()

    raw = snapshot.payload(rows[:1]).column(ROW).to_pylist()[0]
    labels = [(snapshot.classes[at("label", row)], at("known_at", row)) for row in rows]
    return Stored(raw, at("time", rows[0]), labels)


def impossible(pointer: str, detail: str) -> Problem:
    """A 409: whether it is depends on the clock and on what the history holds."""
    errors = [{"pointer": pointer, "detail": detail}]
    return Problem(409, "impossible-time", f"{pointer}: {detail}", errors=errors)


def size(job: Job) -> int:
    return len(job.events) if isinstance(job, Adding) else 1
