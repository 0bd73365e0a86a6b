"""The rotating boundary end to end, at a size that proves nothing but that all of it runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.config import Recipe
from recollect.data.synthetic import RotatingTask
from recollect.errors import OutputExistsError
from recollect.reproduction import rotating
from recollect.reproduction.rotating import RotatingBatches, Sizes, rotating_recipe, run, tenths
from tests.tiny import seeded

RECIPES = ["default", "paper", "no_context"]
TINY = Sizes((2, 8), (2, 8), 3e-4, 32)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rotating.SIZES, "quick", TINY)
    monkeypatch.setattr(rotating, "BINS", 10)


def report_of(out: Path, recipes: list[str], seeds: list[int], force: bool = False) -> dict[str, Any]:
    run(scale="quick", recipes=recipes, seeds=seeds, out=out, force=force)
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    for entry in report["recipes"].values():
        del entry["seconds"]
    return report


def test_a_run_leaves_a_report_figures_and_done(tmp_path: Path) -> None:
    report = report_of(tmp_path / "out", RECIPES, [0, 1])
    assert report["bayes"] == pytest.approx(0.97725, abs=1e-5)
    assert list(report["recipes"]) == RECIPES
    for entry in report["recipes"].values():
        assert len(entry["accuracy_by_tenth"]) == 10
        for found in (*entry["accuracy_by_tenth"], entry["worst_ood"]):
            assert found.keys() == {"mean", "std", "seeds"}
            assert len(found["seeds"]) == 2
            assert 0.0 <= found["mean"] <= 1.0
        assert entry["accuracy_by_bin"][0] != entry["accuracy_by_bin"][1]
        by_seed = zip(*(tenth["seeds"] for tenth in entry["accuracy_by_tenth"][5:]), strict=True)
        assert entry["worst_ood"]["seeds"] == [min(values) for values in by_seed]
    assert {"rotating.png", "rotating.svg", "report.json", "DONE"} == {
        path.name for path in (tmp_path / "out").iterdir()
    }


def test_a_rerun_is_refused_unless_forced_and_a_seed_repeats(tmp_path: Path) -> None:
    first = report_of(tmp_path, ["default"], [3])
    with pytest.raises(OutputExistsError, match="add --force"):
        report_of(tmp_path, ["default"], [3])
    again = report_of(tmp_path, ["default"], [3], force=True)
    assert without_seconds(first) == without_seconds(again)


def test_a_log_is_kept_where_asked_for(tmp_path: Path) -> None:
    run(scale="quick", recipes=["no_context"], seeds=[0], out=tmp_path / "out", force=False, log=tmp_path / "log")
    assert list((tmp_path / "log").rglob("events.out.tfevents.*"))


def test_recipes_have_the_appendixs_sizes() -> None:
    sizes = rotating.SIZES["paper"]
    recipes: dict[str, Recipe] = {name: rotating_recipe(name, sizes) for name in RECIPES}
    assert [recipe.model.num_retrieved for recipe in recipes.values()] == [16, 16, 0]
    assert recipes["paper"].train.learning_rate == 5e-5
    assert recipes["paper"].model.hidden == (512, 512)
    assert sizes.papers == (2500, 4096)


def test_training_stays_before_the_cutoff() -> None:
    task = RotatingTask.draw(seeded(0), dimensions=4)
    source = RotatingBatches(task, True, 0.0, rotating.CUTOFF, torch.device("cpu"))
    batch = source.batch(500, seeded(1))
    assert float(batch.inputs.as_of.max()) < 0.5
    assert batch.item_times is not None
    assert (batch.item_times < batch.inputs.as_of[:, None]).all()
    late = replace(source, first=0.9, last=1.0).batch(500, seeded(1)).inputs.as_of
    assert torch.equal(late.clamp(0.9, 1.0), late)


def test_tenths_are_means_of_bins() -> None:
    assert tenths([float(value) for value in range(20)]) == [0.5 + 2 * tenth for tenth in range(10)]
