"""The needle end to end, at a size that proves nothing but that all of it runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import OutputExistsError
from recollect.reproduction import needle
from recollect.reproduction.needle import (
    Sizes,
    Watcher,
    exploration_fit,
    histories,
    learn,
    make_report,
    middle,
    needle_recipe,
    run,
)
from recollect.training.progress import Display

RECIPES = ["default", "paper"]
TINY = Sizes(paper=(2, 3), default=(2,), pools=(16,), batch=8, steps=4, stop_when_solved=True)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needle.SIZES, "quick", TINY)
    monkeypatch.setattr(Watcher, "every", 2)
    monkeypatch.setattr(Watcher, "linger", 1)


def report_of(out: Path, recipes: list[str], seeds: list[int], force: bool = False) -> dict[str, Any]:
    run(scale="quick", recipes=recipes, seeds=seeds, out=out, force=force)
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(inner) for key, inner in value.items() if key != "seconds"}
    return [without_seconds(inner) for inner in value] if isinstance(value, list) else value


def test_a_run_leaves_a_report_figures_and_done(tmp_path: Path) -> None:
    report = report_of(tmp_path / "out", RECIPES, [0])
    # Four steps solve nothing.
    assert report["solved_at_step"] == {"default": {"2": None}, "paper": {"2": None, "3": None}}
    for name, sizes in (("default", ["2"]), ("paper", ["2", "3"])):
        assert list(report["seconds"][name]) == sizes
        assert all(seconds > 0 for seconds in report["seconds"][name].values())
    assert report["shared_pool"]["default"]["16"]["solved_at_step"] is None
    assert report["shared_pool"]["paper"] == {}
    assert len(report["curves"]) == 4
    for curve in report["curves"]:
        assert [row["step"] for row in curve["curve"]] == [2, 4]
        assert all(row["loss"] > 0 and row["selection_loss"] > 0 and row["entropy"] >= 0 for row in curve["curve"])
        assert all(0 <= row["common_part"] <= 1 for row in curve["curve"])
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"needle.png", "needle.svg", "needle-entropy.png", "needle-entropy.svg", "report.json", "DONE"}


@pytest.mark.parametrize("stop", [True, False])
def test_what_is_solved_is_counted_and_stops_if_asked_to(stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needle, "SOLVED_BELOW", 100.0)
    sizes = replace(TINY, stop_when_solved=stop)
    curve = learn("default", 2, False, 0, sizes, Display(), None)
    assert curve["solved_at_step"] == 2
    assert [row["step"] for row in curve["curve"]] == ([2] if stop else [2, 4])
    report = make_report("quick", sizes, ["default"], [curve])
    assert report["solved_at_step"] == {"default": {"2": 2}}


def test_a_rerun_is_refused_unless_forced_and_a_seed_repeats(tmp_path: Path) -> None:
    first = report_of(tmp_path, ["default"], [3])
    with pytest.raises(OutputExistsError, match="add --force"):
        report_of(tmp_path, ["default"], [3])
    again = report_of(tmp_path, ["default"], [3], force=True)
    assert without_seconds(first) == without_seconds(again)


def test_several_seeds_have_a_median(tmp_path: Path) -> None:
    report = report_of(tmp_path, ["paper"], [5, 6])
    assert [(curve["seed"], curve["history_size"]) for curve in report["curves"]] == [(5, 2), (5, 3), (6, 2), (6, 3)]
    assert set(report["solved_at_step"]["paper"]) == {"2", "3"}
    assert report["curves"][0]["curve"] != report["curves"][2]["curve"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3], 3), ([9, 3, 5], 5), ([None, 4], 4), ([None, None, 4], None), ([None, 4, 2], 4), ([None], None)],
)
def test_runs_never_solved_count_as_longer_than_any_other(values: list[Any], expected: Any) -> None:
    runs = [{"solved_at_step": value, "seconds": place} for place, value in enumerate(values)]
    assert middle(runs)["solved_at_step"] == expected


def test_the_seconds_are_those_of_the_run_with_the_median_step() -> None:
    steps, seconds = (20, 40, None), (20.0, 41.0, 9.0)
    runs = [{"solved_at_step": step, "seconds": value} for step, value in zip(steps, seconds, strict=True)]
    assert middle(runs)["seconds"] == 41.0


def test_a_straight_line_is_fitted_as_one() -> None:
    fit = exploration_fit({str(size): 5 * size for size in (8, 16, 64)})
    assert fit == pytest.approx({"power": 1.0, "steps_per_item": 5.0, "intercept": 0.0, "linear_r2": 1.0}, abs=1e-8)
    flat = exploration_fit({"8": 100, "16": 100, "32": 100})
    assert flat is not None
    assert flat["linear_r2"] == 1.0


def test_small_and_unsolved_histories_are_left_out_of_the_fit() -> None:
    assert exploration_fit({"2": 10, "4": 10, "8": 40, "16": 80, "32": None}) is None


def test_each_recipe_has_its_histories() -> None:
    assert histories(TINY, "default") == [(2, False), (16, True)]
    assert histories(TINY, "paper") == [(2, False), (3, False)]


def test_recipes_have_the_appendixs_one_slot() -> None:
    assert needle_recipe("default", 2).model.num_retrieved == 1
    assert needle_recipe("paper", 2).model.num_retrieved == 1
    assert needle_recipe("paper", 2).train.learning_rate == 2e-4


def test_a_longer_history_is_looked_at_more_often() -> None:
    assert [needle_recipe("default", size).step.samples for size in (2, 256, 1024)] == [32, 64, 256]
