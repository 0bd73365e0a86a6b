"""The benchmark of embedding runs, at a tiny size, and says what it promises to say. What it measures is not tested."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "embedding.py"


def test_the_last_line_is_one_json_object() -> None:
    command = [sys.executable, str(SCRIPT), "--texts=6", "--repeats=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    # Where OpenVINO is installed, it is measured too.
    assert {name for name in result if not name.startswith("openvino_")} == {
        *["texts", "threads", "ours_texts_per_s", "encode_texts_per_s", "ratio", "wordllama_texts_per_s"]
    }
    assert all(value > 0 for value in result.values())
