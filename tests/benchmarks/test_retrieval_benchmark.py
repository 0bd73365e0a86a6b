"""The benchmark runs, at a tiny size, and says what it promises to say. What it measures is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "retrieval.py"

KEYS = [
    *["items", "batch", "retrieved", "key_dim", "threads", "compiled", "product_s"],
    *[f"{variant}_{what}" for variant in ("dense", "ours") for what in ("forward_s", "backward_s", "extra_bytes")],
    *["times_faster_than_dense", "times_less_memory_than_dense"],
    *["forward_over_product", "forward_and_backward_over_product"],
]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured through /proc")
def test_the_last_line_is_one_json_object() -> None:
    size = ["--items=700", "--batch=3", "--retrieved=2", "--key-dim=5", "--repeats=1"]
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *size],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert len(lines) > 3, "no progress was printed"
    result = json.loads(lines[-1])
    assert sorted(result) == sorted(KEYS)
    assert result["items"] == 700
    assert not result["compiled"]
    assert all(result[key] > 0 for key in KEYS if key.endswith("_s"))
