"""Answers come back from every kind of file as they went in."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.errors import SettingError
from recollect.evaluation.answer_table import answer_table, check_table_path, write_table


def table() -> pl.DataFrame:
    return answer_table(
        pl.Series("id", ["x", "y"]),
        np.log([[0.9, 0.1], [0.25, 0.75]]),
        ("no", "yes"),
        time=np.array([0, 86_400 * 10**9]),
        labels=np.array([0, 0]),
        precedents=[["u", "v"], []],
        weights=[[0.5, 0.5], []],
    )


def test_a_row_has_all_that_an_answer_is() -> None:
    first = table().row(0, named=True)
    assert first["probability_no"] == pytest.approx(0.9)
    assert (first["id"], first["label"], first["predicted"], first["precedents"]) == ("x", "no", "no", ["u", "v"])
    assert table()["time"].dt.to_string("%Y-%m-%d").to_list() == ["1970-01-01", "1970-01-02"]


def test_every_ending(tmp_path: Path) -> None:
    for ending in ("parquet", "jsonl", "csv"):
        write_table(table(), tmp_path / f"answers.{ending}")
    assert pl.read_parquet(tmp_path / "answers.parquet").equals(table())
    assert pl.read_ndjson(tmp_path / "answers.jsonl")["precedents"].to_list() == [["u", "v"], []]
    assert pl.read_csv(tmp_path / "answers.csv")["precedents"].to_list() == ["[u, v]", "[]"]
    assert len(list(tmp_path.iterdir())) == 3


def test_what_can_t_be_written_is_told_at_once(tmp_path: Path) -> None:
    check_table_path(tmp_path / "answers.csv")
    with pytest.raises(SettingError, match="name it"):
        check_table_path(tmp_path / "answers.xlsx")
    with pytest.raises(SettingError, match="must be a folder"):
        check_table_path(tmp_path / "none" / "answers.csv")
