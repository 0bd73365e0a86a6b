"""Two tables of answers to the same rows, side by side: which was better, by how much, and may it be chance?

Reads what `recollect compare`, `replay` and others wrote by `answer_table`; knows nothing of the models behind them.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.table import Table

from recollect.errors import DataError
from recollect.evaluation.answer_table import PROBABILITY, read_table
from recollect.evaluation.metrics import MEASURES, LogProbs, mcnemar, mean_over_bins, paired_difference

JUDGED = ("accuracy", "balanced_accuracy", "nll", "brier")
RESAMPLES = 300


def read_answers(path: Path) -> pl.DataFrame:
    """Answers with their labels, as a comparison or a replay wrote them."""
    table = read_table(path)
    lacking = [name for name in ("id", "label") if name not in table.columns]
    if lacking or not _classes(table):
        raise DataError(
            f"{path} has no {', '.join(lacking) or 'probabilities'}: give the predictions.parquet of a comparison, "
            "or what recollect replay --out wrote"
        )
    return table


def compare_answers(first: pl.DataFrame, second: pl.DataFrame, bins: NDArray[np.int64]) -> dict[str, Any]:
    """Every judged measure of both, on the rows they have in common, with the paired difference (first less second).

    `bins` are the periods of the first table's rows. `mcnemar` is the p-value of McNemar's exact test.
    """
    names = sorted({*_classes(first), *_classes(second), *first["label"].unique()})
    first = first.with_columns(id=pl.col("id").cast(pl.String), bin=pl.Series(bins))
    second = second.with_columns(id=pl.col("id").cast(pl.String))
    first = first.filter(pl.col("id").is_in(second["id"].implode()))
    if not first.height:
        raise DataError("the two have no id in common: give answers to the same rows")
    second = second.filter(pl.col("id").is_in(first["id"].implode()))
    if second["id"].is_duplicated().any():
        twice = second["id"].filter(second["id"].is_duplicated())[0]
        raise DataError(f"the other answers have {twice!r} twice: give a table with one answer to each row")
    second = first.select("id").join(second, on="id", how="left", maintain_order="left")
    code = {name: number for number, name in enumerate(names)}
    labels = first["label"].replace_strict(code, return_dtype=pl.Int64).to_numpy()
    runs = _log_probs(first, names), _log_probs(second, names)
    periods = first["bin"].to_numpy()
    found: dict[str, Any] = {"rows": first.height, "mcnemar": mcnemar(*runs, labels), "measures": {}}
    for name in JUDGED:
        measure = MEASURES[name]
        one, other = (mean_over_bins(measure, run, labels, periods) for run in runs)
        difference = paired_difference(measure, *runs, labels, periods, resamples=RESAMPLES)
        found["measures"][name] = {"this": one, "other": other, "difference": asdict(difference)}
    return found


def paired_table(found: dict[str, Any], other: str) -> Table:
    """For a terminal of 80 columns."""
    title = f"against {other}, {found['rows']} rows, means over the periods"
    table = Table("", "this", "other", "difference", "95% interval", "p", title=title)
    for name, each in found["measures"].items():
        gap = each["difference"]
        table.add_row(
            name,
            f"{each['this']:.3f}",
            f"{each['other']:.3f}",
            f"{gap['value']:+.3f}",
            f"{gap['low']:+.3f} to {gap['high']:+.3f}",
            f"{gap['p_value']:.3f}",
        )
    return table


def _classes(table: pl.DataFrame) -> list[str]:
    return [name.removeprefix(PROBABILITY) for name in table.columns if name.startswith(PROBABILITY)]


def _log_probs(table: pl.DataFrame, names: list[str]) -> LogProbs:
    """Probabilities by class in one order; what a run never answered has probability 0."""
    found = np.zeros((table.height, len(names)))
    for code, name in enumerate(names):
        if f"{PROBABILITY}{name}" in table.columns:
            found[:, code] = table[f"{PROBABILITY}{name}"].to_numpy()
    with np.errstate(divide="ignore"):
        return np.log(found)
