"""The service's benchmark runs, at the smallest size, and says what it promises to say."""

from pathlib import Path

import pytest

from benchmarks.serving import run


@pytest.mark.slow
def test_the_benchmark_at_its_smallest(tmp_path: Path) -> None:
    result = run(tmp_path, items=400, seconds=3.0, pace=5.0, untrained=50)
    wanted = "p50_ms p99_ms product_ms throughput_32 p99_32_ms appends_per_s visible_lag_ms errors memory_growth_mb"
    assert set(wanted.split()) <= set(result)
    assert result["errors"] == 0
    assert result["appends_per_s"] > 0
