"""The comparison on a user's reviews, end to end and small: texts in, a report out."""

import json
import random
import shutil
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.cli_reproduce import TrickName, default_cache
from recollect.data.embedding import REVIEW_PROMPT, EmbedderSpec, load_embedder
from recollect.evaluation.peers import DEFAULT
from recollect.reproduction.drift import PAPERS
from recollect.reproduction.reviews_paper import BAG_OF_TRICKS
from tests.data.tiny_qwen import save_tiny_qwen

GOOD, BAD = ["great sound", "works well", "love it"], ["broke at once", "poor battery", "want my money back"]


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
    arguments += ["--part", "ours", "--part", "peers", "--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    result = CliRunner().invoke(app, ["reproduce", "reviews", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "700 rows read" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["models"]) == {"recollect", "recollect_items", "no_context", *DEFAULT}
    assert all(model["in_distribution"] is not None for model in report["models"].values())
    assert report["models"]["logreg_refit_year"]["in_distribution"]["mean"] > 0.9
    assert report["models"]["logreg_frozen"]["in_distribution"]["mean"] > 0.9
    assert (tmp_path / "out" / "reviews-2012.png").exists()
    again = CliRunner().invoke(app, ["reproduce", "reviews", *map(str, arguments)])
    assert "already holds a result" in str(again.exception)


def test_the_papers_recipe_by_its_other_network_and_bins_without_a_trick(tmp_path: Path) -> None:
    path = tmp_path / "reviews.jsonl"
    write_reviews(path)
    with path.open("a") as file:
        file.write('{"rating": 9, "title": "a", "text": "b", "timestamp": 1300000000000, "review_id": "R"}\n')
    arguments = ["reproduce", "reviews", "--reviews", path, "--cutoff", 2012, "--scale", "quick", "--seed", 0]
    arguments += ["--part", "paper", "--architecture", "mlp", "--without", "input_dropout", "--bins", 10]
    arguments += ["--out", tmp_path / "out", "--cache", tmp_path / "cache"]
    failed = CliRunner().invoke(app, list(map(str, arguments)))
    assert "reviews.jsonl:701: rating is '9', not a number from 1 to 5. Mend the row" in str(failed.exception)
    arguments += ["--bad-rows", "skip"]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "700 rows read, 1 bad rows left out" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["models"]) == set(PAPERS)
    assert report["paper"] == {"architecture": "mlp", "without": ["input_dropout"]}
    assert report["reading"] == {"bad_rows": {"out of range: rating": 1}, "late_fields": {}, "empty_columns": []}
    assert [each["bin"] for each in report["bins"]["no_context_paper"]] == list(range(3, 10))
    assert list(tmp_path.glob("out/parts/*/recollect_paper-mlp-without_input_dropout-0.npz"))
    assert 'without = ["input_dropout"]' in (tmp_path / "out" / "config.toml").read_text()


def test_every_trick_of_the_bag_can_be_left_out() -> None:
    assert {trick.value for trick in TrickName} == BAG_OF_TRICKS


def embedded(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: object) -> str:
    """The folder of the cache that reviews are embedded into, with the embedder's fingerprint; nothing is trained."""
    monkeypatch.setattr("recollect.cli_reproduce._compare", lambda *given: None)
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
    options = ["--embed-prompt", "great", "--embed-width", 8, "--embed-tokens", 32, "--embed-backend", "torch"]
    other = load_embedder(EmbedderSpec(str(qwen), width=8, prompt="great", max_tokens=32, backend="torch"))
    assert embedded(monkeypatch, tmp_path, command, "--embedder", qwen, *options) == f"model-{other.fingerprint}"
    written = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert (written["embed_prompt"], written["embed_width"], written["embed_tokens"]) == ("great", 8, 32)


@pytest.mark.parametrize("name", ["reviews", "electricity", "accidents", "ablation", "tradeoff"])
def test_every_command_shows_an_example(name: str) -> None:
    assert f"Example: recollect reproduce {name}" in CliRunner().invoke(app, ["reproduce", name, "--help"]).output


def test_embeddings_are_kept_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", "/somewhere")
    assert default_cache() == Path("/somewhere")
    monkeypatch.delenv("RECOLLECT_CACHE")
    assert default_cache() == Path.home() / ".cache" / "recollect"
