"""`recollect compare` end to end on a small table whose rule turns: report, answers, model, going on after a stop."""

import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.comparison import compare as comparison
from recollect.comparison import ours
from recollect.evaluation.metrics import MEASURES
from recollect.trained import Trained
from tests.comparison.browser import chromium, chromium_or_skip


def write_table(path: Path, rows: int = 500, new_class: bool = True) -> None:
    """Two numbers and a colour; after the middle the label's meaning turns, and near the end a third class comes."""
    chance = random.Random(0)
    table: dict[str, list[Any]] = {name: [] for name in ("when", "a", "b", "colour", "label")}
    for row in range(rows):
        a = chance.gauss(0, 1)
        turned = row > 0.6 * rows
        label = "yes" if (a > 0) != turned else "no"
        if new_class and row > 0.8 * rows and a > 1:
            label = "maybe"
        table["when"].append((datetime(2020, 1, 1) + timedelta(hours=6 * row)).isoformat())
        table["a"].append(a if chance.random() > 0.1 else None)
        table["b"].append(chance.gauss(0, 1))
        table["colour"].append(chance.choice(["red", "green", "blue"]))
        table["label"].append(label)
    pl.DataFrame(table).write_csv(path)


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("compare")
    write_table(folder / "events.csv")
    result = invoke(
        folder / "events.csv", "--label", "label", "--label-delay", "1d", "--scale", "quick", "--bins", 4,
        "--refit", "60d", "--refit", "40d", "--out", folder / "out", "--peer", "majority", "--peer", "logreg_frozen",
        "--peer", "logreg_refit_period", "--peer", "logreg_refit_year", "--peer-window", "30d",
        "--peer", "recent_neighbours",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    text = (folder / "out" / "report.json").read_text()
    return folder, json.loads(text, parse_constant=pytest.fail), result.output


def test_the_report_has_every_part(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, output = done
    names = {"recollect", "recollect_refit_40d", "recollect_refit_60d", "no_context", "majority", "recent_neighbours"}
    assert set(report["models"]) == names | {"logreg_frozen", "logreg_refit_period", "logreg_refit_30d"}
    assert report["models"]["recollect"]["accuracy"]["mean"] > report["models"]["no_context"]["accuracy"]["mean"]
    assert report["verdict"]["headline"] in " ".join(output.split())
    assert len(report["over_time"]["starts"]) == 4
    assert report["precedents"]["examples"]
    for kind in ("periods", "cumulative"):
        assert [each["bin"] for each in report[kind]] == [0, 1, 2, 3]
        assert set(report[kind][0]) == {"bin", "rows", "kappa_temporal", *MEASURES}
    assert report["cumulative"][-1]["rows"] == sum(each["rows"] for each in report["periods"])
    curve = report["over_time"]["models"]["recollect"]["accuracy"]
    assert all(low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True))
    assert curve["low"] != curve["high"]
    assert report["label_delay"] == "labels are known 1d later (median)"
    assert any("'maybe' first comes after the cutoff" in note for note in report["notes"])
    assert any("of a is missing" in note for note in report["notes"])
    assert (folder / "out" / "report.html").stat().st_size > 1000


def test_the_page_of_a_comparison_is_whole_in_a_browser(done: tuple[Path, dict[str, Any], str], tmp_path: Path) -> None:
    folder, report, _ = done
    with chromium(chromium_or_skip(), tmp_path) as browser:
        browser.open(folder / "out" / "report.html")
        assert browser.errors == []
        assert browser.evaluate('document.querySelector("#verdict h2").textContent') == report["verdict"]["headline"]
        told = browser.evaluate('[...document.querySelector("#results tbody").rows].map((row) => row.innerText)')
        assert len(told) == len(report["models"])
        for name, model in report["models"].items():
            (row,) = (each for each in told if each.split()[0] == name)
            assert f"{model['accuracy']['mean']:.3f}".removeprefix("0") in row
        shown = (
            '[...document.querySelectorAll("section:not([hidden]) .plot")].map((plot) => [plot.closest("section").id,'
        )
        shown += ' plot.querySelectorAll("svg[role=img] :is(path, polyline, rect, circle)").length])'
        drawn = browser.evaluate(shown)
        assert {section for section, _ in drawn} == {"over-time", "calibration", "precedents", "drift"}
        assert all(count > 0 for _, count in drawn), drawn
        lines = '[...document.querySelectorAll("#over-time .plot g[data-series]")].length'
        assert browser.evaluate(lines) == len(report["models"])
        assert browser.evaluate('document.querySelectorAll(".example").length') > 0


def test_spans_and_moments_are_told_as_people_write_them(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, _ = done
    assert report["cutoff"] == "2020-03-03T12:00:00"
    config = report["config"]
    assert (config["label_delay"], config["refit"], config["peer_window"]) == ("1d", ["40d", "60d"], "30d")
    about = report["about"]
    assert about["logreg_refit_30d"] == "logistic regression, fitted anew every 15.6d, on the last 30d"
    assert about["recollect_refit_40d"] == "our model, its weights trained anew every 40d"
    assert report["why"]["b"] == "numbers"
    assert about["logreg_refit_30d"] in (folder / "out" / "report.html").read_text()


def test_how_far_apart_refits_can_be(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, _ = done
    refits = report["verdict"]["refits"]
    assert refits["best"] in ("40d", "60d", "never")
    assert refits["longest"] in ("40d", "60d", "never")
    assert any("By span between refits: 40d" in line for line in report["verdict"]["lines"])
    # The weights of the cutoff serve both spans until their first refit: three models, not five.
    assert len(list((folder / "out" / "parts").glob("*/recollect-0-trained-*/model.json"))) == 3


def test_every_answer_is_kept_with_its_precedents(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, _ = done
    answers = pl.read_parquet(folder / "out" / "predictions.parquet")
    assert answers.height == report["rows"]["asked"]
    assert answers["time"].is_sorted()
    probabilities = answers.select(pl.sum_horizontal(pl.col("^probability_.*$"))).to_series()
    assert (probabilities - 1).abs().max() < 1e-4
    assert set(answers["predicted"].unique()) == {"yes", "no", "maybe"}
    assert answers["precedents"].list.len().min() > 0
    assert answers["weights"].list.sum().max() <= 1.0001
    known = set(
        pl.read_csv(folder / "events.csv").with_row_index()["index"].map_elements(lambda i: f"events.csv:{i + 2}")
    )
    assert set(answers["precedents"].explode()) <= known


def test_every_model_s_answers_are_kept(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, _report, _ = done
    found = {path.stem: pl.read_parquet(path) for path in (folder / "out" / "predictions").iterdir()}
    ours = {"recollect-0", "recollect_refit_40d-0", "recollect_refit_60d-0", "no_context-0"}
    peers = {"majority", "logreg_frozen", "logreg_refit_period", "logreg_refit_30d", "recent_neighbours"}
    assert set(found) == ours | peers
    first = pl.read_parquet(folder / "out" / "predictions.parquet")
    assert found["recollect-0"].equals(first.drop("precedents", "weights"))
    assert all(table["id"].equals(first["id"]) for table in found.values())


def test_the_model_is_saved_with_its_intake(done: tuple[Path, dict[str, Any], str]) -> None:
    model = Trained.load(done[0] / "out" / "model-0")
    assert model.classes == ("no", "yes")
    assert model.intake is not None
    assert model.intake.schema.categorical == ("colour",)


def test_the_settings_can_be_given_back(done: tuple[Path, dict[str, Any], str]) -> None:
    folder, report, _ = done
    result = invoke("--config", folder / "out" / "config.toml", "--out", folder / "out", "--force", "--json")
    again = json.loads(result.stdout)  # and nothing else is there
    assert again["models"] == report["models"]  # nothing is computed twice: every run was kept
    assert "events.csv: 500 rows read" in result.stderr


def test_a_stopped_comparison_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "events.csv", rows=300)
    with (tmp_path / "events.csv").open("a") as file:
        file.write("nonsense\n")
    arguments = [
        tmp_path / "events.csv",
        "--label",
        "label",
        "--scale",
        "quick",
        "--bins",
        2,
        "--out",
        tmp_path / "out",
    ]
    arguments += ["--peer", "majority", "--peer", "logreg_frozen", "--bad-rows", "file"]

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ours, "answer_all", stop)
        stopped = invoke(*arguments)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1].startswith("recollect: stopped; the same command goes on from what is done")
    monkeypatch.setattr(ours, "fit_default", stop)  # what is there is not computed again
    with monkeypatch.context() as patched:
        patched.setattr(comparison, "run_peers", stop)
        invoke(*arguments)
    assert list((tmp_path / "out" / "parts").glob("*/recollect-0.npz"))
    monkeypatch.setattr(ours, "answer_all", stop)
    assert invoke(*arguments).exit_code == 0
    assert (tmp_path / "out" / "DONE").exists()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["reading"] == {
        "bad_rows": {"wrong number of values": 1},
        "late_fields": {},
        "unknown_columns": [],
        "empty_columns": [],
    }
    told = f"events.csv: 300 rows read, 1 bad row left out (wrong number of values 1); they are in {tmp_path}"
    assert report["notes"][0].startswith(told)
    assert report["notes"][0] in (tmp_path / "out" / "report.html").read_text()
    # One peer more is one run more; other data under the same name are another matter.
    more = [*arguments, "--peer", "previous_label", "--force"]
    assert invoke(*more).exit_code == 0
    assert "previous_label" in json.loads((tmp_path / "out" / "report.json").read_text())["models"]
    write_table(tmp_path / "events.csv", rows=301)
    assert invoke(*more).exit_code != 0
