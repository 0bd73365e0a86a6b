"""What went wrong, as RFC 9457 has it: a status, what it is called, and what to change."""

import errno
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from recollect.errors import DataError, HistoryLockedError, ItemError, RecollectError

MEDIA_TYPE = "application/problem+json"

MOST_ERRORS = 20
"""Shown of a problem: who sent thousands of wrong values has enough of them to find the mistake."""

LONGEST_NAME = 100
"""Characters of a name in a pointer: names are the sender's, and may be as long as the body."""

Fault = dict[str, str]
"""One thing that is wrong with a body: a JSON `pointer` to it, and its `detail`."""


def pointer(*parts: str | int, under: str = "#") -> str:
    """To a place in the body (RFC 6901), `under` another. Names that are no Unicode are shown as far as they are."""
    names = [str(part)[:LONGEST_NAME].encode(errors="replace").decode() for part in parts]
    return under + "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


class Problem(Exception):
    """An answer that says no. `kind` is the end of its type, `urn:recollect:kind`."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        errors: Sequence[Fault] = (),
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.errors, self.left_out = list(errors[:MOST_ERRORS]), max(0, len(errors) - MOST_ERRORS)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": f"urn:recollect:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            body["errors"] = self.errors
        if self.left_out:
            body["errors_left_out"] = self.left_out
        return JSONResponse(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def too_many(what: str) -> Problem:
    return Problem(429, "queue-full", f"more {what} are waiting than is allowed: send this again later", retry_after=1)


def too_many_at_once(count: int, most: int) -> Problem:
    return Problem(413, "too-many-at-once", f"{count} came at once, {most} are allowed: send fewer at a time")


def too_late(seconds: float) -> Problem:
    detail = f"there was no answer within {seconds:g} s: send this again later, or send less at a time"
    return Problem(503, "too-late", detail, retry_after=1)


def not_ready() -> Problem:
    detail = "the model is still being made ready: ask /ready when it is"
    return Problem(503, "not-ready", detail, retry_after=1)


def closing() -> Problem:
    return Problem(503, "closing", "the service is being stopped: send this elsewhere", retry_after=1)


def invalid(errors: Sequence[Fault]) -> Problem:
    first, more = errors[0], len(errors) - 1
    detail = f"{first['pointer']}: {first['detail']}" + (f" (and {more} more, see errors)" if more else "")
    return Problem(422, "invalid", detail, errors=errors)


def no_room(error: OSError) -> Problem:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    why = "the disk is full: make room"
    if not full:  # an object store's errors may have a name and nothing else
        why = f"the history's storage failed ({error.strerror or type(error).__name__}): see to it"
    detail = f"nothing was stored, {why}, then send this again; predictions go on meanwhile"
    return Problem(507, "no-room", detail, retry_after=30)


def problem_of(error: BaseException) -> Problem:
    """Any error as a problem. What nobody foresaw says nothing of itself: its message might quote somebody's data."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HistoryLockedError):
        detail = f"{error}; this process answers predictions only, as long as another is the writer"
        return Problem(503, "not-the-writer", detail, retry_after=1)
    if isinstance(error, (ItemError, DataError)):
        return Problem(422, "invalid", str(error))
    if isinstance(error, RecollectError):
        return Problem(503, "unavailable", str(error), retry_after=5)
    return Problem(500, "unforeseen", "something went wrong here: the service's log says what")


def of_validation(error: RequestValidationError) -> Problem:
    faults = []
    for each in error.errors():
        kind, *where = each["loc"]
        place = pointer(*where) if kind == "body" else "/".join(map(str, each["loc"]))
        faults.append({"pointer": place, "detail": str(each["msg"])})
    return invalid(faults)


def of_http(error: HTTPException, request: Request) -> Problem:
    detail = {
        404: "there is nothing here: /openapi.json says what there is",
        405: "this can't be done here: the header Allow says what can",
    }.get(error.status_code, str(error.detail))
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    headers = dict(error.headers or {})
    if error.status_code == 405:  # of all routes of this path, not of the first alone
        found = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
        headers["Allow"] = ", ".join(sorted({method for route in found for method in route.methods or ()}))
    return Problem(error.status_code, kind, detail, headers=headers)


async def on_problem(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        return of_validation(error).response()
    if isinstance(error, HTTPException):
        return of_http(error, request).response()
    return problem_of(error).response()
