"""What every request passes first: who asks, how much, how slowly; and what is logged of it.

Reads the whole body, within bounds of size and time, before anything else looks at it. Logs are JSON without payloads:
a path is logged as its route, since ids may be somebody's data.
"""

import asyncio
import json
import logging
import secrets
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recollect.serving.problems import Problem, problem_of
from recollect.serving.settings import Settings, is_loopback

OPEN = ("/", "/page.css", "/page.js", "/health", "/ready", "/openapi.json")
"""What needs no token: there is nobody's data in it."""

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
"""Methods that change nothing."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}

access = logging.getLogger("recollect.access")
logger = logging.getLogger(__name__)


class Guard:
    """An ASGI middleware. `observe` is told route, status and seconds of each request."""

    def __init__(self, app: ASGIApp, settings: Settings, observe: Callable[[str, int, float], None]) -> None:
        self.app, self.settings, self.observe = app, settings, observe
        self._held = 0  # bytes of all bodies of requests that aren't answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, request_id, status = time.perf_counter(), secrets.token_hex(8), 500
        started, body = False, bytearray()

        async def marked(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "x-request-id": request_id}.items():
                    headers[name] = value
            await send(message)

        try:
            await self._admit(scope, receive, body)
            await self.app(scope, _replayed(bytes(body), receive), marked)
        except Exception as error:
            if started:
                raise
            if not isinstance(error, Problem):
                logger.exception("a request could not be answered")
            await problem_of(error).response()(scope, receive, marked)
        finally:
            self._held -= len(body)
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - began
            self.observe(route, status, seconds)
            access.info(
                "request",
                extra={
                    "request": request_id,
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "ms": round(1000 * seconds, 2),
                },
            )

    async def _admit(self, scope: Scope, receive: Receive, body: bytearray) -> None:
        headers = Headers(scope=scope)
        self._check_source(scope["method"], headers)
        scopes = self.settings.tokens.scopes(headers.get("authorization"))
        if scopes is None and scope["path"] not in OPEN:
            detail = "a token is needed: send the header Authorization: Bearer TOKEN"
            raise Problem(401, "no-token", detail, headers={"WWW-Authenticate": "Bearer"})
        scope.setdefault("state", {})["scopes"] = scopes or frozenset()
        try:
            await asyncio.wait_for(self._read(headers, receive, body), self.settings.limits.body_seconds)
        except TimeoutError:
            detail = f"the body took longer than {self.settings.limits.body_seconds:g} s: send it faster, or less"
            raise Problem(408, "too-slow", detail, headers={"Connection": "close"}) from None

    def _check_source(self, method: str, headers: Headers) -> None:
        """Without tokens only this machine may ask; a page elsewhere that a name leads here from may not, nor may it
        have a browser send what changes something."""
        if self.settings.tokens:
            return
        host = headers.get("host", "")
        if not is_loopback(_name_of(host)):
            detail = "without a token this service answers to localhost only: set RECOLLECT_TOKEN to open it to others"
            raise Problem(403, "other-host", detail)
        if method not in SAFE and _is_elsewhere(headers, host):
            detail = "without a token nothing is changed for a page of another origin: set RECOLLECT_TOKEN, and send it"
            raise Problem(403, "other-origin", detail)

    async def _read(self, headers: Headers, receive: Receive, body: bytearray) -> None:
        """Into `body`, which also is what counts as held if this ends early."""
        most = self.settings.limits.body_bytes
        problem = Problem(
            413,
            "body-too-large",
            f"the body is larger than {most} bytes: send fewer rows at a time",
            headers={"Connection": "close"},
        )
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            raise problem
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            part = message.get("body", b"")
            body += part
            self._held += len(part)
            if len(body) > most:
                raise problem
            if self._held > most * self.settings.limits.bodies:
                detail = "the requests that are being answered are too large together: send this again later"
                raise Problem(429, "bodies-too-large", detail, retry_after=1, headers={"Connection": "close"})
            more = message.get("more_body", False)


def _name_of(host: str) -> str:
    """Of a machine, from a header; empty if that is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_elsewhere(headers: Headers, host: str) -> bool:
    """Whether a page sent this that is not of this service. What is no browser says nothing of its origin."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting = True

    async def replay() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


class JsonLines(logging.Formatter):
    """One JSON object a line: when, how grave, where from, what, and the fields of a request."""

    FIELDS = ("request", "method", "route", "status", "ms")

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **{name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)},
        }
        if record.exc_info and record.exc_info[0] is not None:
            # Where it happened, not what the values were: messages of errors may quote them.
            line["error"] = record.exc_info[0].__name__
            line["at"] = _places(record.exc_info[2])
        return json.dumps(line, ensure_ascii=False, default=str)


def _message(record: logging.LogRecord) -> str:
    """asyncio quotes, below its first line, the error and whatever was being done."""
    message = record.getMessage()
    return message.partition("\n")[0] if record.name == "asyncio" else message.strip()


def _places(trace: object) -> list[str]:
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code  # type: ignore[attr-defined]
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_qualname}")  # type: ignore[attr-defined]
        trace = trace.tb_next  # type: ignore[attr-defined]
    return places[-8:]


def log_as_json(level: int = logging.INFO) -> None:
    """Everything: also what Python would write itself of errors that nobody caught, and of warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    sys.excepthook = lambda kind, error, trace: _log_uncaught("the service ended", error)
    threading.excepthook = lambda found: _log_uncaught(f"the thread {_name(found.thread)} ended", found.exc_value)
    sys.unraisablehook = lambda found: _log_uncaught("an error could not be raised", found.exc_value)
    warnings.showwarning = _log_warning


def _log_uncaught(what: str, error: BaseException | None) -> None:
    if error is not None:
        logger.critical("%s by an error", what, exc_info=error)


def _name(thread: threading.Thread | None) -> str:
    return "" if thread is None else thread.name


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Where, not what: it might quote somebody's data."""
    logger.warning("%s at %s:%d", category.__name__, filename.rpartition("/")[2], lineno)
