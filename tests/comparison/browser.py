"""A headless Chromium for tests, spoken to over a pair of pipes: no driver, no package, no port.

`open` loads a page; `evaluate` runs JavaScript in it. What the page asked of the network and what went wrong in it are
kept in `requests` and `errors`.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
# Chromium reads commands from descriptor 3 and answers on 4.
RUN_WITH_PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 60.0


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def chromium_or_skip() -> str:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no chromium or chrome on PATH: the page was not opened in a browser")
    return binary


@contextmanager
def chromium(binary: str, profile: Path) -> Iterator["Browser"]:
    """A running browser with one empty tab; it is gone afterwards."""
    to_read, to_browser = _pipe()
    from_browser, to_write = _pipe()
    flags = [*FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", RUN_WITH_PIPES, str(to_read), str(to_write), binary, *flags, "about:blank"],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)
        os.close(from_browser)
        process.terminate()
        process.wait(PATIENCE)


class Browser:
    """One tab of a browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser, self.from_browser = to_browser, from_browser
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._numbers = itertools.count(1)
        self._unread = b""
        self._loaded = False
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, place: Path | str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """A file, or an address."""
        self.requests, self.errors, self._loaded = [], [], False
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=place.as_uri() if isinstance(place, Path) else place)
        self._read_until(lambda message: self._loaded)
        # One more frame, so that what waits for a size has been drawn.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def evaluate(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        typed = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **typed)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def move_to(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        answer = self._read_until(lambda message: message.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _read_until(self, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" not in self._unread:
                ready, _, _ = select.select([self.from_browser], [], [], max(0.0, end - time.monotonic()))
                assert ready, f"the browser said nothing for {PATIENCE:.0f} s"
                part = os.read(self.from_browser, 1 << 16)
                assert part, "the browser has ended"
                self._unread += part
            text, self._unread = self._unread.split(b"\0", 1)
            message: dict[str, Any] = json.loads(text)
            self._note(message.get("method", ""), message.get("params", {}))
            if enough(message):
                return message

    def _note(self, method: str, found: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.errors.append(str(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.errors.append(found["entry"]["text"])


def _pipe() -> tuple[int, int]:
    """Both ends above the descriptors that the browser wants."""
    ends = os.pipe()
    above = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return above[0], above[1]
