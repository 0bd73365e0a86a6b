"""A real process, killed at random moments, loses nothing it acknowledged; `benchmarks/crash.py` does it 500 times."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "crash.py"


def test_every_acknowledged_change_outlives_the_writer() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills=15"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert (result["kills"], result["changes_lost"], result["changes_half_there"]) == (15, 0, 0)
    assert result["changes_acknowledged"] > 0
