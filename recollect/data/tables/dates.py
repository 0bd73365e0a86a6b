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
_SHORT_YEAR = r"^\s*(\d{2})([/.-]\d{1,2}[/.-])(\d{2})(\D|$)"  # may come first, with the day behind the month
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

    Refused if another order reads as many of them: that it reads the same days, as of 01/01/2024, tells nothing of the
    rows to come. A year of two digits may come first, which is no order of ours: that is refused as well.
    """
    read = {order: read_dates(values, order).count() for order in DAY_ORDERS}
    most = max(read.values())
    orders = [order for order in DAY_ORDERS if read[order] == most]
    declared = " or ".join(f"--time-unit {order}" for order in orders)
    short = values.filter(values.str.contains(_SHORT_YEAR))
    turned = read_dates(short.str.replace(_SHORT_YEAR, "$3$2$1$4"), "day-first").count()
    if turned >= max(most, 1):
        last = f"; if it comes last say {declared}" if turned == most else ""
        raise DataError(
            f"the dates in the column {name} ({short[0]}) have a year of two digits, which may come first or last: "
            f"write it with four{last}"
        )
    if not most:
        return None
    numbered = values.filter(values.str.contains(r"^\s*\d+[/.-]\d"))
    if len(orders) > 1 and not numbered.is_empty():
        raise DataError(
            f"the dates in the column {name} ({numbered[0]}) may have the day or the month first, and no day after the "
            f"12th tells which: say {declared}"
        )
    return orders[0]


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
