"""From what a person writes on the command line to events and options."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from recollect.comparison.compare import Options
from recollect.comparison.spans import length_from, span_from
from recollect.console import plain_console
from recollect.data.electricity import electricity_table
from recollect.data.events import Events
from recollect.data.inference import infer_schema
from recollect.data.reading import Summary, first_rows, read_all
from recollect.data.schema import TableSchema, schema_table
from recollect.data.tables.numbers import says_missing
from recollect.data.tables.times import read_times
from recollect.errors import DataError, SettingError
from recollect.evaluation.peers import DEFAULT, SLOW, lacking, peers
from recollect.evaluation.table_stream import after_share

EXAMPLE = "electricity"
"""Given in place of a file: data that ships with the package."""

FEW_CLASSES = 10
"""So many may be in a table of any length: half of the rows of a tiny one."""


def read(data: Path, given: Mapping[str, Any]) -> tuple[Events, TableSchema, Options, str]:
    """The events of a table, and the options in its unit of time."""
    events, schema, summary = read_table(data, given)
    plain = schema.plain_times

    def length(role: str) -> int | float | None:
        return None if given[role] is None else length_from(given[role], plain, f"--{role.replace('_', '-')}")

    names, left_out = _peers(given["peers"])
    share, cutoff = cutoff_from(given["cutoff"], plain)
    options = Options(
        cutoff=cutoff,
        share=share,
        label_delay=delay_from(given["label_delay"], schema),
        bins=given["bins"],
        refit=tuple(sorted({length_from(text, plain, "--refit") for text in given["refit"]})),
        seeds=tuple(dict.fromkeys(given["seeds"])),
        peers=names,
        peer_window=length("peer_window"),
        peer_period=length("peer_period"),
        embedder=given["embedder"],
        scale=given["scale"],
        notes=left_out + ((f"{data.name}: {summary}",) if summary.has_gaps else ()),
        reading=summary.to_json(),
    )
    return events, schema, options, name_of(data)


def delay_from(text: str, schema: TableSchema) -> int | float:
    """How long after their rows labels are known; refused where a column says it."""
    delay = span_from(text, schema.plain_times, "--label-delay")
    if delay and schema.known_at is not None:
        raise SettingError(
            f"both --label-delay and the column {schema.known_at} say when labels are known: give one of them "
            f"(--ignore {schema.known_at} leaves the column out)"
        )
    return delay


def _peers(asked: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of peers, and a note on those that nobody asked for and that a missing package keeps out."""
    if not asked:
        missing = lacking(DEFAULT)
        left_out = f"without the packages {', '.join(sorted(set(missing.values())))} these peers are left out: "
        left_out += f"{', '.join(missing)}; pip install 'recollect[peers]' brings them"
        return tuple(name for name in DEFAULT if name not in missing), (left_out,) if missing else ()
    names = DEFAULT + SLOW if "all" in asked else tuple(dict.fromkeys(asked))
    peers(period=1, year=1, names=names)  # a wrong name is told before anything is trained
    return names, ()


def name_of(data: Path) -> str:
    """What a comparison is called after its table."""
    return data.name.split(".")[0]


def show_columns(data: Path, given: Mapping[str, Any], schema: TableSchema | None = None) -> tuple[Any, TableSchema]:
    """What each column is taken for, shown; with the table, of which no more than the first rows is read."""
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
    plain_console().print(schema_table(schema, rows))
    return source, schema


def read_table(
    data: Path, given: Mapping[str, Any], schema: TableSchema | None = None
) -> tuple[Events, TableSchema, Summary]:
    """The labelled events of a table with what was inferred of it, unless it is known, and what was left out: shown."""
    is_known = schema is not None
    source, schema = show_columns(data, given, schema)
    if schema.label is None:
        raise DataError(f"no column of {data.name} looks like a label: name it with --label")
    guessed = not is_known and given["id"] is None
    events, reading = read_all(
        source,
        schema,
        bad_rows=given["bad_rows"],
        every_column=is_known,
        repeated_ids="refuse" if guessed else "bad",
    )
    plain_console().print(f"{data.name}: {reading.summary}")
    _check_classes(events, schema)
    return events, schema, reading.summary


def _check_classes(events: Events, schema: TableSchema) -> None:
    classes = pl.Series(dtype=pl.String) if events.label is None else events.label.unique(maintain_order=True)
    if len(classes) > max(FEW_CLASSES, len(events) / 2):
        raise DataError(
            f"the label {schema.label} has {len(classes)} different values in {len(events)} rows: a class for nearly "
            "every row can't be learned; name a column of classes with --label, or put these into ranges first"
        )
    for name in classes.filter(says_missing(classes)):
        plain_console().print(
            f"the label {schema.label} is {name!r} in some rows, which is taken for a class: "
            "if it says that there is none, leave these rows out"
        )


def cutoff_from(text: str, plain: bool) -> tuple[float, int | float | None]:
    """A share of the rows and None, or a moment."""
    try:
        number = float(text)
    except ValueError:
        number = None
    if number is not None and 0 < number < 1:
        return number, None
    if number is not None and not plain and 1 <= number <= 100:
        raise SettingError(f"the cutoff {text} is no moment and no share of the rows: a share is between 0 and 1")
    return 0.5, moment_from(text, plain)


def cutoff_in(events: Events, text: str, plain: bool) -> int | float:
    """The moment that a person means by a cutoff: also if it was given as a share of the rows."""
    share, moment = cutoff_from(text, plain)
    return after_share(events.time, share) if moment is None else moment


def moment_from(text: str, plain: bool) -> int | float:
    """A date or time as nanoseconds; a number where times are plain numbers."""
    if plain:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise SettingError(f"{text!r} is no number, but the times are: give one")
        return number
    moment = read_times(pl.Series([text]), "datetime")[0]
    if moment is None:
        raise SettingError(f"{text!r} can't be read as a moment: give a date such as 2019-01-01")
    return int(moment)
