"""The service against its own OpenAPI description, by schemathesis with all its checks: no 5xx, no breach."""

import subprocess
import sys
from pathlib import Path

from recollect.client import Client, NewItem
from recollect.serving.settings import Tokens
from tests.serving.server import served
from tests.serving.test_service import ROW

TOKEN = "a-token-that-nobody-guesses"


def test_the_service_is_as_it_says(place: Path, tmp_path: Path) -> None:
    with served(place, tokens=Tokens.from_environment({"RECOLLECT_TOKEN": TOKEN})) as (url, _):
        with Client(url, token=TOKEN) as client:
            client.add([NewItem("order-17", ROW, "1")])
        options = ["--checks", "all", "--max-examples", "5", "--seed", "1", "--no-color"]
        done = subprocess.run(
            [
                sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
                "run", f"{url}/openapi.json", *options, "-H", f"Authorization: Bearer {TOKEN}",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        with Client(url, token=TOKEN) as client:
            assert client.predict([ROW])
