"""Rows into a history: none is lost, none comes twice, and none gets a time at which it was not there."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.data.embedding import EmbedderSpec
from recollect.data.intake import _loaded
from recollect.errors import ItemError, SettingError
from recollect.history.reader import History
from recollect.trained import Trained
from tests.data.hashing_embedder import HashingEmbedder
from tests.test_deployed import run


def by_order(first: int, count: int) -> pl.DataFrame:
    numbers = range(first, first + count)
    return pl.DataFrame({"x": [number % 7 for number in numbers], "y": ["ab"[number % 2] for number in numbers]})


def test_where_rows_have_no_time_new_ones_come_after_all_that_is_there(tmp_path: Path) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    by_order(0, 200).write_csv(tmp_path / "old.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--steps", 2)
    by_order(0, 60).write_csv(tmp_path / "new.csv")
    assert "60 items added" in run("ingest", tmp_path / "new.csv", *where)
    by_order(0, 100).write_csv(tmp_path / "new.csv")  # the same file, grown
    assert "40 items added, 60 were there already" in run("ingest", tmp_path / "new.csv", *where)
    snapshot = History.open(tmp_path / "history").snapshot
    assert snapshot.column("time").tolist() == [float(number) for number in range(300)]
    run("replay", *where, "--out", tmp_path / "replayed.parquet")
    replayed = pl.read_parquet(tmp_path / "replayed.parquet")
    assert replayed.height == 30 + 100
    early = replayed.filter(pl.col("id").str.starts_with("old"))["precedents"].explode().drop_nulls()
    assert not early.str.starts_with("new").any()


@pytest.mark.parametrize(("of_history", "of_model"), [("x", "z"), ("z", "x")])
def test_a_model_that_makes_other_features_of_rows_is_refused(tmp_path: Path, of_history: str, of_model: str) -> None:
    """Both have the same keys, but only one has a category beside the number."""
    table = by_order(0, 200).with_columns(z=pl.Series(["b", "a"] * 100))
    table.write_csv(tmp_path / "rows.csv")
    for name in (of_history, of_model):
        others = ["--ignore", "z"] if name == "x" else []
        where = ["--model", tmp_path / f"model-{name}", "--history", tmp_path / f"history-{name}"]
        run("train", tmp_path / "rows.csv", *where, "--label", "y", "--steps", 2, *others)
    with pytest.raises(SettingError, match="recollect train --history"):
        run(
            "ingest",
            tmp_path / "rows.csv",
            *("--model", tmp_path / f"model-{of_model}", "--history", tmp_path / f"history-{of_history}"),
        )


@pytest.mark.parametrize("delay", [5, 2.5])
def test_rows_without_a_time_come_one_after_the_other_also_if_labels_are_late(tmp_path: Path, delay: float) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history", "--label-delay", delay]
    for name, first in (("old", 0), ("new", 200), ("newer", 260)):
        by_order(first, 200 if name == "old" else 60).write_csv(tmp_path / f"{name}.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--steps", 2)
    for name in ("new", "newer"):
        assert "60 items added" in run("ingest", tmp_path / f"{name}.csv", *where)
    snapshot = History.open(tmp_path / "history").snapshot
    assert snapshot.column("time").tolist() == [float(number) for number in range(320)]
    assert snapshot.column("known_at").tolist() == [number + delay for number in range(320)]


def test_a_model_is_trained_and_fed_under_a_delay_of_its_labels(tmp_path: Path) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    table = by_order(0, 240).with_columns(
        when=pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 10, 23), "1h", eager=True)
    )
    table[:200].write_csv(tmp_path / "old.csv")
    table[200:].write_csv(tmp_path / "new.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--label-delay", "2d", "--steps", 2)
    until = Trained.load(tmp_path / "model").trained_on.until
    run("ingest", tmp_path / "new.csv", "--config", tmp_path / "model" / "config.toml")
    snapshot = History.open(tmp_path / "history").snapshot
    assert set((snapshot.column("known_at") - snapshot.column("time")).tolist()) == {2 * 86_400 * 10**9}
    assert until > snapshot.column("time")[199], "counted in the times of labels"
    with pytest.raises(SettingError, match="'7' has no unit"):
        run("ingest", tmp_path / "new.csv", *where, "--label-delay", 7)


def test_another_file_of_the_same_name_is_not_taken_for_the_first(tmp_path: Path) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    by_order(0, 200).write_csv(tmp_path / "old.csv")
    run("train", tmp_path / "old.csv", "--model", tmp_path / "model", "--label", "y", "--steps", 2)
    for day, first in (("monday", 0), ("tuesday", 1)):
        (tmp_path / day).mkdir()
        by_order(first, 50).write_csv(tmp_path / day / "new.csv")
    assert "50 items added" in run("ingest", tmp_path / "monday" / "new.csv", *where, "--create")
    with pytest.raises(ItemError, match=r"new\.csv:2 is in the history already, with another label.* train with --id"):
        run("ingest", tmp_path / "tuesday" / "new.csv", *where)


def test_rows_that_are_there_with_another_label_or_content_are_counted(tmp_path: Path) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    table = by_order(0, 200).with_columns(
        id=pl.Series([f"m{number}" for number in range(200)]), when=pl.Series(range(200))
    )
    table.write_csv(tmp_path / "old.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--id", "id", "--time", "when", "--steps", 2)
    run("history", "correct", tmp_path / "history", "m3", "a", "--at", 500)
    told = run("ingest", tmp_path / "old.csv", *where)
    assert "200 were there already" in told
    assert "another label" not in told, "a correction is no difference"
    new = table[:4].with_columns(y=pl.Series(["a", "a", "a", "b"]), x=pl.Series([5, 1, 2, 3]))
    twice = pl.DataFrame({"x": [1, 2], "y": ["a", "b"], "id": ["new", "new"], "when": [300, 300]})
    pl.concat([new, twice], how="vertical").write_csv(tmp_path / "new.csv")
    told = run("ingest", tmp_path / "new.csv", *where)
    assert "1 items added, 5 were there already" in told
    assert "3 of those that were there already have another label, time or content" in told


def with_texts(first: int, count: int) -> pl.DataFrame:
    numbers = range(first, first + count)
    return pl.DataFrame(
        {
            "time": [1.7e9 + 3600 * number for number in numbers],
            "words": [f"what came as number {number}" for number in numbers],
            "y": ["ab"[number % 2] for number in numbers],
        }
    )


def test_no_command_embeds_a_text_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = HashingEmbedder()
    monkeypatch.setitem(_loaded, EmbedderSpec("wordllama"), embedder)
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history", "--cache", tmp_path / "cache"]
    with_texts(0, 100).write_csv(tmp_path / "old.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--text", "words", "--steps", 2)
    assert len(embedder.embedded) == 100, "once for training and for the history"
    assert "100 were there already" in run("ingest", tmp_path / "old.csv", *where)
    assert len(embedder.embedded) == 100
    with_texts(90, 30).write_csv(tmp_path / "new.csv")
    run("predict", tmp_path / "new.csv", *where, "--out", tmp_path / "answers.csv")
    run("explain", tmp_path / "new.csv", *where, "--row", 29)
    run("ingest", tmp_path / "new.csv", *where)
    assert sorted(embedder.embedded) == sorted(with_texts(0, 120)["words"])


def test_an_ingest_that_was_stopped_embeds_only_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(HashingEmbedder):
        def embed(self, texts: list[str]) -> np.ndarray:
            if len(self.batches) == 3:
                raise KeyboardInterrupt
            return super().embed(texts)

    spec, where = EmbedderSpec("wordllama"), ["--model", tmp_path / "model", "--cache", tmp_path / "cache"]
    monkeypatch.setitem(_loaded, spec, HashingEmbedder())
    with_texts(0, 100).write_csv(tmp_path / "old.csv")
    run("train", tmp_path / "old.csv", *where, "--label", "y", "--text", "words", "--steps", 2)
    with_texts(100, 40).write_csv(tmp_path / "new.csv")
    monkeypatch.setitem(_loaded, spec, stopped := Stopped())
    ingest = ["ingest", tmp_path / "new.csv", *where, "--history", tmp_path / "history"]
    with pytest.raises(AssertionError):  # of the exit code
        run(*ingest, "--create")
    monkeypatch.setitem(_loaded, spec, again := HashingEmbedder())
    assert "40 items added" in run(*ingest)
    assert len(stopped.embedded) == 12
    assert sorted(stopped.embedded + again.embedded) == sorted(with_texts(100, 40)["words"])
