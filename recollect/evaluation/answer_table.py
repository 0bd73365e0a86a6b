"""Answers as a table in a file: one row for each input, with its probabilities and the precedents they rest on.

Comparisons, replays and predictions write the same columns, so that any two of them can be set side by side.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from recollect.errors import DataError, SettingError
from recollect.evaluation.metrics import LogProbs

PROBABILITY = "probability_"
ENDINGS = (".parquet", ".csv", ".jsonl")


def answer_table(
    ids: pl.Series,
    log_probs: LogProbs,
    classes: Sequence[str],
    *,
    time: NDArray[Any] | None = None,
    labels: NDArray[np.int64] | None = None,
    precedents: Sequence[Sequence[Any]] | None = None,
    weights: Sequence[Sequence[float]] | None = None,
) -> pl.DataFrame:
    """Columns id, time, label, predicted, probability_CLASS for each class, precedents (ids) and their weights.

    What is not given has no column.
    """
    probabilities = np.exp(log_probs)
    columns: dict[str, Any] = {"id": ids}
    if time is not None:
        moments = pl.Series(time)
        columns["time"] = moments.cast(pl.Datetime("ns", "UTC")) if moments.dtype == pl.Int64 else moments
    if labels is not None:
        columns["label"] = [classes[code] for code in labels.tolist()]
    columns["predicted"] = [classes[code] for code in probabilities.argmax(1).tolist()]
    columns |= {f"{PROBABILITY}{classes[code]}": column for code, column in enumerate(probabilities.T)}
    if precedents is not None:
        columns["precedents"] = precedents
    if weights is not None:
        columns["weights"] = weights
    return pl.DataFrame(columns)


def check_table_path(path: Path) -> None:
    """Before anything is computed: the ending is known and the folder is there."""
    _check_ending(path, "name it")
    if not path.parent.is_dir() or path.is_dir():
        raise SettingError(f"{path} can't be written: {path.parent} must be a folder, and {path.name} a file in it")


def read_table(path: Path) -> pl.DataFrame:
    """What `write_table` wrote, by the file's ending; from CSV ids and labels come as texts, and lists do too."""
    _check_ending(path, "give a file that ends in")
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        if path.suffix == ".jsonl":
            return pl.read_ndjson(path, infer_schema_length=None)
        texts = pl.read_csv(path, infer_schema=False)
        return texts.with_columns(cs.starts_with(PROBABILITY).cast(pl.Float64))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"{path} can't be read ({error}): give the answers of another replay") from error


def _check_ending(path: Path, remedy: str) -> None:
    if path.suffix not in ENDINGS:
        raise SettingError(f"{path} has an unknown ending: {remedy} {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")


def write_table(table: pl.DataFrame, path: Path) -> None:
    """By the file's ending, beside and renamed. Bytes first: polars tells a full disk in a way of its own."""
    held = io.BytesIO()
    if path.suffix == ".parquet":
        table.write_parquet(held)
    elif path.suffix == ".jsonl":
        table.write_ndjson(held)
    else:
        _flat(table).write_csv(held)
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_bytes(held.getbuffer())
    beside.replace(path)


def _flat(table: pl.DataFrame) -> pl.DataFrame:
    """Lists as texts, since CSV has none."""
    lists = [name for name, kind in table.schema.items() if isinstance(kind, pl.List)]
    return table.with_columns(
        pl.format("[{}]", pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(", ")) for name in lists
    )
