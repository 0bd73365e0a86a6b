"""The client: retries where that is safe, errors that say what to change, ids of any kind."""

import socket
import threading
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
