"""What is refused before anything looks at it: sizes, slowness, idleness, garbage, wrong hosts and wrong paths."""

import contextlib
import http.client
import json
import logging
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest
from hypothesis import strategies as st

from recollect.client import Client, NewItem
from recollect.serving.guard import Guard, JsonLines
from recollect.serving.problems import MOST_ERRORS
from recollect.serving.service import Service
from recollect.serving.settings import Limits
from tests.serving.server import PATIENCE, served, wait_for
from tests.serving.test_service import ROW

LIMITS = Limits(body_bytes=20_000, bodies=2, text=50, body_seconds=1.0, idle_seconds=2.0)


PATHS = ("/predict", "/items", "/labels", "/items/a", "/admin/reload?x=1")


def make_garbage() -> list[bytes]:
    """Here and not in a test: hypothesis minds that a server's threads draw random numbers meanwhile."""
    names = st.sampled_from(["inputs", "items", "labels", "row", "id", "label", "as_of", "feat_1"]) | st.text()
    plain = st.none() | st.booleans() | st.floats() | st.text()
    nested = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(names, inner))
    made: list[bytes] = []

    @hypothesis.settings(max_examples=25, database=None, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.binary(max_size=300) | nested.map(lambda value: json.dumps(value).encode()))
    def make(body: bytes) -> None:
        made.append(body)

    make()
    return made


GARBAGE = make_garbage()


@pytest.fixture(scope="module")
def address(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    place = tmp_path_factory.mktemp("guard")
    for name in ("model", "history"):
        shutil.copytree(made / name, place / name)
    with served(place, limits=LIMITS) as found:
        yield found


def send(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read()
        assert response.getheader("x-content-type-options") == "nosniff"
        found = json.loads(text)
        if response.status >= 400:
            assert response.getheader("content-type") == "application/problem+json"
            assert found["status"] == response.status
        return response.status, found
    finally:
        connection.close()


def raw(url: str, *pieces: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    connection = opened(url)
    for piece in pieces:
        connection.sendall(piece)
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    connection.close()
    return answer


def opened(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)


def test_bodies_have_a_largest_size_however_they_come(address: tuple[str, Service]) -> None:
    url, _ = address
    status, found = send(url, "POST", "/predict", b" " * 30_000)
    assert (status, found["type"]) == (413, "urn:recollect:body-too-large")
    # Without a length, in chunks without end: refused while it comes. The last one sent is too much: were there more,
    # unread, the connection would be reset, and sometimes the answer lost.
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = raw(url, head, *[b"1000\r\n" + b" " * 0x1000 + b"\r\n"] * 5)
    assert answer.startswith(b"HTTP/1.1 413")
    with Client(url) as client:
        assert client.predict([ROW])


def test_slow_bodies_and_idle_connections_are_closed(address: tuple[str, Service]) -> None:
    url, _ = address
    idle = [opened(url) for _ in range(20)]
    half = opened(url)
    half.sendall(b"GET /health HTTP/1.1\r\nHost: local")
    second = opened(url)
    second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert second.recv(1000).startswith(b"HTTP/1.1 200")
    second.sendall(b"GET /health HTTP/1.1\r\n")
    answer = raw(url, b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408")
    for connection in (*idle, half, second):
        assert connection.recv(1000) in (b"", b'{"status":"ok"}')
        assert connection.recv(1000) == b""
        connection.close()


def test_a_thousand_idle_connections_are_no_obstacle(address: tuple[str, Service]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    url, _ = address
    idle = [opened(url) for _ in range(1000)]
    with Client(url) as client:
        assert client.predict([ROW])
        assert client.add([NewItem("among-many", ROW, "1")]) == ["added"]
    for connection in idle:
        connection.close()


@pytest.mark.parametrize(("path", "body"), [(path, body) for path in PATHS for body in GARBAGE])
def test_garbage_is_refused(address: tuple[str, Service], path: str, body: bytes) -> None:
    url, _ = address
    method = "PATCH" if path == "/items/a" else "PUT" if "reload" in path else "POST"
    assert 400 <= send(url, method, path, body)[0] < 500


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 15_000,
        b'{"inputs":[{"row":{"feat_1":1e999}}]}',
        b'{"inputs":[{"row":{"feat_1":' + b"9" * 5000 + b"}}]}",
        b'{"inputs":[{"row":{"feat_1":NaN}}]}',
        b'{"inputs":[{"row":{"feat_1":true}}]}',
        b'{"inputs":[{"row":{},"id":"\\ud800"}]}',
        b'{"inputs":[{"row":{"\\ud800":1}}]}',
        b'{"inputs":[{"row":{}}],"as_of":"\\ud800"}',
        b'{"inputs":[{"row":{}}],"precedents":1000}',
        b'{"inputs":[{"row":{}}],"more":1}',
        b'{"inputs":{"row":{}}}',
        b"\xff\xfe",
        b"",
    ],
)
def test_odd_bodies_are_refused(address: tuple[str, Service], body: bytes) -> None:
    url, _ = address
    assert send(url, "POST", "/predict", body)[0] in (400, 422)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"inputs":[' + b"1," * 1_900_000 + b"1]}", 413),
        (b'{"inputs":[' + b'{"row":{}},' * 100_000 + b'{"row":{}}]}', 413),
        (b"{" + b",".join(b'"%d":1' % number for number in range(300_000)) + b"}", 422),
        (b'{"inputs":[{' + b",".join(b'"%d":1' % number for number in range(300_000)) + b"}]}", 422),
        (b'{"inputs":[' + b",".join([b"{%s}" % b",".join(b'"%d":1' % n for n in range(30))] * 256) + b"]}", 422),
    ],
)
def test_too_much_is_refused_at_once(place: Path, body: bytes, status: int) -> None:
    with served(place) as (url, _):
        began = time.process_time()
        found, problem = send(url, "POST", "/predict", body)
        assert time.process_time() - began < 2
        assert found == status
        assert len(problem.get("errors", [])) <= MOST_ERRORS


def test_of_many_errors_the_first_are_shown(address: tuple[str, Service]) -> None:
    url, _ = address
    status, problem = send(url, "POST", "/predict", json.dumps({"inputs": [1] * 200}))
    assert (status, len(problem["errors"]), problem["errors_left_out"]) == (422, 20, 180)
    assert problem["errors"][3]["pointer"] == "#/inputs/3"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b"[1]", "#"),
        (b'{"inputs":[{"row":{}}],"a/b~c":1}', "#/a~1b~0c"),
        (b'{"inputs":[{"row":{"a/b~c":1}}]}', "#/inputs/0/row/a~1b~0c"),
        (b'{"inputs":[{"row":{}}],"\\ud800":1}', "#"),
        (b'{"inputs":[{"row":{}}],"' + b"x" * 10_000 + b'":1}', "#/" + "x" * 100),
    ],
)
def test_pointers_lead_to_what_is_wrong(address: tuple[str, Service], body: bytes, pointer: str) -> None:
    url, _ = address
    status, problem = send(url, "POST", "/predict", body)
    assert (status, problem["errors"][0]["pointer"]) == (422, pointer)


def test_only_json_is_read(address: tuple[str, Service]) -> None:
    """A page elsewhere may send a form or a text here unasked, JSON it may not."""
    url, _ = address
    body = json.dumps({"inputs": [{"row": ROW}]})
    assert send(url, "POST", "/predict", body)[0] == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        status, problem = send(url, "POST", "/predict", body, **{"Content-Type": kind})
        assert (status, problem["type"]) == (415, "urn:recollect:unsupported-media-type")
        assert "application/json" in problem["detail"]
    assert send(url, "POST", "/predict", body, **{"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_paths_lead_nowhere_else(address: tuple[str, Service]) -> None:
    url, _ = address
    for path in (
        "/items/../../etc/passwd",
        "/items/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/items//etc/passwd",
        "/items/%00",
        "/items/%ff%fe",
        "/items/",
        "/../page.js",
        "/page.js/..",
        "/page/page.html",
        "/static/../run.py",
        "//",
        "/predict/",
        "/status/",
    ):
        assert send(url, "GET", path)[0] in (404, 405, 422), path
    assert send(url, "GET", "/items/row-0")[0] == 200


def test_other_hosts_are_refused_without_a_token(address: tuple[str, Service]) -> None:
    url, _ = address
    assert send(url, "GET", "/status", Host="127.0.0.1:80")[0] == 200
    assert send(url, "GET", "/status", Host="[::1]:80")[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80"):
        status, found = send(url, "GET", "/status", Host=host)
        assert (status, found["type"]) == (403, "urn:recollect:other-host")


@pytest.mark.parametrize("host", ["[", "[::1", "", "local host", "localhost]", "a@b:c:d"])
def test_odd_hosts_are_refused(address: tuple[str, Service], host: str) -> None:
    url, _ = address
    status, found = send(url, "GET", "/status", Host=host)
    assert (status, found["type"]) == (403, "urn:recollect:other-host")


def test_an_error_of_the_guard_itself_is_a_problem(
    address: tuple[str, Service], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, _ = address

    def fail(*arguments: Any) -> None:
        raise RuntimeError("private")

    monkeypatch.setattr(Guard, "_check_source", fail)
    status, found = send(url, "GET", "/health")
    assert (status, found["type"]) == (500, "urn:recollect:unforeseen")
    assert "private" not in "".join(JsonLines().format(record) for record in caplog.records)


def test_pages_of_other_origins_change_nothing(address: tuple[str, Service]) -> None:
    url, _ = address
    own = url.removeprefix("http://")
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        for method, path in (("POST", "/admin/reload"), ("POST", "/predict"), ("DELETE", "/items/a")):
            status, found = send(url, method, path, "{}", **{"Content-Type": "text/plain", **headers})
            assert (status, found["type"]) == (403, "urn:recollect:other-origin")
    body = json.dumps({"inputs": [{"row": ROW}]})
    assert send(url, "POST", "/predict", body, **{"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"})[0] == 200
    assert send(url, "GET", "/status", Origin="http://evil.example")[0] == 200  # which no browser shows to that page


def test_bodies_have_a_largest_size_together(address: tuple[str, Service]) -> None:
    url, _ = address
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19999\r\n\r\n"
    unfinished = [opened(url) for _ in range(2)]
    for connection in unfinished:
        connection.sendall(head + b" " * 19_990)
    answer = wait_for(lambda: [got for got in [raw(url, head + b" " * 19_999)] if got.startswith(b"HTTP/1.1 429")])[0]
    assert b"retry-after: 1" in answer.lower()
    assert b"urn:recollect:bodies-too-large" in answer
    for connection in unfinished:
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
        connection.close()
    assert send(url, "POST", "/predict", json.dumps({"inputs": [{"row": ROW}]}))[0] == 200


def test_who_does_not_read_is_let_go(address: tuple[str, Service]) -> None:
    url, _ = address
    parts = urlsplit(url)
    body = json.dumps({"inputs": [{"row": {}}] * 256, "precedents": 64}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    request, times = head % len(body) + body, 8  # more than the kernel's buffers hold
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((parts.hostname, parts.port))
        connection.settimeout(PATIENCE)
        began = time.monotonic()
        connection.sendall(request * times)
        first = connection.recv(4096)
        size = int(first.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        # However busy the machine is, by then the buffers are full and have been so for long enough.
        time.sleep(4 * LIMITS.idle_seconds + times * (time.monotonic() - began))
        received = len(first)
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 20):
                received += len(part)
    assert received < times * size


def test_what_is_not_http_is_a_problem_too(address: tuple[str, Service]) -> None:
    url, _ = address
    head, _, body = raw(url, b"any thing\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"nosniff" in head
    assert json.loads(body)["type"] == "urn:recollect:not-http"


def test_methods_that_are_not(address: tuple[str, Service]) -> None:
    url, _ = address
    assert send(url, "PUT", "/predict", "{}")[0] == 405
    assert send(url, "TRACE", "/health")[0] == 405


def test_logs_hold_no_payloads(address: tuple[str, Service], caplog: pytest.LogCaptureFixture) -> None:
    url, _ = address
    with caplog.at_level(logging.INFO), Client(url, retries=0) as client:
        client.predict([ROW], ids=["private-id"])
        client.item("private-id")
        send(url, "POST", "/predict", json.dumps({"inputs": [{"row": {"private-column": "private"}}]}))
        time.sleep(0.05)
    lines = [JsonLines().format(record) for record in caplog.records]
    assert "private" not in "".join(lines)
    mine = [json.loads(line) for line in lines if '"route"' in line]
    assert [(each["route"], each["status"]) for each in mine[-3:]] == [
        ("/predict", 200),
        ("/items/{id:path}", 404),
        ("/predict", 422),
    ]
    try:
        raise ValueError("somebody's data")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "", 1, "it failed", (), sys.exc_info())
    line = JsonLines().format(record)
    assert "somebody" not in line
    assert json.loads(line)["error"] == "ValueError"
