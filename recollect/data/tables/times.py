"""Columns of times, however they are written, as nanoseconds since 1970 in UTC or as plain numbers.

Works on whole columns and says which values it could not read; who is told, and how, is not its business.
"""

import re
from typing import Literal, get_args

import polars as pl
import pyarrow as pa

from recollect.data.tables.dates import DAY_ORDERS, YEARS, order_of, read_dates
from recollect.data.tables.numbers import says_missing
from recollect.errors import DataError

TimeUnit = Literal[
    "datetime", "day-first", "month-first", "seconds", "milliseconds", "microseconds", "nanoseconds", "number"
]
"""What a column of times holds: dates or datetimes (as such, or as ISO 8601 texts, without a zone UTC), dates with the
year last (31/12/2024 or 12/31/2024), a count since 1970, or plain numbers which are no moments at all."""

ROW_ORDER = "(row order)"
"""Said in place of a time column: the order of the rows is the time."""

BY_ORDER = f'make the order of the rows the time with --time "{ROW_ORDER}"'

TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
NANOSECONDS: dict[str, int] = {"seconds": 10**9, "milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}
DAY = 86_400 * 10**9
LARGEST = 2**63 - 1
COUNTS = 1e8  # smaller numbers are no counts since 1970 but plain ones
SURELY_COUNTED = int(COUNTS) * NANOSECONDS["seconds"]  # from here on a time is a count in whatever unit
GAP = 100  # a factor between times that nothing but another unit explains

_CLOCKS = [
    f"%Y-%m-%d{between}{clock}{zone}"
    for zone in ("", "%#z")
    for clock in ("%H:%M:%S", "%H:%M:%S%.f", "%H:%M")
    for between in ("T", " ")
]
DATE_AND_CLOCK = 16  # characters from the year to the minute
ZONED_CLOCK = 20  # from the year to the second, and a Z; fewer with a zone may be an hour without minutes
SURE = (-9_214_473_600 * 10**9, 9_214_560_000 * 10**9)  # inside of YEARS in any zone
MOSTLY_MOMENTS = 0.9  # where more of the values are dates or times, they are a column of them, perhaps with mistakes
DIGITS = "%Y%m%d%H%M%S"  # or as far as to the minute or the hour
DIGIT_YEARS = (1900, 2100)  # counts of seconds of our time begin with 17 and would be dates of that century
FORMATS = ("%Y-%m-%d", *_CLOCKS, "%Y%m%d", "%Y%m%dT%H%M%S", "%Y%m%dT%H%M%S%#z", DIGITS)


def read_times(values: pl.Series, unit: TimeUnit) -> pl.Series:
    """Int64 nanoseconds, or Float64 for plain numbers; null where there is no value or none that can be read."""
    if unit == "number":
        numbers = _numbers(values)
        return numbers.set(~numbers.is_finite(), None)
    if unit in NANOSECONDS:
        return _counts(values, NANOSECONDS[unit])
    if isinstance(values.dtype, pl.Datetime):
        # Whatever the zone, what is stored counts from 1970 in UTC: no hour of a clock change is lost or doubled.
        return _multiplied(values.to_physical(), {"ms": 10**6, "us": 10**3, "ns": 1}[values.dtype.time_unit])
    if values.dtype == pl.Date:
        return _multiplied(values.to_physical(), DAY)
    if values.dtype.is_float():
        values = values.set(values != values.floor(), None).cast(pl.Int64, strict=False)  # 20240501.0 is a date
    texts = values.cast(pl.String)
    for order in DAY_ORDERS:
        if unit == order:
            dates = read_dates(texts, order)
            # With the year first there is no other way to read it.
            return dates if dates.null_count() == texts.null_count() else dates.fill_null(_texts(texts))
    return _texts(texts)


def find_unit(values: pl.Series, name: str) -> TimeUnit:
    """As `unit_of`; a column whose counts are of two units is refused."""
    unit = unit_of(values, name)
    mixed = in_another_unit(read_times(values, unit), unit)
    if mixed.any():
        raise DataError(
            f"the column {name} mixes units: {values.filter(mixed)[0]} and {values.filter(~mixed)[0]} can't both be "
            f"{unit} since 1970: write all in one unit, or say which one it is with --time-unit"
        )
    return unit


def unit_of(values: pl.Series, name: str) -> TimeUnit:
    """What the first values of a column of times are.

    Whole numbers of which nearly all are dates, such as 20240501, or 2024050112 to the hour and so on to the second,
    are dates. Other numbers are told apart by the largest: below 1e8 plain numbers, below 1e11 seconds (from 1973 to
    the year 5138), and a thousand times more for each finer unit.
    """
    values = values.drop_nulls()
    if values.dtype == pl.String:
        values = values.filter(~says_missing(values))
    if values.is_empty():
        raise DataError(f"the time column {name} has no value in the first rows: name another")
    if values.dtype.is_temporal():
        if isinstance(values.dtype, pl.Datetime) or values.dtype == pl.Date:
            return "datetime"
        raise _no_times(values, name)
    numbers = _numbers(values)
    if numbers.null_count() or not values.len():
        if values.dtype == pl.String and _texts(values).null_count() < len(values):
            return "datetime"
        order = order_of(values, name) if values.dtype == pl.String else None
        if order is not None:
            return order
        raise _no_times(values, name)
    whole = (numbers == numbers.round()).all()
    if whole and numbers.is_between(1800, 2200).all() and (len(numbers) > 1 or "year" in name.lower()):
        raise DataError(
            f"the column {name} holds years ({_examples(values)}): that's too coarse to say what was known when; "
            f"name a column of dates, or {BY_ORDER}"
        )
    if whole and numbers.is_between(180_001, 220_012).all() and (numbers % 100).is_between(1, 12).all():
        raise DataError(
            f"the column {name} holds months ({_examples(values)}), which as numbers lie 1 or 89 apart: "
            f"write the first day of each, such as 2024-01-01, or {BY_ORDER}"
        )
    if whole and _texts(numbers.cast(pl.Int64, strict=False).cast(pl.String)).count() > MOSTLY_MOMENTS * len(numbers):
        return "datetime"
    largest = float(numbers.abs().max())  # type: ignore[arg-type]
    for limit, unit in ((COUNTS, "number"), (1e11, "seconds"), (1e14, "milliseconds"), (1e17, "microseconds")):
        if largest < limit:
            return unit  # type: ignore[return-value]
    return "nanoseconds"


def share_of_moments(values: pl.Series) -> float:
    """How many of the texts that say something are dates or times of ISO 8601. Digits alone are numbers by their looks,
    until there is a time among them that has more."""
    present = values.drop_nulls()
    present = present.filter(~says_missing(present))
    read = present.filter(read_times(present, "datetime").is_not_null())
    if read.is_empty() or read.str.contains(r"^\s*\d+(\.0)?\s*$").all():
        return 0.0
    return len(read) / len(present)


def in_another_unit(times: pl.Series, unit: TimeUnit, seen: int | None = None) -> pl.Series:
    """Which times of a column of counts must have been counted in a coarser unit than the others.

    They come before anything that is taken for a count in seconds, and nothing lies between them and the others, one of
    which may have been `seen` before: a whole file may be in another unit.
    """
    none = pl.Series([False]).new_from_index(0, len(times))
    if unit not in NANOSECONDS:
        return none
    first = times.min()
    if not isinstance(first, int) or first >= SURELY_COUNTED:
        return none
    early = _too_early(times, unit)
    last, other = times.filter(early).max(), times.filter(times >= SURELY_COUNTED).min()
    others = [each for each in (other, seen) if isinstance(each, int)]
    apart = isinstance(last, int) and bool(others) and min(others) > GAP * last
    return early if apart else none


def earliest_count(values: pl.Series, unit: TimeUnit) -> int | None:
    """Of the first values a time by which `in_another_unit` tells later ones; None if times from just after 1970 are
    rightly among them."""
    if unit not in NANOSECONDS:
        return None
    times = read_times(values, unit)
    if (_too_early(times, unit) & ~in_another_unit(times, unit)).any():
        return None
    earliest = times.filter(times >= SURELY_COUNTED).min()
    return earliest if isinstance(earliest, int) else None


def _too_early(times: pl.Series, unit: TimeUnit) -> pl.Series:
    return times.is_between(int(COUNTS) * NANOSECONDS[unit], SURELY_COUNTED - 1).fill_null(False)


def _no_times(values: pl.Series, name: str) -> DataError:
    return DataError(
        f"the column {name} does not hold times ({_examples(values)}): write ISO 8601 such as 2024-01-31, "
        f"name a column of ISO 8601 dates or times, or of numbers; or {BY_ORDER}"
    )


def _examples(values: pl.Series) -> str:
    return ", ".join(map(str, values.unique(maintain_order=True).head(3).to_list()))


def _counts(values: pl.Series, factor: int) -> pl.Series:
    whole = _numbers(values, whole=True)
    result = _multiplied(whole, factor)
    if result.null_count() == values.null_count():
        return result
    # The others have fractions. Whole and fraction apart: a float of nanoseconds has too few digits.
    numbers = _numbers(values)
    floor = numbers.floor()
    base = _multiplied(floor.set(floor.abs() > LARGEST / factor, None).cast(pl.Int64, strict=False), factor)
    fraction = ((numbers - floor) * factor).round().cast(pl.Int64, strict=False)
    # Where there is a whole number, what came of it stands, even if it is out of range.
    return result.zip_with(whole.is_not_null(), base + fraction)


def _multiplied(whole: pl.Series, factor: int) -> pl.Series:
    whole = whole.cast(pl.Int64)
    limit = LARGEST // factor
    return (whole.set(~whole.is_between(-limit, limit), None)) * factor


def _numbers(values: pl.Series, *, whole: bool = False) -> pl.Series:
    """Float64, or Int64 of the whole ones; null where there is no number."""
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric():
        return pl.Series(values.name, [None] * len(values), pl.Float64)
    if whole and values.dtype.is_decimal():
        values = values.cast(pl.Float64)
    if whole and values.dtype.is_float():
        values = values.set(values != values.floor(), None)
    return values.cast(pl.Int64 if whole else pl.Float64, strict=False)


def _texts(values: pl.Series) -> pl.Series:
    """ISO 8601; in one pass if all are written alike, which the first tells."""
    whole = _all_at_once(values)
    if whole is not None:
        return whole
    result = _quickly(values)
    if result.null_count() == values.null_count():
        return result
    values = values.str.strip_chars().str.to_uppercase().str.replace(r" ?UTC$", "Z").str.replace(r",(\d)", ".$1")
    values = values.str.replace(r"^(\d{8}(?:\d\d){0,3})\.0$", "$1")
    values = values.str.replace(r"^(\d{4})[/. ](\d\d?)[/. ](\d\d?)", "$1-$2-$3")
    unread = (result.is_null() & values.is_not_null()).arg_true()
    first = values.gather(unread[:1])
    for layout in sorted(FORMATS, key=lambda layout: _parsed(first, layout).null_count()):
        if unread.is_empty():
            break
        parsed = _parsed(values.gather(unread), layout)
        result = result.scatter(unread, parsed)
        unread = unread.filter(parsed.is_null())
    return result


def _all_at_once(values: pl.Series) -> pl.Series | None:
    """By Arrow, five times as fast again, if all are there or null, all with a zone or all without, and none is odd.

    Arrow takes less than is taken here, but for clocks of hours alone, which the shortest text gives away.
    """
    shortest = values.str.len_bytes().min()
    zoned = str(values.drop_nulls().first())[10:].strip("0123456789T :.") != ""
    if not isinstance(shortest, int) or shortest < (ZONED_CLOCK if zoned else DATE_AND_CLOCK):
        return None
    try:
        moments = values.to_arrow().cast(pa.timestamp("ns", "UTC" if zoned else None)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    result = pl.Series(values.name, moments)
    return result if result.is_between(*SURE).all() else None


def _quickly(values: pl.Series) -> pl.Series:
    """Seconds with one of a few fractions and zones behind them, four times as fast as by a format that has them."""
    layout = "%Y-%m-%d %H:%M:%S" if " " in str(values.drop_nulls().first()) else "%Y-%m-%dT%H:%M:%S"
    ends = values.str.slice(19)
    different = ends.drop_nulls().unique().to_list()
    known = {end: shift for end in different if (shift := _shift(end)) is not None} if len(different) < 1000 else {}
    if not known:
        return pl.Series(values.name, [None], pl.Int64).new_from_index(0, len(values))
    # Microseconds hold any year: those that nanoseconds can't are taken out before they wrap around. At the ends,
    # where a leap second may change the year, the slow way decides.
    moments = values.str.head(19).str.to_datetime(layout, time_unit="us", strict=False).to_physical()
    base = moments.set(~moments.is_between(SURE[0] // 1000, SURE[1] // 1000), None) * 1000
    if known == {"": 0}:
        return base.set(ends != "", None)
    return base + ends.replace_strict(known, default=None, return_dtype=pl.Int64)


def _shift(end: str) -> int | None:
    """What fraction and zone, such as .5+02:00, add to a time in nanoseconds."""
    match = re.fullmatch(r"(?:[.,](\d{1,9}))?(?:[Zz]|([+-])(\d\d):?(\d\d))?", end)
    if match is None:
        return None
    fraction, sign, hours, minutes = match.groups()
    if sign and (int(hours) > 23 or int(minutes) > 59):
        return None
    ahead = (int(hours) * 60 + int(minutes)) * 60 * 10**9 if sign else 0
    return int((fraction or "").ljust(9, "0")) - (ahead if sign == "+" else -ahead)


def _parsed(values: pl.Series, layout: str) -> pl.Series:
    if layout == DIGITS:
        values = values.str.extract(r"^(\d{10}(?:\d\d){0,2})$").str.pad_end(14, "0")
    moments = values.str.to_datetime(layout, time_unit="ns", strict=False)
    # Years that don't fit would wrap around, as would 24, which is taken for a year; of 2024115 nobody knows the month.
    year = _whole(values.str.head(8)) // 10_000 if layout.startswith("%Y%m%d") else _whole(values.str.head(4))
    fits = year.is_between(*(DIGIT_YEARS if layout == DIGITS else YEARS)).fill_null(False)
    return moments.to_physical().set(~fits, None)


def _whole(digits: pl.Series) -> pl.Series:
    return digits.cast(pl.Int32, strict=False)
