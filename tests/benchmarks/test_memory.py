"""The benchmark prints one JSON object last. What it measures is tested in tests/reproduction/test_memory.py."""

import json
import sys
from typing import Any

import pytest

from benchmarks import memory
from recollect.planning.sizes import Sizes
from recollect.reproduction.memory import Sweep

KEYS = {
    *["scale", "threads", "base", "runtime_bytes", "allocator_bytes", "points", "lines"],
    *["worst_relative_error", "worst_relative_error_when_large"],
}


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stand_in(*arguments: Any, **options: Any) -> dict[str, int]:
        return {"runtime_bytes": 10, "peak_bytes": 10**8}

    monkeypatch.setattr("recollect.reproduction.memory.measure_apart", stand_in)
    monkeypatch.setitem(
        memory.SWEEPS, "quick", Sweep(Sizes(500, 4, 2, 8, 16), {"items": (500, 600)}, ("items",), 10**9)
    )
    monkeypatch.setattr(sys, "argv", ["memory.py", "--scale", "quick"])
    memory.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3, "no progress was printed"
    result = json.loads(lines[-1])
    assert result.keys() == KEYS
    assert [point["measured_bytes"] for point in result["points"]] == [10**8] * 4
