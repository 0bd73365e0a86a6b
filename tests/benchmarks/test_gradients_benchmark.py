"""The benchmark of estimators runs, and says what is known for certain: which of them are unbiased or have no noise."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gradients.py"


def test_it_prints_one_json_object_last() -> None:
    command = [sys.executable, str(SCRIPT), "--items", "40", "--batch", "2", "--repeats", "60", "--needle-probability"]
    done = subprocess.run([*command, "0.4"], capture_output=True, text=True, check=True)
    estimators = json.loads(done.stdout.splitlines()[-1])["estimators"]
    assert estimators["label_marginal"]["relative_variance"]["0.4"] < 1e-9
    assert estimators["label_marginal"]["relative_bias"]["0.4"] < 1e-9
    assert estimators["truncated_marginalisation_2"]["relative_variance"]["0.4"] < 1e-9
    for name in ("greedy_baseline", "leave_one_out_2", "unordered_set_2", "unordered_set_4"):
        entry = estimators[name]
        noise = entry["relative_variance"]["0.4"] / 60
        assert entry["relative_bias"]["0.4"] < 10 * noise + 1e-9, name
