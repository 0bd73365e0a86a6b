"""A result is complete or refused, and never overwritten unasked."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from recollect.errors import OutputExistsError
from recollect.evaluation.output import claim, finish, save_figure


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    claim(tmp_path / "runs" / "a", force=False)
    assert (tmp_path / "runs" / "a").is_dir()


def test_a_run_that_was_stopped_at_once_can_be_gone_on_with(tmp_path: Path) -> None:
    claim(tmp_path / "out", force=False, resumable="parts")
    (tmp_path / "out" / "model-0").mkdir()
    claim(tmp_path / "out", force=False, resumable="parts")
    finish(tmp_path / "out", {})
    with pytest.raises(OutputExistsError, match="already holds a result"):
        claim(tmp_path / "out", force=False, resumable="parts")


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    claim(tmp_path, force=False)


def test_what_is_there_is_not_overwritten_unasked(tmp_path: Path) -> None:
    finish(tmp_path, {"value": 1})
    with pytest.raises(OutputExistsError, match="already holds a result: add --force to replace it, or choose another"):
        claim(tmp_path, force=False)
    assert (tmp_path / "DONE").exists()
    (tmp_path / "DONE").unlink()
    with pytest.raises(OutputExistsError, match="already holds files, of an interrupted run perhaps: add --force"):
        claim(tmp_path, force=False)


def test_with_force_the_old_result_no_longer_counts_as_done(tmp_path: Path) -> None:
    finish(tmp_path, {"value": 1})
    claim(tmp_path, force=True)
    assert not (tmp_path / "DONE").exists()
    finish(tmp_path, {"value": 2})
    assert json.loads((tmp_path / "report.json").read_text()) == {"value": 2}


def test_a_report_is_written_then_done(tmp_path: Path) -> None:
    path = finish(tmp_path, {"value": [1.5, None]})
    assert path == tmp_path / "report.json"
    assert json.loads(path.read_text()) == {"value": [1.5, None]}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["DONE", "report.json"]


def test_a_report_that_cannot_be_written_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        finish(tmp_path, {"value": object()})
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    finish(tmp_path, {"auc": float("nan"), "periods": [{"kappa": float("inf"), "rows": 3}, (1.5, float("nan"))]})
    text = (tmp_path / "report.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "auc": None,
        "periods": [{"kappa": None, "rows": 3}, [1.5, None]],
    }


def test_times_and_decimals_are_written_as_texts(tmp_path: Path) -> None:
    finish(tmp_path, {"day": date(2020, 1, 2), "price": Decimal("1.50")})
    assert json.loads((tmp_path / "report.json").read_text()) == {"day": "2020-01-02", "price": "1.50"}


def test_figures_are_png_and_svg(tmp_path: Path) -> None:
    figure = Figure()
    figure.subplots().plot([1, 2], [3, 4])
    save_figure(figure, tmp_path, "curve")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
