"""The comparison on a user's reviews, end to end and small: texts in, a report out."""

import json
import random
import shutil
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.cli_options import default_cache
from recollect.cli_reproduce import TermName, TrickName
from recollect.data.embedding import REVIEW_PROMPT, EmbedderSpec, load_embedder
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import COLUMNS
from recollect.reproduction.drift import PAPERS
from recollect.reproduction.reviews_paper import BAG_OF_TRICKS, UNHELPFUL
from recollect.reproduction.tables import ACCIDENTS, SEASONS
from tests.data.tiny_qwen import save_tiny_qwen

GOOD, BAD = ["great sound", "works well", "love it"], ["broke at once", "poor battery", "want my money back"]

NAMES = {
    *("recollect", "recollect_items", "no_context"),
    *("recollect_paper", "recollect_paper_items", "similarity", "no_context_paper"),
    *("majority", "previous_label", "recent_neighbours"),
    *("logreg_frozen", "logreg_refit_period", "logreg_refit_year"),
    *("lightgbm_frozen", "lightgbm_refit_period", "lightgbm_refit_year"),
}
"""All that a report of reviews has."""


def write_reviews(path: Path, count: int = 700) -> None:
    """From 2011 on; about two thirds of them after 2011."""
    chance = random.Random(0)
    with path.open("w") as file:
        for number in range(count):
            rating = chance.choice([1, 2, 3, 4, 5])
            words = chance.choices(GOOD if rating > 3 else BAD, k=3)
            moment = datetime(2011, 1, 1, tzinfo=UTC) + timedelta(days=1.5 * number)
            row = {
                "rating": float(rating),
                "title": words[0],
                "text": ". ".join(words),
                "timestamp": int(moment.timestamp() * 1000),
                "review_id": f"R{number}",
            }
            file.write(json.dumps(row) + "\n")


def test_reviews_become_a_report(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.jsonl")
    arguments = ["--reviews", tmp_path / "reviews.jsonl", "--cutoff", 2012, "--scale", "quick", "--seed", 0]
    arguments += ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    result = CliRunner().invoke(app, ["reproduce", "reviews", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "700 rows read" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["models"]) == NAMES
    for model in report["models"].values():
        assert set(model) == set(COLUMNS)
        assert all(set(value) == {"mean", "std", "seeds"} for value in model.values())
    assert report["models"]["logreg_refit_year"]["in_distribution"]["mean"] > 0.9
    assert report["models"]["logreg_frozen"]["in_distribution"]["mean"] > 0.9
    assert (tmp_path / "out" / "reviews-2012.png").exists()
    again = CliRunner().invoke(app, ["reproduce", "reviews", *map(str, arguments)])
    assert "already holds a result" in str(again.exception)
    assert "reviews.jsonl" not in again.output  # told before the file is read


def test_the_papers_recipe_by_its_other_network_and_bins_without_a_trick(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    write_reviews(path)
    with path.open("a") as file:
        file.write('{"rating": 9, "title": "a", "text": "b", "timestamp": 1300000000000, "review_id": "R"}\n')
    arguments = ["reproduce", "reviews", "--reviews", path, "--cutoff", 2012, "--scale", "quick", "--seed", 0]
    arguments += [
        "--part",
        "paper",
        "--architecture",
        "mlp",
        "--without",
        "input_dropout",
        "--term",
        "diversity",
        "--bins",
        10,
    ]
    arguments += ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    failed = CliRunner().invoke(app, list(map(str, arguments)))
    assert "reviews.jsonl:701: rating is '9', not a number from 1 to 5. Mend the row" in str(failed.exception)
    arguments += ["--bad-rows", "skip"]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "700 rows read, 1 bad row left out" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["models"]) == set(PAPERS)
    assert report["paper"] == {"architecture": "mlp", "without": ["input_dropout"], "terms": ["diversity"]}
    assert report["reading"] == {
        "bad_rows": {"out of range: rating": 1},
        "late_fields": {},
        "unknown_columns": [],
        "empty_columns": [],
    }
    assert [each["bin"] for each in report["bins"]["no_context_paper"]] == list(range(3, 10))
    assert list(tmp_path.glob("out/parts/*/recollect_paper-mlp-without_input_dropout-with_diversity-0.npz"))
    assert 'without = ["input_dropout"]' in (tmp_path / "out" / "config.toml").read_text()


def write_accidents(path: Path, rows: int = 1200) -> None:
    """Seasons from 2018 to 2020, about as many rows of each."""
    generator = np.random.default_rng(0)
    target = generator.integers(0, 2, rows)
    names = [name for name in (*ACCIDENTS.numeric, *ACCIDENTS.categorical) if name != "season_acc"]
    numbers = {name: generator.normal(target, 1.0).round(2) for name in names}
    told = {
        "Description": [f"{'road closed' if each else 'slow traffic'} at exit {row}" for row, each in enumerate(target)]
    }
    season = np.array(SEASONS)[generator.integers(0, 4, rows)]
    whens = {"year_acc": generator.integers(2018, 2021, rows), "season_acc": season}
    pl.DataFrame({**numbers, **told, **whens, "target": target}).write_csv(path)


def test_accidents_become_a_report_with_a_refit_every_season(tmp_path: Path) -> None:
    write_accidents(tmp_path / "accidents.csv")
    arguments = ["--accidents", tmp_path / "accidents.csv", "--scale", "quick", "--part", "peers"]
    arguments += ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    result = CliRunner().invoke(app, ["reproduce", "accidents", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["models"]) == set(DEFAULT)
    assert len(report["bins"]["majority"]) == 8
    # In the two springs no label of the season before is known; a window that misses a season would leave out more.
    skipped = {note.split(",")[0] for note in report["notes"]}
    assert skipped == {f"{peer}_refit_period: 2 refits were left out" for peer in ("logreg", "lightgbm")}


def test_a_seed_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    arguments = ["reproduce", "electricity", "--seed", "0", "--seed", "0", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "a seed is given twice" in result.output
    assert not (tmp_path / "out").exists()


def test_every_trick_of_the_bag_can_be_left_out_and_every_term_added() -> None:
    assert {trick.value for trick in TrickName} == BAG_OF_TRICKS
    assert {term.value for term in TermName} == UNHELPFUL


def embedded(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: object) -> str:
    """The folder of the cache that reviews are embedded into, with the embedder's fingerprint; nothing is trained."""
    monkeypatch.setattr("recollect.cli_reproduce._compare", lambda *given, **others: None)
    monkeypatch.setattr("recollect.reproduction.ablation.run", lambda **given: None)
    (folder / "out").mkdir(exist_ok=True)
    places = ["--reviews", folder / "reviews.jsonl", "--out", folder / "out", "--cache", folder / "cache"]
    written = [str(each) for each in (*arguments, *places, "--cutoff", 2012, "--threads", 1)]
    result = CliRunner().invoke(app, ["reproduce", *written], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (found,) = (folder / "cache").iterdir()
    shutil.rmtree(folder / "cache")
    return found.name


@pytest.mark.parametrize("command", ["reviews", "ablation"])
def test_reviews_are_embedded_by_the_papers_prompt(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_reviews(tmp_path / "reviews.jsonl", 500)
    qwen = save_tiny_qwen(tmp_path)
    told = load_embedder(EmbedderSpec(str(qwen), prompt=REVIEW_PROMPT))
    assert embedded(monkeypatch, tmp_path, command, "--embedder", qwen) == f"model-{told.fingerprint}"
    options = [
        "--force",
        "--embed-prompt",
        "great",
        "--embed-width",
        8,
        "--embed-tokens",
        32,
        "--embed-backend",
        "torch",
    ]
    other = load_embedder(EmbedderSpec(str(qwen), width=8, prompt="great", max_tokens=32, backend="torch"))
    assert embedded(monkeypatch, tmp_path, command, "--embedder", qwen, *options) == f"model-{other.fingerprint}"
    written = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert (written["embed_prompt"], written["embed_width"], written["embed_tokens"]) == ("great", 8, 32)


@pytest.mark.parametrize("name", ["reviews", "electricity", "accidents", "rotating-table", "ablation", "tradeoff"])
def test_every_command_shows_an_example(name: str) -> None:
    assert f"Example: recollect reproduce {name}" in CliRunner().invoke(app, ["reproduce", name, "--help"]).output


def test_embeddings_are_kept_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", "/somewhere")
    assert default_cache() == Path("/somewhere")
    monkeypatch.delenv("RECOLLECT_CACHE")
    assert default_cache() == Path.home() / ".cache" / "recollect"
