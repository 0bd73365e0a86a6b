"""Train, ingest, predict, explain and replay by the command line; and a history on disk answers as a replay does."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from typer.testing import CliRunner

from recollect.answering.heads import HEADS
from recollect.cli import app
from recollect.data.features import WORDS
from recollect.data.reading import read_all
from recollect.deployed import Deployed, append_events, history_schema, raw_json, rows_schema
from recollect.errors import OutputExistsError, SettingError
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from recollect.records import TERMS
from recollect.trained import Trained
from tests.comparison.test_compare import write_table
from tests.data.test_word_scores import praise


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def out_of(*arguments: Any) -> str:
    """Standard output alone."""
    return str(CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a history of the first 260 rows; 140 newer ones wait in a file."""
    folder = tmp_path_factory.mktemp("deployed")
    write_table(folder / "all.csv", rows=400)
    table = pl.read_csv(folder / "all.csv").with_columns(pl.int_range(400).cast(pl.String).alias("id"))
    table[:260].write_csv(folder / "old.csv")
    table[260:].write_csv(folder / "new.csv")
    output = run(
        "train", folder / "old.csv", "--label", "label", "--id", "id", "--model", folder / "model",
        "--history", folder / "history", "--steps", 20,
    )  # fmt: skip
    assert "260 items" in output
    return folder


def test_rows_are_answered_explained_ingested_and_replayed(place: Path) -> None:
    where = ["--model", place / "model", "--history", place / "history"]
    run("predict", place / "new.csv", *where, "--out", place / "answers.parquet")
    answers = pl.read_parquet(place / "answers.parquet")
    assert answers["id"].to_list() == [str(number) for number in range(260, 400)]
    assert set(answers.columns) == {"id", "predicted", "probability_no", "probability_yes"}
    explained = json.loads(run("explain", place / "new.csv", *where, "--row", 3, "--json").splitlines()[0])
    assert explained["id"] == "263"
    first = explained["precedents"][0]
    assert first["row"]["colour"] in ("red", "green", "blue")
    assert first["age"] > 0
    assert explained["probabilities"]["no"] == pytest.approx(answers["probability_no"][3], abs=1e-6)
    assert explained["age_unit"] == "days"
    assert "age (days)" in run("explain", place / "new.csv", *where)
    assert "140 items added, 0 were there" in run("ingest", place / "new.csv", *where)
    assert "0 items added, 140 were there" in run("ingest", place / "new.csv", *where)
    pl.read_csv(place / "new.csv").with_columns(extra=pl.lit(1)).write_csv(place / "wider.csv")
    assert "the schema knows no such column: extra" in run("ingest", place / "wider.csv", *where)
    report = json.loads(out_of("replay", *where, "--out", place / "replayed.parquet", "--bins", 3, "--json"))
    assert report["rows"] == 400 - int(0.85 * 260)
    assert set(report["overall"]) >= {"accuracy", "brier", "kappa_temporal", "coverage"}
    replayed = pl.read_parquet(place / "replayed.parquet").filter(pl.col("id") == "260")
    assert replayed["probability_no"][0] == pytest.approx(answers["probability_no"][0], abs=0)
    columns = {"id", "time", "label", "predicted", "precedents", "weights"}
    written = pl.read_parquet(place / "replayed.parquet")
    assert set(written.columns) == columns | {"probability_no", "probability_yes", "probability_maybe"}
    assert written["precedents"].list.len().to_list() == written["weights"].list.len().to_list()
    for name, each in report["intervals"].items():
        assert each["value"] == report["overall"][name]
        assert each["low"] <= each["high"]
    told = run("replay", *where)
    assert "each as of its own time" in told
    assert max(map(len, told.splitlines())) <= 80
    assert "…" not in told
    lines = [line.split() for line in told.splitlines()]
    (every,) = (line for line in lines if line[:1] == ["all"])
    assert every[:3] == ["all", str(report["rows"]), f"{report['overall']['accuracy']:.3f}".removeprefix("0")]
    assert [line[0] for line in lines if line[:1] in (["low"], ["high"])] == ["low", "high"]


def test_a_replay_is_compared_with_another(place: Path, tmp_path: Path) -> None:
    where = ["--model", place / "model", "--history", tmp_path / "history"]
    run("train", place / "old.csv", "--config", place / "model" / "config.toml", "--model", tmp_path / "model",
        "--history", tmp_path / "history", "--steps", 2)  # fmt: skip
    run("ingest", place / "new.csv", *where)
    run("replay", "--model", tmp_path / "model", "--history", tmp_path / "history", "--out", tmp_path / "less.parquet")
    arguments = ["replay", *where, "--against", tmp_path / "less.parquet", "--bins", 2, "--json"]
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert "against less.parquet, 179 rows" in result.stderr
    found = json.loads(result.stdout)["against"]["measures"]["accuracy"]
    assert found["difference"]["value"] == pytest.approx(found["this"] - found["other"])
    assert found["difference"]["low"] <= found["difference"]["value"] <= found["difference"]["high"]


def test_a_replay_asks_each_item_once_whatever_was_corrected_or_erased(place: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    run("train", place / "old.csv", "--config", place / "model" / "config.toml", "--model", tmp_path / "model",
        "--history", history, "--steps", 2)  # fmt: skip
    where = ["--model", tmp_path / "model", "--history", history]
    run("ingest", place / "new.csv", *where)
    plain = json.loads(out_of("replay", *where, "--out", tmp_path / "plain.parquet", "--json"))
    run("history", "correct", history, "5", "maybe", "--at", "2040-01-01")  # was trained on
    for day, label in enumerate(("maybe", "no", "yes")):
        run("history", "correct", history, "300", label, "--at", f"2040-01-0{day + 1}")
    run("history", "erase", history, "301")
    out = tmp_path / "corrected.parquet"
    report = json.loads(out_of("replay", *where, "--out", out, "--against", tmp_path / "plain.parquet", "--json"))
    assert report["rows"] == report["against"]["rows"] == plain["rows"] - 1
    before, after = pl.read_parquet(tmp_path / "plain.parquet"), pl.read_parquet(out)
    assert after["id"].to_list() == [name for name in before["id"] if name != "301"]
    assert after.filter(pl.col("id") == "300")["label"].item() == "yes"
    run("replay", *where, "--against", out)


def test_settings_are_beside_every_result_and_are_taken_back(place: Path, tmp_path: Path) -> None:
    written = tomllib.loads((place / "model" / "config.toml").read_text())
    assert (written["label"], written["steps"], written["data"]) == ("label", 20, str(place / "old.csv"))
    where = ["--model", place / "model", "--history", place / "history"]
    found = json.loads(
        out_of("predict", place / "new.csv", *where, "--as-of", "2021-01-01", "--out", tmp_path / "a.csv", "--json")
    )
    assert found == {
        "out": str(tmp_path / "a.csv"),
        "rows": 140,
        "classes": found["classes"],
        "bad_rows": {},
        "late_fields": {},
        "unknown_columns": [],
        "empty_columns": [],
    }
    run("predict", "--config", tmp_path / "a.toml", "--out", tmp_path / "b.csv")  # the data, model and moment too
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    again = ["--as-of", "2021-01-01", "--json"]
    shared = run("explain", place / "new.csv", "--config", place / "model" / "config.toml", *again)
    assert shared == run("explain", place / "new.csv", *where, *again)
    assert run("explain", "--config", tmp_path / "a.toml", "--json") == shared  # the data and the moment too


def test_rows_that_are_left_out_are_told(place: Path, tmp_path: Path) -> None:
    rows = (place / "new.csv").read_text().splitlines()[:4]
    (tmp_path / "some.csv").write_text("\n".join([*rows, "nonsense"]) + "\n")
    where = ["--model", place / "model", "--history", place / "history", "--bad-rows", "skip"]
    told = "some.csv: 3 rows read, 1 bad row left out (wrong number of values 1)"
    output = run("predict", tmp_path / "some.csv", *where, "--out", tmp_path / "a.csv")
    assert output.splitlines() == [told, f"{tmp_path / 'a.csv'}: 3 answers"]
    shown = CliRunner().invoke(app, ["predict", str(tmp_path / "some.csv"), *map(str, where)], catch_exceptions=False)
    assert len(shown.stdout.splitlines()) == 3
    assert shown.stderr.splitlines() == [told]
    found = json.loads(out_of("predict", tmp_path / "some.csv", *where, "--out", tmp_path / "b.csv", "--json"))
    assert found["bad_rows"] == {"wrong number of values": 1}
    (tmp_path / "old.csv").write_text((place / "old.csv").read_text() + "nonsense\n")
    arguments = ["train", tmp_path / "old.csv", "--model", tmp_path / "model", "--label", "label", "--id", "id"]
    trained = json.loads(out_of(*arguments, "--steps", 2, "--bad-rows", "skip", "--json"))
    assert (trained["rows"], trained["bad_rows"]) == (260, {"wrong number of values": 1})


def test_a_row_that_is_not_there_can_t_be_explained(place: Path) -> None:
    where = ["--model", str(place / "model"), "--history", str(place / "history")]
    result = CliRunner().invoke(app, ["explain", str(place / "new.csv"), *where, "--row", "140"])
    assert str(result.exception) == "new.csv has no row 140: it has 140, the first is 0"


def test_a_row_is_explained_beside_a_bad_one(place: Path, tmp_path: Path) -> None:
    """Rows are numbered as in the table, whatever is left out of it."""
    lines = (place / "new.csv").read_text().splitlines()[:5]
    (tmp_path / "some.csv").write_text("\n".join([*lines[:3], "nonsense", *lines[3:]]) + "\n")
    where = ["--model", place / "model", "--history", place / "history"]

    def explain(*arguments: Any) -> Any:
        return CliRunner().invoke(app, ["explain", *map(str, [tmp_path / "some.csv", *where, *arguments])])

    assert "--bad-rows skip" in str(explain("--row", 0).exception)
    skip = ["--bad-rows", "skip", "--json"]
    found = explain("--row", 4, "--row", 1, *skip)
    assert [(each["row"], each["id"]) for each in map(json.loads, found.stdout.splitlines())] == [
        (4, "263"),
        (1, "261"),
    ]
    assert found.stderr == "some.csv: 4 rows read, 1 bad row left out (wrong number of values 1)\n"
    assert [json.loads(line)["row"] for line in explain(*skip).stdout.splitlines()] == [0, 1, 3, 4]
    assert str(explain("--row", 2, *skip).exception) == "row 2 of some.csv is a bad row and was left out: mend it first"
    assert str(explain("--row", 5, *skip).exception) == "some.csv has no row 5: it has 5, the first is 0"


def test_a_training_tells_of_columns_that_it_leaves_out(place: Path, tmp_path: Path) -> None:
    """In the words of a comparison: whoever trains without one has to know too."""
    table = pl.read_csv(place / "old.csv").with_columns(same=pl.lit(3.5), copy=pl.col("label") + "!")
    table.write_csv(tmp_path / "old.csv")
    arguments = ["train", tmp_path / "old.csv", "--label", "label", "--id", "id", "--steps", 2, "--model"]
    lines = " ".join(run(*arguments, tmp_path / "one").split())
    assert "note: column same is left out: always 3.5 before the cutoff" in lines
    told = json.loads(out_of(*arguments, tmp_path / "two", "--json"))["notes"]
    assert "column same is left out: always 3.5 before the cutoff" in told
    assert any(note.startswith("column copy: each of its values comes with one label") for note in told)


def test_train_and_ingest_speak_json(place: Path, tmp_path: Path) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    trained = json.loads(
        out_of("train", place / "old.csv", *where, "--label", "label", "--id", "id", "--steps", 2, "--json")
    )
    assert (trained["items"], trained["classes"], trained["schema"]["colour"]) == (260, ["no", "yes"], "categorical")
    ingested = json.loads(out_of("ingest", place / "new.csv", *where, "--json"))
    assert (ingested["added"], ingested["there_already"], ingested["new_classes"]) == (140, 0, ["maybe"])
    assert json.loads(out_of("ingest", place / "new.csv", *where, "--json"))["new_classes"] == []


@pytest.mark.parametrize("arguments", [[], ["--force"]])
def test_only_a_model_is_replaced_by_a_model(arguments: list[str], tmp_path: Path) -> None:
    write_table(tmp_path / "old.csv", rows=200)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(OutputExistsError, match="holds no model"):
        run("train", tmp_path / "old.csv", "--label", "label", "--model", tmp_path / "mine", *arguments)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_a_cutoff_may_be_a_share_of_the_rows(place: Path, tmp_path: Path) -> None:
    middle = pl.read_csv(place / "old.csv")["when"][130]
    seen = {}
    for name, cutoff in {"share": "0.5", "moment": middle}.items():
        run("train", place / "old.csv", "--label", "label", "--id", "id", "--model", tmp_path / name, "--steps", 2,
            "--cutoff", cutoff)  # fmt: skip
        intake = Trained.load(tmp_path / name).intake
        assert intake is not None
        seen[name] = intake.features
    everything = Trained.load(place / "model").intake
    assert everything is not None
    assert seen["share"] == seen["moment"] != everything.features


def test_a_history_in_the_way_is_told_before_training(place: Path, tmp_path: Path) -> None:
    arguments = ["train", place / "old.csv", "--model", tmp_path / "model", "--history", place / "history"]
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert "holds a history already: open it, or choose another place" in str(result.exception)
    assert not (tmp_path / "model").exists()


def test_posting_a_stream_row_by_row_gives_the_bits_of_a_replay(place: Path, tmp_path: Path) -> None:
    model = Trained.load(place / "model")
    events, _ = read_all(place / "all.csv", rows_with_labels(model))
    with HistoryWriter.create(tmp_path / "history", history_schema(model), classes=model.classes) as writer:
        append_events(writer, model, events.part(0, 250))
        deployed = Deployed(model, History.open(tmp_path / "history"))
        said = []
        for row in range(250, 290):
            deployed.refresh()
            said.append(deployed.answer(events.columns[row : row + 1], events.time[row : row + 1]).log_probs[0])
            append_events(writer, model, events.part(row, row + 1))
    again = Deployed(model, History.open(tmp_path / "history"))
    replayed = again.live.answer_items(torch.arange(250, 290)).log_probs
    for one, other in zip(said, replayed, strict=True):
        assert torch.equal(one, other[: len(one)])


def test_texts_are_read_word_by_word_in_training_and_in_use_alike(tmp_path: Path) -> None:
    """Only what a "not" stands before tells the label: the mean of the words' vectors is the same for both."""
    texts, labels = praise(700)
    table = pl.DataFrame({"when": range(700), "said": texts, "label": np.where(labels == 1, "yes", "no")})
    table[:500].write_csv(tmp_path / "old.csv")
    table[500:].write_csv(tmp_path / "new.csv")
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    options = ["--label", "label", "--time", "when", "--text", "said", "--cache", tmp_path / "cache", "--steps", 60]
    run("train", tmp_path / "old.csv", *where, *options)
    run("predict", tmp_path / "new.csv", *where, "--out", tmp_path / "answers.parquet", "--cache", tmp_path / "cache")
    answers = pl.read_parquet(tmp_path / "answers.parquet")["predicted"].to_numpy()
    assert (answers == table["label"][500:].to_numpy()).mean() > 0.9
    deployed = Deployed.open(tmp_path / "model", tmp_path / "history")
    made, _ = deployed.features(table[:500].select("said"))
    for name in (WORDS, TERMS):
        stored = deployed.snapshot.column(name, 0, 500)
        assert np.array_equal(stored, made[name].numpy()), "an item is what it is as an input"


def test_words_that_are_new_since_training_are_learned_of_and_replayed(tmp_path: Path) -> None:
    """The rule turns round, and it is told by words that training never met."""
    texts, labels = praise(700)
    new = [f"{text} {('zork', 'blick')[label]}" for text, label in zip(texts, labels, strict=True)]
    table = pl.DataFrame(
        {
            "when": range(1400),
            "said": [*texts, *new],
            "label": [*np.where(labels == 1, "yes", "no"), *np.where(labels == 1, "no", "yes")],
        }
    )
    table[:700].write_csv(tmp_path / "old.csv")
    table[700:].write_csv(tmp_path / "new.csv")
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history", "--cache", tmp_path / "cache"]
    run("train", tmp_path / "old.csv", *where, "--label", "label", "--time", "when", "--text", "said", "--steps", 60)
    run("ingest", tmp_path / "new.csv", *where)
    deployed = Deployed.open(tmp_path / "model", tmp_path / "history")
    regression = HEADS.index("regression")
    replayed = deployed.live.answer_items(torch.arange(1200, 1400))
    wrong_way = np.where(labels[500:] == 1, 0, 1)  # classes in order: no, yes
    assert (replayed.heads[:, regression].argmax(1).numpy() == wrong_way).mean() > 0.97
    asked = table[1300:1301].select("said")
    alone = deployed.answer(asked, np.array([1300.0]))
    assert torch.equal(alone.log_probs[0], replayed.log_probs[100])


def rows_with_labels(model: Trained) -> Any:

    assert model.intake is not None
    return replace(model.intake.schema, id=None)


def test_rows_to_be_answered_need_neither_label_nor_time(place: Path) -> None:
    model = Trained.load(place / "model")
    assert model.intake is not None
    schema = rows_schema(model.intake.schema, ["a", "b", "colour"])
    assert (schema.label, schema.time, schema.id) == (None, None, None)
    deployed = Deployed.open(place / "model", place / "history")
    table = pl.DataFrame({"a": [0.5], "b": [None], "colour": ["mauve"]}, schema_overrides={"b": pl.Float64})
    (answer,) = deployed.predict(table, np.array([deployed.now()]))
    assert sum(answer.probabilities.values()) == pytest.approx(1.0, abs=1e-5)
    assert all(precedent.age > 0 for precedent in answer.precedents)


def test_a_model_of_tensors_is_not_deployed_on_rows(place: Path) -> None:

    model = replace(Trained.load(place / "model"), intake=None)
    with pytest.raises(SettingError, match="recollect train"):
        Deployed(model, History.open(place / "history"))


def test_payloads_leave_out_embeddings() -> None:
    assert json.loads(raw_json({"a": 1.5, "text": "ü", "vector": [1.0, 2.0]})) == {"a": 1.5, "text": "ü"}


def test_a_history_without_what_the_model_reads_is_refused(place: Path, tmp_path: Path) -> None:
    model = Trained.load(place / "model")
    schema = history_schema(model)
    less = replace(schema, features=schema.features[:-1])
    HistoryWriter.create(tmp_path / "history", less, classes=model.classes).close()
    with pytest.raises(SettingError, match=f"no column {schema.features[-1].name} .* recollect train --history"):
        Deployed(model, History.open(tmp_path / "history"))
