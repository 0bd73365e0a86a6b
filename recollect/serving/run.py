"""Running a service: uvicorn with bounds on idle and slow connections, and what signals mean."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from recollect.errors import SettingError
from recollect.history.disk.ahead import Ahead
from recollect.serving.app import make_app
from recollect.serving.guard import HEADERS, log_as_json
from recollect.serving.problems import Problem
from recollect.serving.service import Service
from recollect.serving.settings import Settings

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter from another. An answer leaves it for each product with some of the keys
and has to get it back from threads that take requests apart; at Python's 5 ms that adds up to seconds."""


SLOWEST = 64 << 10
"""Bytes a second that whoever asked has to read of an answer that is too large for the system's own buffers."""


class PatientProtocol(H11Protocol):
    """Closes a connection on which no whole request head has come in time, be it idle or slow, and one whose answer
    nobody reads.

    Between two requests, as long as nothing comes, uvicorn has a timer of its own.
    """

    head_seconds = 60.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False  # theirs has whole paths in it
        self._watch: asyncio.TimerHandle | None = None
        self._reader_watch: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` tells of everything that isn't read at once
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():
            self._expect_head()
        else:
            self._head_came()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._answer_was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        self._answer_was_read()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """As every other problem, though no application has seen it."""
        detail = "this is not HTTP as it should be: send a well-formed request"
        answer = Problem(400, "not-http", detail, headers={"Connection": "close", **HEADERS}).response()
        head = h11.Response(status_code=400, headers=answer.raw_headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _between_requests(self) -> bool:
        cycle: Any = getattr(self, "cycle", None)
        return cycle is None or bool(cycle.response_complete)

    def _expect_head(self) -> None:
        if self._watch is None:
            self._watch = self.loop.call_later(self.head_seconds, self.transport.close)

    def _head_came(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _expect_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reader_watch = self.loop.call_later(self.head_seconds, self._look_at_reader, unread)

    def _look_at_reader(self, unread: int) -> None:
        if unread - self.transport.get_write_buffer_size() < SLOWEST * self.head_seconds:
            self.transport.abort()  # to close it would wait for the reader
        else:
            self._expect_reader()

    def _answer_was_read(self) -> None:
        if self._reader_watch is not None:
            self._reader_watch.cancel()
            self._reader_watch = None


class Server(uvicorn.Server):
    """Ends on SIGTERM and SIGINT after what is in flight; loads the model anew on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[signal.Signals, Any] = {
            signal.SIGTERM: self.handle_exit,
            signal.SIGINT: self.handle_exit,
            signal.SIGHUP: lambda number, frame: threading.Thread(target=self._reload, daemon=True).start(),
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end: a model that can't be made ready never will be, and whoever started this can do better."""
        return await super().on_tick(counter) or self._service.engine.failed is not None

    def _reload(self) -> None:
        try:
            model, before = self._service.reload_now()
            logger.info("model %s was loaded in place of %s", model, before)
        except Problem as problem:
            logger.error("%s", problem.detail)


def serve(settings: Settings, ahead: Ahead | None = None) -> None:
    """Until a signal ends it, or the model can't be made ready."""
    with contextlib.nullcontext() if ahead is None else contextlib.closing(ahead):
        service = Service(settings, ahead)  # what is wrong with them is said by the command line, not in the log
    gc.freeze()
    gc.enable()
    log_as_json()
    _allow_connections()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        service.start()  # here and not in uvicorn, which would log whatever is wrong with a traceback
    except OSError as error:
        service.close()  # threads that are still busy would end the process with a signal
        raise SettingError(
            f"{settings.history} can't be written ({error.strerror}): ask for permission, or give --read-only to only "
            "answer predictions"
        ) from error
    make_server(service).run()
    if service.engine.failed is not None:
        raise service.engine.failed


def make_server(service: Service) -> Server:
    settings, limits = service.settings, service.settings.limits
    protocol = type("Protocol", (PatientProtocol,), {"head_seconds": limits.idle_seconds})
    config = uvicorn.Config(
        make_app(service),
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=max(1, int(limits.idle_seconds)),
        timeout_graceful_shutdown=int(limits.request_seconds) + 5,
        backlog=2048,
    )
    return Server(config, service)


def _allow_connections() -> None:
    """As many open files as this process may have: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
