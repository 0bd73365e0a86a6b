"""Dates as people write them, year last: 31/12/2024, 12/31/24 8:05 PM, 31.12.2024 20:05, 31 Dec 2024, Dec 31, 2024.

Whether the day or the month comes first can't be seen in one of them: the others of its column tell, or whoever knows.
Reads whole columns; what can't be read is null. They have no zone, so they are UTC like all such times.
"""

import calendar
from typing import Literal, get_args

import polars as pl

from recollect.errors import DataError

DayOrder = Literal["day-first", "month-first"]
DAY_ORDERS: tuple[DayOrder, ...] = get_args(DayOrder)

YEARS = (1678, 2261)  # whole years that fit into 64 bits of nanoseconds
CENTURY = 69  # as in POSIX: 69 is 1969, 68 is 2068

MONTHS = {
    spelt.lower(): str(month)
    for names in (calendar.month_name, calendar.month_abbr)
    for month, spelt in enumerate(names)
    if month
} | {"sept": "9"}

_YEAR = r"(?<year>\d{4}|\d{2})"
_CLOCK = (
    r"(?:(?:t|,? +)(?<hour>\d{1,2}):(?<minute>\d{2})(?::(?<second>\d{2})(?:\.(?<fraction>\d{1,9}))?)?"
    r"(?: *(?<half>[ap])\.?m\.?)?)?$"
)
_NUMBERED = rf"^(?<one>\d{{1,2}})[/.-](?<other>\d{{1,2}})[/.-]{_YEAR}{_CLOCK}"
_NAMED = rf"^(?<one>\d{{1,2}})[ .-]+(?<other>[a-z]{{3,9}})[ .,-]+{_YEAR}{_CLOCK}"
_NAME_FIRST = r"^([a-z]{3,9})\.? +(\d{1,2}),? +(\d{4})"


def read_dates(texts: pl.Series, order: DayOrder) -> pl.Series:
    """Int64 nanoseconds since 1970. A month that is written by its name needs no order."""
    written = texts.str.strip_chars().str.to_lowercase()
    moments = _moments(_parts(written, _NUMBERED), order)
    if moments.null_count() > texts.null_count():
        named = _parts(written.str.replace(_NAME_FIRST, "$2 $1 $3"), _NAMED)
        moments = moments.fill_null(_moments(named, "day-first"))
    return moments.alias(texts.name)


def order_of(values: pl.Series, name: str) -> DayOrder | None:
    """How the dates of a column are written; None if it holds no such dates.

    Refused if both orders read all of them, as other days.
    """
    read = {order: read_dates(values, order) for order in DAY_ORDERS}
    unread = {order: times.null_count() for order, times in read.items()}
    order = min(DAY_ORDERS, key=unread.__getitem__)
    if unread[order] == len(values):
        return None
    day_first, month_first = read.values()
    if len(set(unread.values())) == 1 and not day_first.equals(month_first):
        both = " or ".join(f"--time-unit {each}" for each in DAY_ORDERS)
        raise DataError(
            f"the dates in the column {name} ({values[0]}) may have the day or the month first, and no day after the "
            f"12th tells which: say {both}"
        )
    return order


def _parts(written: pl.Series, pattern: str) -> pl.DataFrame:
    """The numbers of each date; what is left out of the clock is 0."""
    found = written.str.extract_groups(pattern).struct.unnest()
    return found.with_columns(
        pl.col("one", "year").cast(pl.Int64),
        pl.col("other").replace(MONTHS).cast(pl.Int64, strict=False),
        pl.col("hour", "minute", "second").cast(pl.Int64).fill_null(0),
        pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64).fill_null(0),
        short=pl.col("year").str.len_bytes() == 2,
    )


def _moments(parts: pl.DataFrame, order: DayOrder) -> pl.Series:
    day, month = (pl.col("one"), pl.col("other")) if order == "day-first" else (pl.col("other"), pl.col("one"))
    short = pl.col("year") + pl.when(pl.col("year") < CENTURY).then(2000).otherwise(1900)
    year = pl.when("short").then(short).otherwise(pl.col("year"))
    iso = pl.format("{}-{}-{}", year, month, day)
    date = pl.when(year.is_between(*YEARS)).then(iso).str.to_date("%Y-%m-%d", strict=False)
    halved = pl.col("half").is_not_null()
    hour = pl.when(halved).then(pl.col("hour") % 12 + 12 * (pl.col("half") == "p")).otherwise(pl.col("hour"))
    fits = pl.when(halved).then(pl.col("hour").is_between(1, 12)).otherwise(pl.col("hour") < 24)
    fits &= (pl.col("minute") < 60) & (pl.col("second") < 60)
    seconds = (hour * 60 + pl.col("minute")) * 60 + pl.col("second")
    whole = (date.cast(pl.Int64) * 86_400 + seconds) * 10**9 + pl.col("fraction")
    return parts.select(pl.when(fits).then(whole)).to_series()
