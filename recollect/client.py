"""A small client of the service: typed results, and retries where sending something again is safe.

Needs nothing but the standard library. One client for each thread: it holds one connection.
"""

import http.client
import itertools
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from recollect.errors import RecollectError, SettingError

Row = Mapping[str, Any]
Moment = str | float

RETRIED = (408, 429, 502, 503, 504)
"""Answers after which the same request may do better later."""

LONGEST_PAUSE = 2.0
"""Seconds between two attempts, unless the service asks for more."""


class ServiceError(RecollectError):
    """The service said no: its status, the kind of problem, and what to change. `after_loss`: an answer to the same
    request was lost before, so it may have been done then."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        *,
        after_loss: bool = False,
    ) -> None:
        super().__init__(f"{status} {kind}: {detail}")
        self.status, self.kind, self.detail, self.errors = status, kind, detail, list(errors)
        self.after_loss = after_loss


class ServiceUnreachable(RecollectError):
    """There was no answer, after all retries."""


@dataclass(frozen=True)
class Precedent:
    """An item that the network was shown to answer; `row` is None without the scope payloads."""

    id: str
    label: str
    age: float
    weight: float
    similarity: float
    row: dict[str, Any] | None


@dataclass(frozen=True)
class Prediction:
    id: str
    label: str
    probabilities: dict[str, float]
    precedents: list[Precedent]
    as_of: Moment
    version: int


@dataclass(frozen=True)
class Item:
    id: str
    label: str
    time: Moment
    known_at: Moment
    row: dict[str, Any] | None


@dataclass(frozen=True)
class NewItem:
    """An item to be posted. Without `time` and `known_at` it happens, and its label is known, when it arrives."""

    id: str
    row: Row
    label: str | int | bool
    time: Moment | None = None
    known_at: Moment | None = None


class Client:
    """Speaks to one service, such as http://127.0.0.1:8000. What it sends again may be sent twice without harm.

    It tries again `retries` times and for `patience` seconds, whichever is longer: enough for a service to be started
    anew. It never comes back before the service said, and not at all if that is longer than its patience. With
    `retries` 0 nothing is sent again.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = 60.0,
        retries: int = 4,
        patience: float = 15.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"{url!r} is no address of a service: give one such as http://127.0.0.1:8000")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout)
        self._prefix, self._retries, self._patience = parts.path.rstrip("/"), retries, patience
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def predict(
        self,
        rows: Sequence[Row],
        *,
        ids: Sequence[str] | None = None,
        as_of: Moment | None = None,
        precedents: int = 5,
    ) -> list[Prediction]:
        """The answer to each row; with `ids`, labels may be sent for them later by `label`."""
        inputs: list[dict[str, Any]] = [{"row": dict(row)} for row in rows]
        if ids is not None:
            inputs = [{**each, "id": id} for each, id in zip(inputs, ids, strict=True)]
        found = self._send("POST", "/predict", {"inputs": inputs, "as_of": as_of, "precedents": precedents})
        return [
            Prediction(
                each["id"],
                each["label"],
                each["probabilities"],
                [Precedent(**precedent) for precedent in each["precedents"]],
                found["as_of"],
                found["version"],
            )
            for each in found["predictions"]
        ]

    def add(self, items: Sequence[NewItem]) -> list[Literal["added", "there"]]:
        """Durable when this returns; what was there already stays as it was."""
        found = self._send("POST", "/items", {"items": [vars(each) | {"row": dict(each.row)} for each in items]})
        return [each["status"] for each in found["items"]]

    def label(
        self, labels: Mapping[str, str | int | bool], *, known_at: Moment | None = None
    ) -> list[Literal["added", "there"]]:
        """Labels for inputs answered earlier, by their ids: each becomes an item."""
        given = [{"id": id, "label": label, "known_at": known_at} for id, label in labels.items()]
        return [each["status"] for each in self._send("POST", "/labels", {"labels": given})["items"]]

    def correct(self, id: str, label: str | int | bool, *, at: Moment | None = None) -> bool:
        """Another label from now on, or from a moment on; whether anything changed."""
        found = self._send("PATCH", f"/items/{quote(id, safe='')}", {"label": label, "at": at})
        return bool(found["changed"])

    def erase(self, id: str) -> bool:
        """Out of every view; whether there was anything. If an answer was lost on the way and it is gone when asked
        again, that is taken to be our doing."""
        try:
            self._send("DELETE", f"/items/{quote(id, safe='')}")
        except ServiceError as error:
            if error.status == 404:
                return error.after_loss
            raise
        return True

    def item(self, id: str) -> Item | None:
        try:
            return Item(**self._send("GET", f"/items/{quote(id, safe='')}"))
        except ServiceError as error:
            if error.status == 404:
                return None
            raise

    def status(self) -> dict[str, Any]:
        return self._send("GET", "/status")

    def ready(self) -> bool:
        """Whether it answers predictions now; does not wait."""
        self._connection.close()  # one that was closed over there meanwhile is no sign of anything
        try:
            return bool(self._once("GET", "/ready", None)[0] == 200)
        except (OSError, http.client.HTTPException):
            return False

    def reload(self) -> str:
        """Have the model loaded anew; its fingerprint. Not sent again after a timeout: it may still be loading."""
        self._connection.close()  # one that was closed over there meanwhile could not be told from a lost answer
        return str(self._send("POST", "/admin/reload", twice=False)["model"])

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, twice: bool = True
    ) -> dict[str, Any]:
        """Without `twice` nothing is sent again that may have arrived."""
        data = None if body is None else json.dumps(body).encode()
        began, lost = time.monotonic(), False
        for attempt in itertools.count():
            left = self._patience - (time.monotonic() - began) if self._retries else 0.0
            last = attempt >= self._retries and left <= 0
            try:
                status, answer, retry_after = self._once(method, path, data)
            except (OSError, http.client.HTTPException) as error:
                lost = lost or not isinstance(error, ConnectionRefusedError)
                if last or (lost and not twice):
                    raise ServiceUnreachable(
                        f"no answer from {self._connection.host}:{self._connection.port} ({error!r}): is it running?"
                    ) from error
                retry_after = 0.0
            else:
                if status < 400:
                    return answer
                if status not in RETRIED or last or retry_after > self._patience:
                    kind = str(answer.get("type", "")).removeprefix("urn:recollect:")
                    detail, errors = str(answer.get("detail", "")), answer.get("errors", ())
                    raise ServiceError(status, kind, detail, errors, after_loss=lost)
            # Not all at once: those who were sent away together would come back together.
            time.sleep(max(retry_after, min(LONGEST_PAUSE, 0.1 * 2**attempt)) * random.uniform(1.0, 1.5))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, data: bytes | None) -> tuple[int, dict[str, Any], float]:
        connection = self._connection
        try:
            connection.request(method, self._prefix + path, data, self._headers)
            response = connection.getresponse()
            text = response.read()
        except BaseException:
            connection.close()
            raise
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"detail": text[:200].decode(errors="replace")}
        retry_after = response.getheader("Retry-After") or "0"
        return response.status, answer, float(retry_after) if retry_after.isdigit() else 0.0
