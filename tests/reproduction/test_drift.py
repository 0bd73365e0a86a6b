"""The comparison on real rows, small: the report's shape, and what is held out for it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.comparison.runs import held_out_stream, newest_of_past
from recollect.errors import SettingError
from recollect.evaluation.results import COLUMNS
from recollect.reproduction import drift
from recollect.reproduction.tables import electricity_stream


def test_the_report_has_every_model_and_figure(tmp_path: Path) -> None:
    whole = electricity_stream()
    cut = len(whole.past)
    stream = whole.take(np.arange(cut - 600, cut + 300))
    report = drift.run(
        stream,
        name="few",
        scale="quick",
        seeds=[0],
        out=tmp_path,
        force=False,
        papers=("recollect_paper",),
        peer_names=("majority", "previous_label", "logreg_frozen"),
    )
    assert json.loads((tmp_path / "report.json").read_text()) == report
    names = {
        "recollect",
        "recollect_items",
        "no_context",
        "recollect_paper",
        "majority",
        "previous_label",
        "logreg_frozen",
    }
    assert set(report["models"]) == names
    for model in report["models"].values():
        assert set(model) == set(COLUMNS)
        assert set(model["accuracy"]) == {"mean", "std", "seeds"}
        assert 0 <= model["accuracy"]["mean"] <= 1
        assert set(model["in_distribution"]) == {"mean", "std", "seeds"}
        assert model["accuracy"]["std"] is None  # of one seed
    # As of everyone: trained before the newest part of the past, and asked that.
    before = held_out_stream(stream)
    with np.load(next(tmp_path.glob("parts/*/recollect_items-0-before.npz"))) as found:
        right = found["log_probs"].argmax(1) == before.labels[before.asked]
    assert len(right) == len(newest_of_past(stream))
    assert report["models"]["recollect_items"]["in_distribution"]["mean"] == pytest.approx(right.mean())
    assert right.mean() > 0.5
    assert set(report["bins"]) == names
    for name, bins in report["bins"].items():
        assert sum(each["rows"] for each in bins) == len(stream.asked)
        assert np.mean([each["nll"] for each in bins]) == pytest.approx(report["models"][name]["nll"]["mean"])
    assert (tmp_path / "few.png").stat().st_size > 10_000
    # An interrupted run goes on: of what is kept, nothing is trained again.
    (tmp_path / "DONE").unlink()
    ages = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*/*.npz")}
    assert {"recollect-0.npz", "recollect_items-0.npz", "recollect_paper-0.npz", "majority.npz"} <= set(ages)
    again = drift.run(
        stream, name="few", scale="quick", seeds=[0], out=tmp_path, force=False, papers=(), peer_names=("majority",)
    )
    assert again["models"]["recollect"] == report["models"]["recollect"]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("parts/*/*.npz")} == ages


def test_a_trick_that_is_not_in_the_bag_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="there is no trick magic to leave out: choose among clipping, input_dropout"
    ):
        drift.run(
            electricity_stream(), name="few", scale="quick", seeds=[0], out=tmp_path, force=False, without=["magic"]
        )


@pytest.mark.parametrize(
    "setting", [{"scale": "paper"}, {"architecture": "mlp"}, {"without": ["clipping"]}, {"terms": ["entropy_bonus"]}]
)
def test_settings_of_the_papers_recipe_are_refused_without_it(tmp_path: Path, setting: dict[str, Any]) -> None:
    given = {"scale": "quick", **setting}
    with pytest.raises(SettingError, match="of the paper's recipe, which is not asked for: add --part paper"):
        drift.run(electricity_stream(), name="few", seeds=[0], out=tmp_path, force=False, papers=(), **given)


def test_held_out_rows_are_the_newest_of_the_past() -> None:
    whole = electricity_stream()
    before = held_out_stream(whole)
    assert len(before) == len(whole.past)
    assert len(before.asked) == pytest.approx(0.15 * len(before), abs=2)
    assert before.time[-1] < whole.cutoff
