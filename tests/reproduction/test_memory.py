"""The memory figure end to end, at sizes that take seconds; and that a step takes about what was planned."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recollect.config import ModelSettings
from recollect.errors import OutputExistsError
from recollect.planning.plan import Method, predict
from recollect.planning.retrieval import blocked
from recollect.planning.sizes import Sizes
from recollect.reproduction import memory
from recollect.reproduction.memory import SWEEPS, Sweep, line, run, sweep, worst
from recollect.reproduction.memory_step import measure_apart
from recollect.reproduction.peak import STATUS

needs_proc = pytest.mark.skipif(not STATUS.exists(), reason="memory is measured through /proc")
MODEL = ModelSettings(width=16, heads=2, blocks=1)
TINY = Sweep(
    Sizes(500, 4, 2, 8, 16, model=MODEL),
    {"items": (500, 700), "batch": (4, 8), "retrieved": (2,), "key_dim": (8,), "feature_width": (16, 32)},
    ("items", "batch"),
    1_000_000_000,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sizes, Method, bool]]:
    """Every point that would be measured; what is measured is a tenth more than was planned."""
    calls: list[tuple[Sizes, Method, bool]] = []

    def stand_in(sizes: Sizes, method: Method, *, steps: int = 1, gives_back: bool = True) -> dict[str, int]:
        calls.append((sizes, method, gives_back))
        return {"runtime_bytes": 1, "peak_bytes": round(1.1 * predict(sizes, method).above_runtime)}

    monkeypatch.setattr(memory, "measure_apart", stand_in)
    monkeypatch.setitem(SWEEPS, "quick", TINY)
    return calls


def test_a_run_leaves_a_report_figures_and_done(asked: list[Any], tmp_path: Path) -> None:
    run(scale="quick", out=tmp_path, force=False)
    report = json.loads((tmp_path / "report.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {"memory.png", "memory.svg", "report.json", "DONE"}
    assert len(report["points"]) == 2 * 8
    assert report["worst_relative_error"] == pytest.approx(1 - 1 / 1.1, abs=1e-3)
    assert report["lines"]["items"].keys() == {"ours", "dense"}
    assert report["lines"]["feature_width"].keys() == {"ours"}
    assert report["lines"]["batch"]["ours"]["r2"] == pytest.approx(1.0)
    # The base point once for each method, and once more with the allocator left alone.
    assert [call for call in asked if call[0] == TINY.base] == [
        (TINY.base, "ours", True),
        (TINY.base, "dense", True),
        (TINY.base, "ours", False),
    ]
    with pytest.raises(OutputExistsError, match="add --force"):
        run(scale="quick", out=tmp_path, force=False)


def test_dense_is_run_up_to_a_limit_only(asked: list[Any]) -> None:
    said: list[str] = []
    report = sweep(replace(TINY, dense_up_to=0), said.append)
    assert all(method == "ours" for _, method, _ in asked)
    assert len(said) == 8 + 1
    assert all("measured_bytes" not in point for point in report["points"] if point["method"] == "dense")


def test_a_line_and_how_well_it_fits() -> None:
    fitted = line([1.0, 2.0, 3.0], [5.0, 7.0, 9.0])
    assert (fitted["slope"], fitted["intercept"], fitted["r2"]) == pytest.approx((2.0, 3.0, 1.0))
    assert line([1.0, 2.0, 3.0, 4.0], [0.0, 9.0, 0.0, 9.0])["r2"] < 0.5


def test_only_large_points_are_held_to_the_plan() -> None:
    points = [
        {"relative_error": -0.5, "measured_bytes": 10_000_000},
        {"relative_error": 0.04, "measured_bytes": 200_000_000},
        {"predicted_bytes": 1},
    ]
    assert worst(points) == {"worst_relative_error": 0.5, "worst_relative_error_when_large": 0.04}


@needs_proc
@pytest.mark.parametrize("method", ["ours", "dense"])
def test_a_step_takes_about_what_was_planned(method: Method) -> None:
    """In small: some ten MB of a process's own weigh in, so the bounds are wide."""
    sizes = Sizes(36_000, 64, 16, 32, 1024, model=MODEL) if method == "ours" else Sizes(20_000, 64, 2, 16, 64)
    found = measure_apart(sizes, method)
    assert found["runtime_bytes"] > 10**8
    assert found["peak_bytes"] == pytest.approx(predict(sizes, method).above_runtime, rel=0.15, abs=10_000_000)


def test_every_scale_sweeps_every_variable() -> None:
    for each in SWEEPS.values():
        assert set(each.values) == set(memory.SYMBOLS)
        for variable, values in each.values.items():
            assert getattr(each.base, variable) in values
            assert list(values) == sorted(values)
        # Nowhere is the history so small that its logits are kept.
        assert not any(blocked(sizes).kept for _, _, sizes in each.points())
