"""Two tables of answers: the better one is told, equal ones are not told apart, and others are refused."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.comparison.paired import compare_answers, read_answers
from recollect.errors import DataError, SettingError
from recollect.evaluation.answer_table import answer_table, write_table

LABELS = np.arange(200) % 2
BINS = np.arange(200) // 50


def answers(right: float, classes: tuple[str, ...] = ("a", "b")) -> pl.DataFrame:
    """So many of them right, with .8."""
    chosen = np.where(np.arange(200) % 10 < 10 * right, LABELS, 1 - LABELS)
    log_probs = np.log(np.where(chosen[:, None] == np.arange(len(classes)), 0.8, 0.2 / (len(classes) - 1)))
    ids = pl.Series("id", [f"row {number}" for number in range(200)])
    return answer_table(ids, log_probs, classes, labels=LABELS)


def test_the_better_one_is_told_with_its_certainty() -> None:
    found = compare_answers(answers(0.9), answers(0.5), BINS)
    accuracy = found["measures"]["accuracy"]
    assert (accuracy["this"], accuracy["other"]) == (pytest.approx(0.9), pytest.approx(0.5))
    assert accuracy["difference"]["low"] > 0
    assert accuracy["difference"]["p_value"] < 0.05
    assert found["mcnemar"] < 1e-6
    assert found["measures"]["nll"]["difference"]["high"] < 0


def test_two_answers_to_one_row_are_refused() -> None:
    with pytest.raises(DataError, match="have 'row 0' twice: give a table with one answer to each row"):
        compare_answers(answers(0.9), pl.concat([answers(0.5), answers(0.5)[:1]]), BINS)


def test_rows_meet_by_id_and_classes_by_name() -> None:
    other = answers(0.9, ("a", "b", "c"))[50:].reverse()
    found = compare_answers(answers(0.9), other, BINS)
    assert found["rows"] == 150
    assert found["measures"]["accuracy"]["difference"]["value"] == 0
    assert found["mcnemar"] == 1
    assert found["measures"]["nll"]["difference"]["value"] == pytest.approx(0, abs=0.2)
    with pytest.raises(DataError, match="no id in common"):
        compare_answers(answers(0.9), other.with_columns(id=pl.lit("x")), BINS)


def test_what_is_no_table_of_answers_is_refused(tmp_path: Path) -> None:
    write_table(answers(0.9).drop("label"), tmp_path / "unlabelled.parquet")
    with pytest.raises(DataError, match="has no label"):
        read_answers(tmp_path / "unlabelled.parquet")
    (tmp_path / "text.parquet").write_text("none")
    (tmp_path / "text.csv").write_text("id,label,probability_a\n1,a,much\n")
    for name in ("text.parquet", "text.csv", "nowhere.parquet", "nowhere.jsonl"):
        with pytest.raises(DataError, match="can't be read"):
            read_answers(tmp_path / name)
    with pytest.raises(SettingError, match=r"unknown ending: give a file that ends in .parquet, .csv or .jsonl"):
        read_answers(tmp_path / "answers.xlsx")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_answers_are_read_from_every_ending(ending: str, tmp_path: Path) -> None:
    numbers = answers(0.9).with_columns(id=pl.int_range(200), label=pl.Series(LABELS).cast(pl.String))
    numbers = numbers.rename({"probability_a": "probability_0", "probability_b": "probability_1"})
    write_table(numbers, tmp_path / f"answers.{ending}")
    found = compare_answers(numbers, read_answers(tmp_path / f"answers.{ending}"), BINS)
    assert found["rows"] == 200
    assert found["measures"]["nll"]["difference"]["value"] == pytest.approx(0, abs=1e-9)
