"""Every way to write a time gives the same nanoseconds."""

import datetime
import zoneinfo
from decimal import Decimal

import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recollect.data.tables.times import DAY, TimeUnit, earliest_count, find_unit, in_another_unit, read_times
from recollect.errors import DataError

NOON = 1_714_564_800 * 10**9  # 2024-05-01T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-01T12:00:00", NOON),
        ("2024-05-01T12:00:00Z", NOON),
        ("2024-05-01 12:00:00 UTC", NOON),
        ("2024-05-01T12:00:00+02:00", NOON - 7200 * 10**9),
        ("2024-05-01 12:00:00-0530", NOON + 19_800 * 10**9),
        ("2024-05-01T12:00:00.5+02:00", NOON - 7200 * 10**9 + 5 * 10**8),
        ("2024-05-01 12:00:00.123456789", NOON + 123_456_789),
        ("2024-05-01T12:00", NOON),
        ("2024-05-01 12:00Z", NOON),
        (" 2024-05-01 ", NOON - 43_200 * 10**9),
        ("20240501", NOON - 43_200 * 10**9),
        ("20240501T120000Z", NOON),
        ("2024/05/01 12:00", NOON),
        ("2024/5/1", NOON - 43_200 * 10**9),
        ("2024-05-01t12:00:00z", NOON),
        ("2024-05-01T12:00:00,5Z", NOON + 5 * 10**8),
        ("2024-05-01t12:00:00,123456789+00:00", NOON + 123_456_789),
        ("2024-05-01T12:00:00,", None),
        ("1969-12-31T23:59:59", -(10**9)),
        ("1678-01-01", -9_214_560_000_000_000_000),
        ("9999-12-31T00:00:00", None),
        ("1677-12-31", None),
        ("2262-01-01T00:00:00", None),
        ("2024-02-30", None),
        ("2024 5 1 12:00", NOON),
        ("2024050112", NOON),
        ("202405011200", NOON),
        ("20240501120000", NOON),
        ("20240501120000.0", NOON),
        ("2024050124", None),
        ("2024053212", None),
        ("202405011", None),
        ("1712122312", None),  # a count of seconds: April 2024
        ("2024115", None),
        ("24-05-01", None),
        ("202-05-01T12:00:00Z", None),
        ("1-1-1", None),
        ("24-05-01 12:00", None),
        ("02024-05-01", None),
        ("2024", None),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_text_alone_and_among_others(text: str | None, expected: int | None) -> None:
    assert read_times(pl.Series([text], dtype=pl.String), "datetime").to_list() == [expected]
    mixed = pl.Series(["2024-05-01T12:00:00Z", "nonsense", text, "2024-05-01"])
    assert read_times(mixed, "datetime").to_list() == [NOON, None, expected, NOON - 43_200 * 10**9]


@given(
    st.lists(
        st.datetimes(
            datetime.datetime(1700, 1, 1),
            datetime.datetime(2250, 1, 1),
            timezones=st.sampled_from([None, *map(zoneinfo.ZoneInfo, ("UTC", "Europe/Berlin", "America/New_York"))]),
        ),
        min_size=1,
    )
)
def test_texts_as_python_writes_them(moments: list[datetime.datetime]) -> None:
    def nanoseconds(moment: datetime.datetime) -> int:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1) * 1000

    # Before railways, offsets had seconds, which only Python writes.
    moments = [moment for moment in moments if (moment.utcoffset() or datetime.timedelta()).seconds % 60 == 0]
    texts = pl.Series([moment.isoformat() for moment in moments], dtype=pl.String)
    assert read_times(texts, "datetime").to_list() == [nanoseconds(moment) for moment in moments]
    spaced = pl.Series([moment.isoformat(" ") for moment in moments], dtype=pl.String)
    assert read_times(spaced, "datetime").to_list() == [nanoseconds(moment) for moment in moments]


DAYS = ["2024-05-01", "20240501", "2024-02-30", "2261-12-31", "2262-01-01", "1677-12-31", "1678-01-01", "202-05-01"]
pieces = st.tuples(
    st.sampled_from(DAYS),
    st.sampled_from(["T", " ", "t", ""]),
    st.sampled_from(["12", "12:30", "1230", "12:30:45", "123045", "23:59:60", "24:00:00", "00:30:00", ""]),
    st.sampled_from(["", ".5", ".123456789", ".1234567891", ","]),
    st.sampled_from(["", "Z", "z", "+02:00", "-0530", "+02", "+25:00", " UTC"]),
).map("".join)


@given(pieces)
@example("1677-12-31 23:59:60")
@example("2261-12-31T23:59:60")
def test_whatever_the_quick_way_reads_the_slow_one_reads_alike(text: str) -> None:
    alone = read_times(pl.Series([text]), "datetime").to_list()
    # Nonsense beside it forbids the quick way.
    assert read_times(pl.Series(["nonsense", text]), "datetime").to_list() == [None, *alone]


@given(
    st.from_regex(
        r"\A[+-]?\d{1,5}-\d{1,2}-\d{1,2}([T ]\d{2}:\d{2}(:\d{2}(\.\d)?)?(Z|\+01:00)?)?\Z", alphabet="012459TZ -+:."
    )
)
def test_only_a_year_of_four_digits_is_one(text: str) -> None:
    """The others would come out as some moment of other centuries."""
    found = read_times(pl.Series([text]), "datetime")[0]
    assert found is None or abs(found / (365.2425 * DAY) + 1970 - int(text[:4])) < 1.01


def test_the_hour_that_comes_twice_is_told_apart() -> None:
    summer_ends = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    both = [summer_ends, summer_ends.replace(fold=1)]
    as_texts = read_times(pl.Series([each.isoformat() for each in both]), "datetime").to_list()
    assert as_texts[1] - as_texts[0] == 3600 * 10**9
    stamps = pl.from_pandas(pd.Series(pd.to_datetime([each.isoformat() for each in both], utc=True)))
    for zone in ("UTC", "Europe/Berlin"):
        assert read_times(stamps.dt.convert_time_zone(zone), "datetime").to_list() == as_texts


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_datetimes_and_dates_as_such(unit: str) -> None:
    moment = datetime.datetime(2024, 5, 1, 12)
    assert read_times(pl.Series([moment, None], dtype=pl.Datetime(unit)), "datetime").to_list() == [NOON, None]  # type: ignore[arg-type]
    assert read_times(pl.Series([moment.date()]), "datetime").to_list() == [NOON - 43_200 * 10**9]
    assert read_times(pl.Series([pd.Timestamp(moment)]), "datetime").to_list() == [NOON]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String])
@pytest.mark.parametrize(
    ("unit", "factor"), [("seconds", 10**9), ("milliseconds", 10**6), ("microseconds", 10**3), ("nanoseconds", 1)]
)
def test_counts_since_1970(unit: TimeUnit, factor: int, dtype: type[pl.DataType]) -> None:
    counts = [0, -5, NOON // factor, None]
    series = pl.Series(counts).cast(dtype)
    assert read_times(series, unit).to_list() == [None if count is None else count * factor for count in counts]
    assert find_unit(series, "time") == unit


def test_counts_with_fractions_and_out_of_range() -> None:
    texts = pl.Series(["1714564800.5", " 1714564800", "-3.25", "x", "9223372036854775807", "", None])
    assert read_times(texts, "seconds").to_list() == [NOON + 5 * 10**8, NOON, -325 * 10**7, None, None, None, None]
    floats = pl.Series([1714564800.5, -3.25, 1e30, float("nan"), float("inf")])
    assert read_times(floats, "seconds").to_list() == [NOON + 5 * 10**8, -325 * 10**7, None, None, None]
    assert read_times(pl.Series([NOON + 1]), "nanoseconds").to_list() == [NOON + 1]


def test_seconds_among_milliseconds_are_noticed() -> None:
    mixed = pl.Series([NOON // 10**6, NOON // 10**9, None, 0])
    for values in (mixed, mixed.cast(pl.String)):
        with pytest.raises(DataError, match=r"time mixes units: 1714564800 and 1714564800000 .*--time-unit"):
            find_unit(values, "time")
        found = in_another_unit(read_times(values, "milliseconds"), "milliseconds")
        assert found.to_list() == [False, True, False, False]
    for coarser in (10**6, 10**9):
        assert in_another_unit(pl.Series([NOON, NOON // coarser]), "nanoseconds").to_list() == [False, True]


def test_times_that_are_all_in_another_unit_are_told_by_one_seen_before() -> None:
    seen = earliest_count(pl.Series([NOON // 10**6, None, NOON // 10**6 - 5]), "milliseconds")
    assert seen == NOON - 5 * 10**6
    others = read_times(pl.Series([NOON // 10**9, NOON // 10**9 + 1, None]), "milliseconds")
    assert not in_another_unit(others, "milliseconds").any()
    assert in_another_unit(others, "milliseconds", seen).to_list() == [True, True, False]
    assert not in_another_unit(pl.Series([NOON + 1]), "milliseconds", seen).any()
    mixed = pl.Series([NOON // 10**6, NOON // 10**9])  # by a unit that somebody declared
    assert earliest_count(mixed, "milliseconds") == NOON
    assert earliest_count(pl.Series(["2024-05-01"]), "datetime") is None
    assert earliest_count(pl.Series([1_000_000]), "milliseconds") is None


def test_a_history_that_begins_in_1970_is_of_one_unit() -> None:
    days = pl.Series([day * 86_400_000 for day in range(0, 5000, 20)])
    assert find_unit(days, "time") == "milliseconds"
    assert not in_another_unit(read_times(days, "milliseconds"), "milliseconds").any()
    assert earliest_count(days, "milliseconds") is None
    assert not in_another_unit(pl.Series([1.0, 1e12]), "number").any()


def test_dates_with_the_year_last_may_stand_beside_iso() -> None:
    values = pl.Series(["01/05/2024 12:00", "2024-05-01T12:00:00Z", "nonsense", None])
    assert read_times(values, "day-first").to_list() == [NOON, NOON, None, None]
    assert read_times(pl.Series([datetime.date(2024, 5, 1)]), "day-first").to_list() == [NOON - 43_200 * 10**9]
    assert find_unit(pl.Series(["NA", "31/05/2024"]), "day") == "day-first"


def test_plain_numbers() -> None:
    assert find_unit(pl.Series([0, 1, 50_000]), "step") == "number"
    assert find_unit(pl.Series([0.0, 0.5]), "t") == "number"
    numbers = read_times(pl.Series(["1", "2.5", "x", "inf", None]), "number")
    assert numbers.to_list() == [1.0, 2.5, None, None, None]
    assert numbers.dtype == pl.Float64


def test_fractions_of_decimals_count() -> None:
    values = pl.Series([Decimal("1714521600.75"), Decimal("1714521601.00")])
    assert read_times(values, "seconds").to_list() == [1714521600_750000000, 1714521601_000000000]


@pytest.mark.parametrize("zone", ["+99:99", "+24:00", "-02:60"])
def test_no_place_has_such_a_zone(zone: str) -> None:
    assert read_times(pl.Series([f"2024-05-01T12:00:00{zone}"]), "datetime").to_list() == [None]


def test_dates_of_eight_digits_are_dates() -> None:
    """As floats too, which pandas makes of them where one is missing."""
    for values in (pl.Series([20240501.0, None]), pl.Series(["20240501.0", None])):
        assert find_unit(values, "day") == "datetime"
        assert read_times(values, "datetime").to_list() == [NOON - 43_200 * 10**9, None]
    assert read_times(pl.Series([20240501.5]), "datetime").to_list() == [None]
    assert find_unit(pl.Series([20240501, 20240502]), "day") == "datetime"
    assert read_times(pl.Series([20240501]), "datetime").to_list() == [NOON - 43_200 * 10**9]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String])
@pytest.mark.parametrize("layout", ["%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_dates_with_hours_of_digits_alone_are_dates(layout: str, dtype: type[pl.DataType]) -> None:
    moments = [datetime.datetime(2024, 1, 27) + datetime.timedelta(hours=hours) for hours in range(0, 240, 24)]
    values = pl.Series([int(f"{moment:{layout}}") for moment in moments]).cast(dtype)
    assert find_unit(values, "when") == "datetime"
    assert read_times(values, "datetime").to_list() == read_times(pl.Series(moments), "datetime").to_list()
    # A mistyped one is a bad row: it makes no counts of the others.
    mistyped = pl.concat([values, values, values[:1].cast(pl.String).str.replace("20240127", "20241327").cast(dtype)])
    assert find_unit(mistyped, "when") == "datetime"
    assert read_times(mistyped, "datetime").is_null().to_list() == [False] * 20 + [True]


@given(st.lists(st.integers(0, 1_900_000_000), min_size=1), st.sampled_from([1, 1000]))
def test_counts_of_our_time_are_no_dates(seconds: list[int], factor: int) -> None:
    counts = pl.Series([1_712_122_312 * factor, *(each * factor for each in seconds)])
    assert find_unit(counts[:1], "when") == ("seconds" if factor == 1 else "milliseconds")
    assert read_times(counts.filter(counts >= 10**9), "datetime").null_count() == counts.filter(counts >= 10**9).len()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2016, 2017, 2021], "holds years"),
        ([202311, 202312, 202401], "holds months"),
        (["winter", "summer"], "does not hold times"),
        ([None, None], "no value"),
        ([datetime.time(12)], "does not hold times"),
    ],
)
def test_columns_that_are_no_times(values: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_unit(pl.Series("x", values, strict=False), "x")
