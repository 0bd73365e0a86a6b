"""The service against its own OpenAPI description, by schemathesis with all its checks: no 5xx, no breach."""

import subprocess
import sys
from pathlib import Path

from recollect.client import NewItem
from tests.serving.server import ServerProcess
from tests.serving.test_service import ROW

TOKEN = "a-token-that-nobody-guesses"

REFUSALS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429]
"""
"""That a list is too long is a 413 here, which is none of those that schemathesis knows."""


def test_the_service_is_as_it_says(place: Path) -> None:
    with ServerProcess(place, RECOLLECT_TOKEN=TOKEN) as server, server.client(token=TOKEN) as client:
        client.add([NewItem("order-17", ROW, "1")])
        (place / "schemathesis.toml").write_text(REFUSALS)
        options = ["--checks", "all", "--max-examples", "3", "--seed", "1", "--no-color"]
        options += ["--phases", "examples,coverage,fuzzing"]
        done = subprocess.run(
            [
                sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
                "run", f"{server.url}/openapi.json", *options, "-H", f"Authorization: Bearer {TOKEN}",
            ],
            capture_output=True,
            text=True,
            cwd=place,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert client.predict([ROW])
        assert server.stop() == 0
        assert {line["level"] for line in server.lines()} <= {"info", "warning"}
