"""Two public tables as streams: the Australian electricity market, which ships with the package, and US accidents."""

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl

from recollect.data.embedding_cache import embed_column
from recollect.data.intake import fit_intake, loaded
from recollect.data.schema import TableSchema
from recollect.errors import DataError
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import make_stream

HALF_HOUR = 30 * 60 * 10**9
DAY = 48 * HALF_HOUR
TRAINED_SHARE = 0.3
ELECTRICITY = TableSchema(label="target", numeric=tuple(f"feat_{number}" for number in range(1, 7)))

SEASONS = ("winter", "spring", "summer", "autumn")
LONGEST_SEASON, FOUR_SEASONS = 92 * DAY, 366 * DAY
"""How far back from the start of a season the one before begins, at most, and the one of the year before."""

ACCIDENTS = TableSchema(
    label="target",
    numeric=("Start_Lat", "Start_Lng", "Distance(mi)", "Temperature(F)", "Humidity(%)", "Visibility(mi)"),
    categorical=("day_of_week_acc", "Nautical_Twilight", "season_acc"),
    text=("Description",),
)


def electricity_table() -> pl.DataFrame:
    """45,312 half-hours from May 1996, in order."""
    with files("recollect.data").joinpath("electricity.csv.gz").open("rb") as file:
        return pl.read_csv(file.read())


def electricity_stream(label_delay: int = 0) -> Stream:
    """The market, trained on the first 30% of it and judged by quarters of 90 days."""
    table = electricity_table()
    start = int(datetime(1996, 5, 7, tzinfo=UTC).timestamp()) * 10**9
    time = start + HALF_HOUR * np.arange(table.height, dtype=np.int64)
    cutoff = int(time[int(TRAINED_SHARE * table.height)])
    return _stream(table, ELECTRICITY, time, time + label_delay, (time - cutoff) // (90 * DAY), cutoff, {})


def accidents_stream(path: Path, cache: Path, year: int = 2019) -> Stream:
    """Accidents season by season, trained on what came before a year. Labels of a season are known when it is over:
    rows of one season have one time, so they never see each other."""
    table = pl.read_csv(path)
    missing = {*ACCIDENTS.features, "target", "year_acc"} - set(table.columns)
    if missing:
        raise DataError(f"{path.name} has no column {min(missing)}: give the table of US accidents")
    season = table["season_acc"].replace({"fall": "autumn"}).to_list()
    unknown = set(season) - set(SEASONS)
    if unknown:
        raise DataError(f"{path.name} has the season {min(unknown)!r}: seasons are {', '.join(SEASONS)}")
    number = 4 * table["year_acc"].to_numpy() + np.array([SEASONS.index(each) for each in season])
    order = np.argsort(number, kind="stable")
    number, table = number[order], table[order]
    starts = {
        each: int(datetime(each // 4, 1 + 3 * (each % 4), 1, tzinfo=UTC).timestamp()) * 10**9
        for each in np.unique(number).tolist()
    }
    time = np.array([starts[each] for each in number.tolist()], dtype=np.int64)
    cutoff = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    texts = embed_column(table["Description"].to_list(), loaded("wordllama"), cache)
    return _stream(table, ACCIDENTS, time, time, number.astype(np.int64), cutoff, {"Description": texts})


def _stream(
    table: pl.DataFrame,
    schema: TableSchema,
    time: np.ndarray,
    known_at: np.ndarray,
    bins: np.ndarray,
    cutoff: int,
    embeddings: dict[str, np.ndarray],
) -> Stream:
    past = np.flatnonzero(known_at < cutoff)
    labels = table["target"].to_numpy().astype(np.int64)
    intake = fit_intake(table, past, schema, "wordllama" if embeddings else None, embeddings, labels, time, known_at)
    classes = int(labels[past].max()) + 1
    return make_stream(table, intake, embeddings, labels, time, known_at, bins, cutoff, classes)
