"""Rows into a history: none is lost, none comes twice, and none gets a time at which it was not there."""

from pathlib import Path

import polars as pl
import pytest

from recollect.errors import ItemError
from recollect.history.reader import History
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
