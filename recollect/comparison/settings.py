"""From what a person writes on the command line to events and options."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from recollect.comparison.compare import Options
from recollect.data.events import Events
from recollect.data.inference import infer_schema
from recollect.data.reading import first_rows, read_all
from recollect.data.schema import TableSchema, schema_table
from recollect.data.tables.times import read_times
from recollect.errors import DataError, SettingError
from recollect.evaluation.peers import DEFAULT, SLOW, peers
from recollect.evaluation.table_stream import after_share

EXAMPLE = "electricity"
"""Given in place of a file: data that ships with the package."""

FEW_CLASSES = 10
"""So many may be in a table of any length: half of the rows of a tiny one."""

UNITS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9, "w": 7 * 86_400 * 10**9}


def read(data: Path, given: Mapping[str, Any]) -> tuple[Events, TableSchema, Options, str]:
    """The events of a table, and the options in its unit of time."""
    events, schema = read_table(data, given)
    names = tuple(given["peers"]) or DEFAULT
    if "all" in names:
        names = DEFAULT + SLOW
    peers(period=1, year=1, names=names)  # a wrong name is told before anything is trained
    share, cutoff = cutoff_from(given["cutoff"], schema.plain_times)
    options = Options(
        cutoff=cutoff,
        share=share,
        label_delay=span_from(given["label_delay"], schema.plain_times, "--label-delay"),
        bins=given["bins"],
        refit=None if given["refit"] is None else span_from(given["refit"], schema.plain_times, "--refit"),
        seeds=tuple(given["seeds"]),
        peers=names,
        embedder=given["embedder"],
        scale=given["scale"],
    )
    return events, schema, options, name_of(data)


def name_of(data: Path) -> str:
    """What a comparison is called after its table."""
    return data.name.split(".")[0]


def read_table(data: Path, given: Mapping[str, Any], schema: TableSchema | None = None) -> tuple[Events, TableSchema]:
    """The labelled events of a table with what was inferred of it, unless it is known, which is shown."""
    source: Any = data
    if str(data) == EXAMPLE:
        source = electricity_table()
        given = {**given, "time": given["time"] or "time", "label": given["label"] or "target"}
    elif not data.exists():
        raise DataError(f'there is no file {data}: give the path of a table, or "{EXAMPLE}" for one that comes along')
    rows = first_rows(source)
    columns = {role: given[role] for role in ("time", "time_unit", "known_at", "label", "id")}
    features = {role: given[role] for role in ("text", "numeric", "categorical", "embedding", "ignore")}
    schema = schema or infer_schema(rows, **columns, **features)
    if schema.label is None:
        raise DataError(f"no column of {data.name} looks like a label: name it with --label")
    Console().print(schema_table(schema, rows))
    events, reading = read_all(source, schema, bad_rows=given["bad_rows"])
    Console().print(f"{data.name}: {reading.summary}")
    _check_ids(events)
    _check_classes(events, schema)
    return events, schema


def electricity_table() -> pl.DataFrame:
    """The Australian electricity market, which ships with the package, with the time of each half-hour."""
    with files("recollect.data").joinpath("electricity.csv.gz").open("rb") as file:
        table = pl.read_csv(file.read())
    start = datetime(1996, 5, 7, tzinfo=UTC)
    return table.with_columns(time=pl.Series([start + index * timedelta(minutes=30) for index in range(table.height)]))


def _check_ids(events: Events) -> None:
    counts = events.id.value_counts()
    twice = counts.filter(pl.col("count") > 1)
    if twice.height:
        name = counts.columns[0]
        raise DataError(
            f"the id {twice[name][0]!r} comes {twice['count'][0]} times: ids must differ; name another column with --id"
        )


def _check_classes(events: Events, schema: TableSchema) -> None:
    different = 0 if events.label is None else events.label.n_unique()
    if different > max(FEW_CLASSES, len(events) / 2):
        raise DataError(
            f"the label {schema.label} has {different} different values in {len(events)} rows: a class for nearly "
            "every row can't be learned; name a column of classes with --label, or put these into ranges first"
        )


def span_from(text: str, plain: bool, option: str) -> int | float:
    """7d, 12h, 30m, 90s or 2w as nanoseconds; a number where times are plain numbers."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw]?)\s*", text)
    if found is None:
        raise SettingError(f"{option} {text!r} can't be read: write a span such as 7d, 12h or 30m, or a plain number")
    number, unit = float(found[1]), found[2]
    if number == 0:
        return 0
    if plain:
        if unit:
            raise SettingError(f"{option} {text!r} has a unit, but the times are plain numbers: give a plain number")
        return number
    if not unit:
        raise SettingError(f"{option} {text!r} has no unit: write a span such as 7d, 12h or 30m")
    return round(number * UNITS[unit])


def cutoff_from(text: str, plain: bool) -> tuple[float, int | float | None]:
    """A share of the rows and None, or a moment."""
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is not None and 0 < number < 1:
        return number, None
    return 0.5, moment_from(text, plain)


def cutoff_in(events: Events, text: str, plain: bool) -> int | float:
    """The moment that a person means by a cutoff: also if it was given as a share of the rows."""
    share, moment = cutoff_from(text, plain)
    return after_share(events.time, share) if moment is None else moment


def moment_from(text: str, plain: bool) -> int | float:
    """A date or time as nanoseconds; a number where times are plain numbers."""
    if plain:
        try:
            return float(text)
        except ValueError:
            raise SettingError(f"{text!r} is no number, but the times are: give one") from None
    moment = read_times(pl.Series([text]), "datetime")[0]
    if moment is None:
        raise SettingError(f"{text!r} can't be read as a moment: give a date such as 2019-01-01")
    return int(moment)
