"""The service against its own OpenAPI description, by schemathesis with all its checks: no 5xx, no breach."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.client import NewItem
from recollect.serving.schemas import EXAMPLE_ID
from tests.serving.server import ROOT, ServerProcess

TOKEN = "a-token-that-nobody-guesses"
HOOKS = "tests.serving.schemathesis_hooks"

REFUSALS = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429]
"""
"""That a list is too long is a 413 here, which is none of those that schemathesis knows."""


@pytest.mark.parametrize("table", ["place", "tickets"])
@pytest.mark.timeout(1200)  # a thousand requests, on a machine that may be busy
def test_the_service_is_as_it_says(table: str, request: pytest.FixtureRequest) -> None:
    place: Path = request.getfixturevalue(table)
    with ServerProcess(place, RECOLLECT_TOKEN=TOKEN) as server, server.client(token=TOKEN) as client:
        client.add([NewItem(EXAMPLE_ID, {}, "1")])  # so that something is found
        (place / "schemathesis.toml").write_text(REFUSALS)
        options = ["--checks", "all", "--max-examples", "15", "--seed", "1", "--no-color"]
        options += ["--phases", "examples,coverage,fuzzing,stateful"]
        done = subprocess.run(
            [
                sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
                "run", f"{server.url}/openapi.json", *options, "-H", f"Authorization: Bearer {TOKEN}",
            ],
            capture_output=True,
            text=True,
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": HOOKS},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Stateful" in done.stdout
        assert client.predict([{}])
        assert server.stop() == 0
        assert {line["level"] for line in server.lines()} <= {"info", "warning"}
