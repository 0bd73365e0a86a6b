"""What every request passes first: who asks, how much, how slowly; and what is logged of it.

Reads the whole body, within bounds of size and time, before anything else looks at it. Logs are JSON without payloads:
a path is logged as its route, since ids may be somebody's data.
"""

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recollect.serving.problems import Problem
from recollect.serving.settings import Settings, is_loopback

OPEN = ("/", "/page.css", "/page.js", "/health", "/ready", "/openapi.json")
"""What needs no token: there is nobody's data in it."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}

access = logging.getLogger("recollect.access")


class Guard:
    """An ASGI middleware. `observe` is told route, status and seconds of each request."""

    def __init__(self, app: ASGIApp, settings: Settings, observe: Callable[[str, int, float], None]) -> None:
        self.app, self.settings, self.observe = app, settings, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, request_id, status = time.perf_counter(), secrets.token_hex(8), 500

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "x-request-id": request_id}.items():
                    headers[name] = value
            await send(message)

        try:
            try:
                body = await self._admitted(scope, receive)
            except Problem as problem:
                await problem.response()(scope, receive, marked)
                return
            await self.app(scope, _replayed(body, receive), marked)
        finally:
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

    async def _admitted(self, scope: Scope, receive: Receive) -> bytes:
        headers = Headers(scope=scope)
        self._check_host(headers)
        scopes = self.settings.tokens.scopes(headers.get("authorization"))
        if scopes is None and scope["path"] not in OPEN:
            detail = "a token is needed: send the header Authorization: Bearer TOKEN"
            raise Problem(401, "no-token", detail, headers={"WWW-Authenticate": "Bearer"})
        scope.setdefault("state", {})["scopes"] = scopes or frozenset()
        try:
            return await asyncio.wait_for(self._body(headers, receive), self.settings.limits.body_seconds)
        except TimeoutError:
            detail = f"the body took longer than {self.settings.limits.body_seconds:g} s: send it faster, or less"
            raise Problem(408, "too-slow", detail, headers={"Connection": "close"}) from None

    def _check_host(self, headers: Headers) -> None:
        """Without tokens only this machine may ask; a page elsewhere that a name leads here from may not."""
        if self.settings.tokens:
            return
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if not is_loopback(host):
            detail = "without a token this service answers to localhost only: set RECOLLECT_TOKEN to open it to others"
            raise Problem(403, "other-host", detail)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
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
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return bytes(body)
            body += message.get("body", b"")
            if len(body) > most:
                raise problem
            if not message.get("more_body", False):
                return bytes(body)


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
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in self.FIELDS if hasattr(record, name)},
        }
        if record.exc_info and record.exc_info[0] is not None:
            # Where it happened, not what the values were: messages of errors may quote them.
            line["error"] = record.exc_info[0].__name__
            line["at"] = _places(record.exc_info[2])
        return json.dumps(line, ensure_ascii=False, default=str)


def _places(trace: object) -> list[str]:
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code  # type: ignore[attr-defined]
        places.append(f"{code.co_filename.rpartition('/')[2]}:{trace.tb_lineno} {code.co_qualname}")  # type: ignore[attr-defined]
        trace = trace.tb_next  # type: ignore[attr-defined]
    return places[-8:]


def log_as_json(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
