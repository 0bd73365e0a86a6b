"""Real servers for tests: in a thread of this process, or as a process of its own that may be killed."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recollect.client import Client
from recollect.serving.run import make_server
from recollect.serving.service import Service
from recollect.serving.settings import Limits, Settings, Tokens

PATIENCE = 60.0
ROOT = Path(__file__).parents[2]
CALL = "from recollect.cli import main; main()"


def wait_for(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def served(
    place: Path, *, limits: Limits | None = None, tokens: Tokens | None = None, port: int = 0, **more: Any
) -> Iterator[tuple[str, Service]]:
    """The address of a running service, which is ready, and the service itself."""
    settings = Settings(
        place / "model",
        str(place / "history"),
        place / "state",
        port=port,
        limits=limits or Limits(),
        tokens=tokens or Tokens({}),
        **more,
    )
    service = Service(settings)
    server = make_server(service)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        wait_for(lambda: service.engine.ready.is_set() or service.engine.failed)
        assert service.engine.failed is None, service.engine.failed
        yield f"http://127.0.0.1:{port}", service
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class ServerProcess:
    """`recollect serve` with its log in a file. Its end is up to the test."""

    def __init__(self, place: Path, *arguments: Any, before: str = "", **environment: str) -> None:
        self.log = place / f"log-{time.monotonic_ns()}"
        command = ["serve", place / "model", "--history", place / "history", "--state", place / "state", "--port", 0]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{before}\n{CALL}", *map(str, [*command, *arguments])],
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    @property
    def url(self) -> str:
        """Once it is ready."""

        def found() -> str | None:
            assert self.process.poll() is None, self.log.read_text()
            match = re.search(r"running on (http://[^ ]+)", self.log.read_text())
            return match.group(1) if match else None

        url = str(wait_for(found))
        with Client(url) as client:
            wait_for(client.ready)
        return url

    def client(self, **more: Any) -> Client:
        return Client(self.url, **more)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill()
