"""The client: retries where that is safe, errors that say what to change, ids of any kind."""

import socket
import threading
import time
from pathlib import Path

import pytest

from recollect.client import Client, NewItem, ServiceError, ServiceUnreachable
from recollect.errors import SettingError
from tests.serving.server import served
from tests.serving.test_service import ROW


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_it_waits_for_a_service_that_starts(place: Path) -> None:
    port, found = free_port(), []

    def ask() -> None:
        with Client(f"http://127.0.0.1:{port}/", retries=12) as client:
            found.extend(client.predict([ROW], ids=["early"]))

    thread = threading.Thread(target=ask)
    thread.start()
    with served(place, port=port):
        thread.join()
        assert [each.id for each in found] == ["early"]


class Scripted:
    """A server that answers each connection by the next of some texts, and remembers when they came; an empty text
    closes the connection without an answer."""

    def __init__(self, *answers: str) -> None:
        self.came: list[float] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, args=[answers])
        self._thread.start()

    def _run(self, answers: tuple[str, ...]) -> None:
        for answer in answers:
            connection, _ = self._server.accept()
            with connection:
                connection.recv(65536)
                self.came.append(time.monotonic())
                connection.sendall(answer.encode())

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(10)
        self._server.close()


def answer(status: str, body: str = "{}", **headers: str) -> str:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body])


def test_it_never_comes_back_before_it_was_told_to() -> None:
    busy = answer("429 Too Many Requests", Retry_After="1")
    with Scripted(busy, answer("200 OK")) as server, Client(server.url) as client:
        client.status()
        assert 1 <= server.came[1] - server.came[0] < 3
    with (
        Scripted(answer("503 Service Unavailable", Retry_After="60")) as server,
        Client(server.url) as client,
        pytest.raises(ServiceError, match="503"),
    ):
        client.status()


def test_what_was_erased_by_a_lost_request_was_erased() -> None:
    gone = answer("404 Not Found")
    with Scripted("", gone, gone) as server, Client(server.url) as client:
        assert client.erase("a")
        assert not client.erase("a")


def test_a_reload_is_not_sent_again() -> None:
    with (
        Scripted("") as server,
        Client(server.url) as client,
        pytest.raises(ServiceUnreachable),
    ):
        client.reload()
    assert len(server.came) == 1


def test_a_refused_connection_is_tried_for_a_while() -> None:
    port, began = free_port(), time.monotonic()
    with Client(f"http://127.0.0.1:{port}", retries=1, patience=1.5) as client, pytest.raises(ServiceUnreachable):
        client.status()
    assert 1.5 <= time.monotonic() - began < 6


def test_nobody_there() -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", retries=0) as client:
        assert not client.ready()
        with pytest.raises(ServiceUnreachable, match=f"127.0.0.1:{port}"):
            client.status()
    with pytest.raises(SettingError, match="http://"):
        Client("localhost")


def test_ids_of_any_kind(place: Path) -> None:
    with served(place) as (url, _), Client(url, retries=0) as client:
        for name in ("a b", "a/b", "../a", "ü?&#%41", "'\";--", "%2F", "x" * 200):
            assert client.add([NewItem(name, ROW, "1")]) == ["added"]
            item = client.item(name)
            assert item is not None
            assert (item.id, item.label) == (name, "1")
            assert client.correct(name, "0")
            assert client.erase(name)
            assert client.item(name) is None
        with pytest.raises(ServiceError, match="422") as found:
            client.add([NewItem("x" * 201, ROW, "1")])
        assert found.value.errors[0]["pointer"] == "#/items/0/id"
