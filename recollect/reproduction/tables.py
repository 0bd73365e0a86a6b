"""Tables as streams: two public ones, the Australian electricity market and US accidents, and the paper's rotating
boundary as rows that come one after another."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recollect.data.electricity import electricity_table
from recollect.data.embedding_cache import embed_column
from recollect.data.events import Events
from recollect.data.intake import fit_intake, loaded
from recollect.data.reading import BadRows, Reading, Summary, read_all
from recollect.data.schema import TableSchema
from recollect.data.synthetic import RotatingTask
from recollect.data.tables.raw import BadRow
from recollect.errors import DataError
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import make_stream

DAY = 24 * 3600 * 10**9
TRAINED_SHARE = 0.3
ELECTRICITY = TableSchema(label="target", numeric=tuple(f"feat_{number}" for number in range(1, 7)))

SEASONS = ("winter", "spring", "summer", "autumn")
_PLACES = {**{season: place for place, season in enumerate(SEASONS)}, "fall": SEASONS.index("autumn")}
LONGEST_SEASON, FOUR_SEASONS = 92 * DAY, (366 + 92) * DAY
"""How far back from the start of a season the one before begins, at most, and the first of the last four whose labels
are known: in spring that season before is winter, of which nothing is known until the year is over."""

ACCIDENTS = TableSchema(
    label="target",
    numeric=("Start_Lat", "Start_Lng", "Distance(mi)", "Temperature(F)", "Humidity(%)", "Visibility(mi)"),
    categorical=("day_of_week_acc", "Nautical_Twilight", "season_acc"),
    text=("Description",),
)
_WHEN = TableSchema(
    label="target",
    numeric=(*ACCIDENTS.numeric, "year_acc"),
    categorical=ACCIDENTS.categorical,
    text=ACCIDENTS.text,
)
"""What is read of the accidents: the year too, which is no feature."""

ROTATING_ROWS = 20_000
ROTATING_CUTOFF, ROTATING_BIN = 0.5, 0.05
"""Of time from 0 to 1: where training ends, and how long a bin is."""


def electricity_stream(label_delay: int = 0) -> Stream:
    """The market, trained on the first 30% of it and judged by quarters of 90 days."""
    table = electricity_table()
    time = table["time"].dt.cast_time_unit("ns").to_physical().to_numpy(writable=True)
    cutoff = int(time[int(TRAINED_SHARE * table.height)])
    labels = table["target"].to_numpy().astype(np.int64)
    bins = (time - cutoff) // (90 * DAY)
    return _stream(table, labels, ELECTRICITY, time, time + label_delay, bins, cutoff, {})


def accidents_stream(
    path: Path, cache: Path, year: int = 2019, *, bad_rows: BadRows = "fail"
) -> tuple[Stream, Summary]:
    """Accidents season by season, trained on what came before a year, and what was left out when they were read.

    Labels of a season are known when it is over: rows of one season have one time, so they never see each other. A
    winter of this table is January, February and December of one year. It is asked at the beginning of that year, and
    is not over before the end of it: what happened in December must not be known in spring.
    """
    events, reading = read_all(path, _WHEN, bad_rows=bad_rows, labels=(0.0, 1.0))
    events = _of_a_season(events, reading)
    number = _numbers_of_seasons(events)
    order = np.argsort(number, kind="stable")
    number, events = number[order], events.take(order)
    time = _starts(number)
    # What is known at the very moment that the next season begins would not be visible in it.
    known_at = _starts(np.where(number % 4 == SEASONS.index("winter"), number + 4, number + 1)) - 1
    cutoff = int(_starts(np.array([4 * year]))[0])
    texts = embed_column(events.columns["Description"].fill_null("").to_list(), loaded("wordllama"), cache)
    assert events.label is not None
    labels = events.label.cast(pl.Int64).to_numpy(writable=True)
    stream = _stream(events.columns, labels, ACCIDENTS, time, known_at, number, cutoff, {"Description": texts})
    return stream, reading.summary


def _starts(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first moments of seasons."""
    seasons, places = np.unique(number, return_inverse=True)
    starts = [datetime(each // 4, 1 + 3 * (each % 4), 1, tzinfo=UTC) for each in seasons.tolist()]
    return np.array([int(start.timestamp()) * 10**9 for start in starts], dtype=np.int64)[places]


def _of_a_season(events: Events, reading: Reading) -> Events:
    """Those whose year and season are known; the others go the way of all bad rows."""
    whens = zip(events.columns["season_acc"], events.columns["year_acc"], strict=True)
    bad = {
        place: BadRow(
            int(events.rows[place]),
            events.id[place],
            "no season",
            f"season_acc is {season!r} and year_acc {year}, but seasons are {', '.join(SEASONS)} or fall, and years "
            "from 1970 on",
            {**events.columns.row(place, named=True), "target": None if events.label is None else events.label[place]},
        )
        for place, (season, year) in enumerate(whens)
        if season not in _PLACES or year is None or not 1970 <= year <= 2261
    }
    if not bad:
        return events
    reading.leave_out(list(bad.values()), len(events))
    reading.summary.events -= len(bad)
    if len(bad) == len(events):
        raise DataError(f"{reading.table.name} has no row of a season ({reading.summary})")
    return events.take(np.delete(np.arange(len(events)), list(bad)))


def _numbers_of_seasons(events: Events) -> NDArray[np.int64]:
    """Four for each year."""
    places = events.columns["season_acc"].cast(pl.String).replace_strict(_PLACES)
    found: NDArray[np.int64] = (4 * events.columns["year_acc"].cast(pl.Int64) + places).to_numpy()
    return found


def rotating_stream(rows: int = ROTATING_ROWS) -> Stream:
    """The rotating boundary as a table of numbers: rows at uniform moments, each of which sees all before it."""
    generator = torch.Generator().manual_seed(0)
    task = RotatingTask.draw(generator, dates=False)
    moments = torch.rand(rows, generator=generator, dtype=torch.float64).sort().values
    x, labels = task.rows(moments, generator)
    table = pl.DataFrame(x.numpy(), schema=[f"x{column}" for column in range(x.shape[1])])
    schema, time = TableSchema(label="label", numeric=tuple(table.columns)), moments.numpy()
    bins = np.floor((time - ROTATING_CUTOFF) / ROTATING_BIN).astype(np.int64)
    return _stream(table, labels.numpy(), schema, time, time, bins, ROTATING_CUTOFF, {})


def _stream(
    table: pl.DataFrame,
    labels: NDArray[np.int64],
    schema: TableSchema,
    time: np.ndarray,
    known_at: np.ndarray,
    bins: NDArray[np.int64],
    cutoff: int | float,
    embeddings: dict[str, np.ndarray],
) -> Stream:
    past = np.flatnonzero(known_at < cutoff)
    intake = fit_intake(table, past, schema, "wordllama" if embeddings else None, embeddings, labels, time, known_at)
    classes = int(labels[past].max()) + 1
    return make_stream(table, intake, embeddings, labels, time, known_at, bins, cutoff, classes)
