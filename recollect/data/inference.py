"""The schema of a table from its first rows: declared roles stand, the rest is told by type and looks.

Guesses are simple, and each comes with its reason, because a person is meant to confirm them. Knows no files.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import polars as pl

from recollect.data.looks import NUMBER_TEXTS, is_called_id, looks_of, numbers_rows, width_of
from recollect.data.schema import TableSchema
from recollect.data.tables.dates import DAY_ORDERS
from recollect.data.tables.raw import column_of
from recollect.data.tables.times import (
    MOSTLY_MOMENTS,
    ROW_ORDER,
    TimeUnit,
    earliest_count,
    find_unit,
    read_times,
    share_of_moments,
    unit_of,
)
from recollect.errors import DataError

TIME_NAMES = ("time", "timestamp", "date", "datetime", "ts", "when")
TIME_ENDINGS = ("_time", "_timestamp", "_date", "_datetime", "_at", "_ts")
LIKE_A_DATE = r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}"
YEAR_LAST = r"^\s*\d{1,2}[-/.]\d{1,2}[-/.]\d{4}"
LABEL_NAMES = ("label", "target", "class", "y")
GIVES_LABEL_AWAY = "each of its values comes with one label only: is it known before the label?"

NUMBERED = "the number of the row: it tells nothing"

NOT_THE_IDS = "; it repeats or has gaps, so it doesn't name the rows: if it should, put that right and say --id {name}"
"""Behind the looks of a column that is called id and can't be one."""


def infer_schema(
    first_rows: pl.DataFrame,
    *,
    time: str | None = None,
    time_unit: TimeUnit | None = None,
    known_at: str | None = None,
    label: str | None = None,
    id: str | None = None,
    text: Sequence[str] = (),
    numeric: Sequence[str] = (),
    categorical: Sequence[str] = (),
    embedding: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> TableSchema:
    """Roles for all columns of a table. `time=ROW_ORDER` says that the order of the rows is the time.

    `time_unit` is what times are, those in `known_at` too where they can be so.
    Numbers are numeric, whatever they count; true and false, texts that repeat and numbers called ..._id are
    categorical, texts of several words text, lists of numbers embeddings. Texts that hardly ever repeat are taken for
    identifiers and ignored, unless declared, and so are numbers of the rows.
    """
    declared: dict[str, str] = {}
    features = {"text": text, "numeric": numeric, "categorical": categorical, "embedding": embedding, "ignored": ignore}
    for role, names in features.items():
        declared |= dict.fromkeys(names, role)
    special = {"time": None if time == ROW_ORDER else time, "known_at": known_at, "label": label, "id": id}
    declared |= {name: role for role, name in special.items() if name is not None}
    absent = [name for name in declared if name not in first_rows.columns]
    if absent:
        raise DataError(
            f"the first rows have no column {', '.join(absent)}; there are {', '.join(first_rows.columns)}: "
            "declare those that are there"
        )
    why = dict.fromkeys(declared, "declared")
    free = [name for name in first_rows.columns if name not in declared]

    def find(role: str, finder: Callable[[pl.DataFrame, Sequence[str]], tuple[str | None, str]]) -> str | None:
        name = special[role]
        if name is None:
            name, reason = finder(first_rows, free)
            if name is not None:
                free.remove(name)
                why[name] = reason
            elif role == "time":
                why[ROW_ORDER] = reason
        return name

    if time == ROW_ORDER:
        found_time, found_known_at, why[ROW_ORDER] = None, known_at, "declared: the order of the rows"
    else:
        found_known_at = find("known_at", _find_known_at)
        found_time = find("time", partial(_find_time, declared=time_unit))
    if found_time is None and known_at is None:
        found_time, found_known_at = found_known_at, None  # the only time there is, if any
    if time_unit is not None and found_time is None:
        raise DataError(f"the times are declared to be {time_unit}, but no column holds them: name it with --time")
    found_label = find("label", _find_label)
    found_id = find("id", _find_id)
    roles = {name: role for name, role in declared.items() if role in features}
    for name in free:
        values = column_of(first_rows, name)
        roles[name], why[name] = ("ignored", NUMBERED) if numbers_rows(values) else looks_of(values)
        if name.lower() == "id" and id is None:
            why[name] += NOT_THE_IDS.format(name=name)
    for name in embedding:
        if not width_of(column_of(first_rows, name)):
            raise DataError(f"the column {name} holds no list of numbers: declare it as something else, or give lists")
    ignored = {name: why.pop(name) for name, role in roles.items() if role == "ignored"}
    unit, seen = time_unit, None
    if found_time is not None:
        times = column_of(first_rows, found_time)
        unit = time_unit or find_unit(times, found_time)
        seen = earliest_count(times, unit)
    known_unit = None
    if found_known_at is not None:
        known_unit = _known_at_unit(column_of(first_rows, found_known_at), found_known_at, time_unit)
    if found_label is not None:
        why |= _leaks(first_rows, found_label, roles)

    def having(role: str) -> tuple[str, ...]:
        return tuple(name for name in first_rows.columns if roles.get(name) == role)

    return TableSchema(
        time=found_time,
        time_unit=None if found_time is None else unit,
        known_at=found_known_at,
        known_at_unit=known_unit,
        label=found_label,
        id=found_id,
        text=having("text"),
        numeric=having("numeric"),
        categorical=having("categorical"),
        embedding={name: width_of(column_of(first_rows, name)) for name in having("embedding")},
        ignored=ignored,
        why=why,
        time_seen=seen,
    )


def infer_features(rows: pl.DataFrame) -> TableSchema:
    """Roles for columns that are all features, whatever they are called: `class` may well be one of a ship's cabins."""
    looks = {name: looks_of(column_of(rows, name)) for name in rows.columns}
    looks |= {
        name: ("numeric", "numbers written as texts")
        for name, (_, why) in looks.items()
        if why == NUMBER_TEXTS and not is_called_id(name)
    }

    def having(role: str) -> tuple[str, ...]:
        return tuple(name for name, (found, _) in looks.items() if found == role)

    ignored = {name: looks[name][1] for name in having("ignored")}
    if len(ignored) == rows.width:
        reasons = "; ".join(f"{name}: {why}" for name, why in ignored.items())
        raise DataError(f"no column can be learned from ({reasons or 'there is none'}): give other columns")
    return TableSchema(
        text=having("text"),
        numeric=having("numeric"),
        categorical=having("categorical"),
        embedding={name: width_of(column_of(rows, name)) for name in having("embedding")},
        ignored=ignored,
        why={name: why for name, (_, why) in looks.items() if name not in ignored},
    )


# The columns of which there is one at most


def _find_known_at(rows: pl.DataFrame, free: Sequence[str]) -> tuple[str | None, str]:
    return ("known_at", "by its name") if "known_at" in free else (None, "")


def _known_at_unit(values: pl.Series, name: str, declared: TimeUnit | None) -> TimeUnit:
    """As the time's, if it was declared: small counts look like plain numbers in both. A count says nothing of dates,
    nor a date of counts."""
    if declared is not None and read_times(values, declared).null_count() < len(values):
        return declared
    return find_unit(values, name)


def _find_time(rows: pl.DataFrame, free: Sequence[str], declared: TimeUnit | None) -> tuple[str | None, str]:
    moments = {name: _share_of_moments(column_of(rows, name)) for name in free}
    typed = {name: "by its type" for name, share in moments.items() if share == 1}
    nearly = [name for name, share in moments.items() if 1 > share > MOSTLY_MOMENTS]
    units = {name: _unit_if_any(column_of(rows, name), declared) for name in free if _is_called_time(name)}
    named = {name: "by its name and values" for name, unit in units.items() if unit not in (None, *DAY_ORDERS)}
    # Dates with the year last may well be a feature beside the time: one is the time only if nothing else is.
    found = typed | named or {
        name: "by its values"
        for name in free
        if units.get(name) is not None or _holds_dates(column_of(rows, name), declared)
    }
    found |= dict.fromkeys(nearly, "")
    if len(found) > 1:
        raise DataError(
            f"several columns could be the time ({', '.join(found)}): name the one that says when a row happened with "
            f'--time, or take the order of the rows with --time "{ROW_ORDER}"'
        )
    if nearly:
        raise DataError(
            f"nearly all of the column {nearly[0]} are times, but some are not: if it says when a row happened name it "
            f'with --time {nearly[0]}, or take the order of the rows with --time "{ROW_ORDER}"'
        )
    if not found:
        _refuse_unread_times(rows, free)
        return None, "the order of the rows: no column looks like a time"
    return next(iter(found.items()))


def _refuse_unread_times(rows: pl.DataFrame, free: Sequence[str]) -> None:
    """A column that is called a time, or has what looks like dates under such a name, is not passed over in silence.

    Nor is one of dates under any name, of which only the order of day and month is not known.
    """
    for name in free:
        values = column_of(rows, name).drop_nulls()
        dated = values.dtype == pl.String and values.str.contains(LIKE_A_DATE).any()
        asked = dated and values.str.contains(YEAR_LAST).all()
        if not values.is_empty() and (name.lower() in TIME_NAMES or (_is_called_time(name) and dated) or asked):
            find_unit(values, name)  # which says what is wrong with it


def _find_label(rows: pl.DataFrame, free: Sequence[str]) -> tuple[str | None, str]:
    found = [name for name in free if name.lower() in LABEL_NAMES]
    if len(found) > 1:
        raise DataError(f"several columns could be the label ({', '.join(found)}): name the one to predict")
    return (found[0], "by its name") if found else (None, "")


def _find_id(rows: pl.DataFrame, free: Sequence[str]) -> tuple[str | None, str]:
    """Only if it is alone: a customer's id may be unique among the first rows too."""
    found = [name for name in free if is_called_id(name) and _is_id(column_of(rows, name))]
    exact = [name for name in found if name.lower() == "id"]
    if len(found) > 1 and not exact:
        return None, ""
    return ((exact or found)[0], "by its name, and it never repeats") if found else (None, "")


def _is_called_time(name: str) -> bool:
    return name.lower() in TIME_NAMES or name.lower().endswith(TIME_ENDINGS)


def _is_id(values: pl.Series) -> bool:
    kind = values.dtype
    return (kind == pl.String or kind.is_integer()) and not values.null_count() and values.n_unique() == len(values)


def _share_of_moments(values: pl.Series) -> float:
    if isinstance(values.dtype, pl.Datetime) or values.dtype == pl.Date:
        return 1.0
    return share_of_moments(values) if values.dtype == pl.String else 0.0


def _holds_dates(values: pl.Series, declared: TimeUnit | None) -> bool:
    """Texts that all are dates with the year last, in four digits: with two they might be anything."""
    present = values.drop_nulls()
    if values.dtype != pl.String or present.is_empty() or not present.str.contains(r"\d{4}").all():
        return False
    unit = _unit_if_any(present, declared)
    return unit in DAY_ORDERS and read_times(present, unit).null_count() == 0


def _unit_if_any(values: pl.Series, declared: TimeUnit | None) -> TimeUnit | None:
    """An order of day and month that was declared is that of dates which don't tell theirs."""
    if declared in DAY_ORDERS and values.dtype == pl.String and read_times(values, declared).count():
        return declared
    try:
        return unit_of(values, values.name)
    except DataError:
        return None


def _leaks(rows: pl.DataFrame, label: str, roles: dict[str, str]) -> dict[str, Any]:
    """Columns that give the label away: each of their few values always comes with the same one."""
    found = {}
    if column_of(rows, label).n_unique() < 2:
        return {}
    for name, role in roles.items():
        if role not in ("numeric", "categorical"):
            continue
        # Under names of our own: theirs might be patterns.
        pairs = pl.DataFrame({"value": column_of(rows, name), "label": column_of(rows, label)}).drop_nulls()
        groups = pairs.group_by("value").agg(pl.col("label").n_unique())
        if 2 <= groups.height <= rows.height / 20 and (groups["label"] == 1).all():
            found[name] = GIVES_LABEL_AWAY
    return found
