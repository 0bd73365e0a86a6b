"""Dates with the year last: every way of writing one, and whether day or month comes first."""

import datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.tables.dates import DAY_ORDERS, DayOrder, order_of, read_dates
from recollect.errors import DataError

EVENING = 1_735_675_500 * 10**9  # 2024-12-31T20:05:00Z
MIDNIGHT = 1_735_603_200 * 10**9


@pytest.mark.parametrize(
    ("text", "order", "expected"),
    [
        ("31/12/2024", "day-first", MIDNIGHT),
        ("12/31/2024", "month-first", MIDNIGHT),
        ("31/12/2024", "month-first", None),
        (" 31.12.24 ", "day-first", MIDNIGHT),
        ("31-12-2024 20:05", "day-first", EVENING),
        ("12/31/2024 8:05 PM", "month-first", EVENING),
        ("12/31/2024, 08:05:00 p.m.", "month-first", EVENING),
        ("12/31/2024 12:00 am", "month-first", MIDNIGHT),
        ("12/31/2024 12:00:00.5 AM", "month-first", MIDNIGHT + 5 * 10**8),
        ("31 Dec 2024", "month-first", MIDNIGHT),
        ("31-DEC-24 20:05", "day-first", EVENING),
        ("December 31, 2024 8:05 PM", "day-first", EVENING),
        ("Sept 3 1999", "day-first", 936_316_800 * 10**9),
        ("1/2/68", "day-first", 3_095_280_000 * 10**9),
        ("1/2/69", "day-first", -28_857_600 * 10**9),
        ("29/2/2023", "day-first", None),
        ("31/12/2024 24:00", "day-first", None),
        ("31/12/2024 13:05 PM", "day-first", None),
        ("31/12/2024 0:05 PM", "day-first", None),
        ("31/12/2024 20:60", "day-first", None),
        ("31/12/1677", "day-first", None),
        ("1/1/2262", "day-first", None),
        ("31 Nothing 2024", "day-first", None),
        ("2024-12-31", "day-first", None),
        ("1.2.3", "day-first", None),
        ("", "day-first", None),
        (None, "day-first", None),
    ],
)
def test_a_date_alone_and_among_others(text: str | None, order: DayOrder, expected: int | None) -> None:
    assert read_dates(pl.Series([text], dtype=pl.String), order).to_list() == [expected]
    assert read_dates(pl.Series(["nonsense", text, "1 Jan 1970"]), order).to_list() == [None, expected, 0]


@pytest.mark.parametrize("order", DAY_ORDERS)
@pytest.mark.parametrize("clock", ["%H:%M:%S", "%I:%M:%S %p"])
@given(moment=st.datetimes(datetime.datetime(1969, 1, 1), datetime.datetime(2068, 12, 31)), short=st.booleans())
def test_what_python_writes_is_read_as_written(
    order: DayOrder, clock: str, moment: datetime.datetime, short: bool
) -> None:
    day = ("%d/%m/" if order == "day-first" else "%m/%d/") + ("%y" if short else "%Y")
    moment = moment.replace(microsecond=0)
    seconds = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(seconds=1)
    assert read_dates(pl.Series([moment.strftime(f"{day} {clock}")]), order).to_list() == [seconds * 10**9]


def test_one_day_after_the_twelfth_tells_the_order() -> None:
    assert order_of(pl.Series(["01/02/2024", "13/02/2024"]), "sent") == "day-first"
    assert order_of(pl.Series(["01/02/2024", "02/13/2024"]), "sent") == "month-first"
    assert order_of(pl.Series(["Jun 12 1998", "Jul 1 1998"]), "sent") == "day-first"  # no matter
    assert order_of(pl.Series(["12/31/24", "01/02/25"]), "sent") == "month-first"  # there is no month 31
    assert order_of(pl.Series(["01/02/99", "31/12/98"]), "sent") == "day-first"  # nor such a day
    assert order_of(pl.Series(["05/06/24", "31/12/2024"]), "sent") == "day-first"  # the year comes last in one
    assert order_of(pl.Series(["24-DEC-31"]), "sent") == "day-first"
    assert order_of(pl.Series(["winter", "v1.2.3"]), "sent") is None


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        (
            ["01/02/2024", "02/03/2024"],
            r"\(01/02/2024\).*no day .*: say --time-unit day-first or --time-unit month-first",
        ),
        # A busy log that starts on 1 January: the rows to come may be of 2 January, or of 1 February.
        (["01/01/2024"] * 3, r"\(01/01/2024\).*no day .*: say --time-unit day-first or --time-unit month-first"),
        (["1 Jan 2024", "5/5/2024"], r"\(5/5/2024\).*no day"),
        (
            ["17/06/09 20:10:40", "17/06/14 1:02"],
            r"\(17/06/09 20:10:40\).*four; if it comes last say --time-unit day-first$",
        ),
        (["17/06/17"], r"year of two digits.* say --time-unit day-first$"),
        (["01/02/03"], r"year of two digits.* say --time-unit day-first or --time-unit month-first$"),
        (["99-12-31", "01-01-01"], r"year of two digits.* write it with four$"),
    ],
)
def test_an_order_that_nothing_tells_is_asked_for(dates: list[str], message: str) -> None:
    with pytest.raises(DataError, match=f"^the dates in the column sent {message}" if message[0] == "\\" else message):
        order_of(pl.Series(dates), "sent")
