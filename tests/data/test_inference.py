"""First rows tell what columns are; what is declared stands."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from recollect.data.inference import infer_features, infer_schema
from recollect.data.reading import first_rows, read_all
from recollect.data.tables.times import ROW_ORDER
from recollect.errors import DataError

COUNT = 40
ROWS = pl.DataFrame(
    {
        "review_id": [f"R{number}" for number in range(COUNT)],
        "timestamp": [1_600_000_000_000 + 1000 * number for number in range(COUNT)],
        "label": [number % 2 for number in range(COUNT)],
        "price": [number / 7 for number in range(COUNT)],
        "votes": [number % 3 for number in range(COUNT)],
        "user_id": [number % 5 for number in range(COUNT)],
        "shop": [f"shop {number % 4}" for number in range(COUNT)],
        "verified": [number % 3 == 0 for number in range(COUNT)],
        "body": [f"this is the text number {number}" for number in range(COUNT)],
        "phrase": [["quite good all in all", "not very good at all"][number % 2] for number in range(COUNT)],
        "code": [f"x{number}" for number in range(COUNT)],
        "vector": [[float(number), 0.5, 1.0] for number in range(COUNT)],
        "written": [f"[{number}, 0.5]" for number in range(COUNT)],
        "ragged": [[1.0] * (number % 3 + 1) for number in range(COUNT)],
        "empty": [None] * COUNT,
        "nested": [{"a": 1}] * COUNT,
        "digits": [str(10_000 + number) for number in range(COUNT)],
    }
)


def test_roles_by_looks() -> None:
    schema = infer_schema(ROWS)
    assert (schema.time, schema.time_unit) == ("timestamp", "milliseconds")
    assert (schema.known_at, schema.label, schema.id) == (None, "label", "review_id")
    assert schema.numeric == ("price", "votes")
    assert schema.categorical == ("user_id", "shop", "verified", "phrase")
    assert schema.text == ("body",)
    assert schema.embedding == {"vector": 3, "written": 2}
    assert set(schema.ignored) == {"code", "ragged", "empty", "nested", "digits"}
    assert "identifier" in schema.ignored["code"]
    assert "declare it numeric" in schema.ignored["digits"]
    assert set(schema.roles()) == set(ROWS.columns)
    assert set(schema.why) | set(schema.ignored) >= set(ROWS.columns)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64])
def test_whole_numbers_of_any_width_are_numbers(tmp_path: Path, dtype: type[pl.DataType]) -> None:
    """As Parquet files, Arrow tables and frames that were made smaller have them."""
    rows = pl.DataFrame(
        {"x": pl.Series([3, 1, 4, 1, 5], dtype=dtype), "label": pl.Series([0, 1, 0, 1, 1], dtype=dtype)}
    )
    rows.write_parquet(tmp_path / "t.parquet")
    for source in (rows, rows.to_pandas(), rows.to_arrow(), tmp_path / "t.parquet"):
        events, _ = read_all(source)
        assert events.columns["x"].to_list() == [3.0, 1.0, 4.0, 1.0, 5.0]
        assert events.label is not None
        assert events.label.to_list() == ["0", "1", "0", "1", "1"]
    counter = pl.DataFrame({"row": pl.int_range(COUNT, eager=True).cast(dtype), "label": [0, 1] * (COUNT // 2)})
    assert "row" in infer_schema(counter).ignored


def test_declared_roles_win() -> None:
    schema = infer_schema(
        ROWS, time=ROW_ORDER, label="shop", text=["code"], categorical=["votes"], numeric=["digits"], ignore=["body"]
    )
    assert (schema.time, schema.time_unit, schema.label) == (None, None, "shop")
    assert schema.text == ("code",)
    assert "votes" in schema.categorical
    assert {"timestamp", "digits", "label"} <= set(schema.numeric) | {"label"}
    assert schema.ignored["body"] == "declared"


def test_a_declared_unit_wins() -> None:
    assert infer_schema(ROWS, time="timestamp", time_unit="microseconds").time_unit == "microseconds"


def test_a_declared_unit_holds_for_both_times() -> None:
    rows = pl.DataFrame({"time": [1, 2, 3], "known_at": [2, 3, 4], "label": [0, 1, 0]})
    for unit in ("seconds", "milliseconds", "number"):
        schema = infer_schema(rows, time_unit=unit)
        assert (schema.time_unit, schema.known_at_unit) == (unit, unit)
    counts = pl.Series("time", [86_400, 172_800, 259_200])
    dates = pl.Series("known_at", ["1970-01-05", "1970-01-06", "1970-01-07"])
    for known_at in (dates, dates.str.to_date(), dates.str.to_datetime()):
        schema = infer_schema(rows.with_columns(counts, known_at), time_unit="seconds")
        assert (schema.time_unit, schema.known_at_unit) == ("seconds", "datetime")
    turned = rows.with_columns(dates.alias("time"), (1_700_000_000 + counts).alias("known_at"))
    assert infer_schema(turned, time_unit="datetime").known_at_unit == "seconds"


def test_small_counts_with_a_known_at_are_read_by_the_declared_unit(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,known_at,x,label\n" + "".join(f"{row},{row + 5},{row % 3},{row % 2}\n" for row in range(40)))
    events, _ = read_all(path, infer_schema(first_rows(path), time_unit="seconds"))
    assert events.time.dtype == np.int64
    assert set((events.known_at - events.time).tolist()) == {5 * 10**9}


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"no column colour; there are review_id"):
        infer_schema(ROWS, label="colour")


def test_two_times_are_ambiguous() -> None:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(number) for number in range(COUNT)]
    rows = ROWS.with_columns(pl.Series("shipped", days))
    with pytest.raises(DataError, match=r"several columns could be the time \(shipped, timestamp\)"):
        infer_schema(rows)
    schema = infer_schema(rows, time="timestamp")
    assert schema.ignored["shipped"].startswith("not the row's time: make a number of it")


def test_a_text_that_is_always_a_moment_is_a_time() -> None:
    rows = pl.DataFrame({"sent": ["2024-05-01T12:00:00Z", "2024-05-02T12:00:00Z"], "y": [0, 1]})
    schema = infer_schema(rows)
    assert (schema.time, schema.time_unit, schema.label) == ("sent", "datetime", "y")


def test_a_few_times_that_can_t_be_read_leave_a_column_of_times_what_it_is() -> None:
    """Otherwise the moment at which a label became known, the only one left, would be taken for that of the row."""
    days = [f"2024-01-{1 + number % 28:02d}T08:{number:02d}:00+02:00" for number in range(COUNT)]
    opened = ["yesterday", " ", None, *days[3:]]
    rows = pl.DataFrame({"opened": opened, "resolved": days, "x": range(COUNT)})
    with pytest.raises(DataError, match=r"several columns could be the time \(resolved, opened\)"):
        infer_schema(rows)
    with pytest.raises(DataError, match=r"nearly all of the column opened are times, .* name it with --time opened"):
        infer_schema(rows.drop("resolved"))
    with pytest.raises(DataError, match=r"several columns could be the time \(day, opened\)"):
        infer_schema(rows.select("opened", day=pl.Series([f"{1 + n % 12:02d}/28/2024" for n in range(COUNT)])))
    assert infer_schema(rows, time="resolved").ignored["opened"].startswith("not the row's time")
    schema = infer_schema(rows, time="opened")
    events, reading = read_all(rows, schema, bad_rows="skip")
    assert reading.summary.bad == {"not a time": 1, "no time": 2}
    assert len(events) == COUNT - 3


def test_digits_with_missing_values_among_them_are_no_times() -> None:
    born = [f"1980{1 + number % 12:02d}15" for number in range(COUNT - 1)]
    assert infer_schema(pl.DataFrame({"born": [*born, "NA"], "label": [0, 1] * (COUNT // 2)})).time is None


def test_names_that_come_often_are_categories_however_many_there_are() -> None:
    shops = pl.DataFrame({"shop": [f"shop {7919 * row % 2003}" for row in range(20_000)]})
    assert infer_features(shops).categorical == ("shop",)


@pytest.mark.parametrize("times", [1, 20])
def test_phrases_that_repeat_stay_what_they_are_however_many_rows_there_are(times: int) -> None:
    phrases = [f"the printer in room {number} is on fire" for number in range(400)]
    rows = pl.DataFrame({"said": (phrases + phrases[:200]) * times, "label": [0, 1] * (300 * times)})
    assert infer_schema(rows).text == infer_features(rows.drop("label")).text == ("said",)


def test_prices_that_repeat_are_categories_with_a_word_on_how_to_have_them_read() -> None:
    rows = pl.DataFrame({"price": [f"€0.{number % 90:02d}" for number in range(400)], "label": [0, 1] * 200})
    schema = infer_schema(rows)
    assert schema.categorical == ("price",)
    assert schema.why["price"].startswith("90 different texts in 400 rows; numbers with a comma, $, €")


def test_known_at_by_name_needs_a_time() -> None:
    rows = pl.DataFrame({"time": [1, 2, 3], "known_at": [2, 3, 4], "label": [0, 1, 0]})
    schema = infer_schema(rows)
    assert (schema.time, schema.known_at, schema.known_at_unit) == ("time", "known_at", "number")
    assert infer_schema(rows.drop("time")).time == "known_at"


@pytest.mark.parametrize("name", ["time", "Date", "timestamp", "created_at"])
def test_a_time_that_can_not_be_read_is_refused(name: str) -> None:
    rows = pl.DataFrame({name: ["2024-31-01", "2024-30-02"] * 20, "x": range(COUNT), "label": [0, 1] * 20})
    with pytest.raises(DataError, match=rf"{name} does not hold times \(2024-31-01.*such as 2024-01-31.*\(row order\)"):
        infer_schema(rows)
    assert infer_schema(rows, ignore=[name]).time is None
    assert infer_schema(rows, time=ROW_ORDER).time is None
    assert infer_schema(rows.with_columns(pl.Series("at_last_ts", range(COUNT)))).time == "at_last_ts"


@pytest.mark.parametrize("name", ["created_at", "delivered"])
def test_dates_with_the_year_last_are_the_time_if_nothing_else_is(name: str) -> None:
    rows = pl.DataFrame({name: ["01/31/2024", "02/01/2024"] * 20, "x": range(COUNT), "label": [0, 1] * 20})
    schema = infer_schema(rows)
    assert (schema.time, schema.time_unit) == (name, "month-first")
    assert infer_schema(rows.with_columns(at_last_ts=pl.Series(range(COUNT)))).time == "at_last_ts"
    assert infer_schema(rows.with_columns(iso=pl.lit("2024-01-01"))).time == "iso"


@pytest.mark.parametrize("name", ["date", "created_at", "posted"])
def test_dates_that_don_t_tell_day_from_month_are_asked_about_and_what_is_said_then_holds(name: str) -> None:
    """Under any name: the order of the rows would be the time in silence."""
    rows = pl.DataFrame({name: ["01/01/2024"] * 5 + ["02/02/2024"] * 5, "label": [0, 1] * 5})
    with pytest.raises(DataError, match=f"{name} .*say --time-unit day-first or --time-unit month-first"):
        infer_schema(rows)
    schema = infer_schema(rows, time_unit="month-first")
    assert (schema.time, schema.time_unit) == (name, "month-first")
    assert infer_schema(rows.with_columns(sent=pl.lit("2024-05-01T12:00:00Z"))).time == "sent"


@pytest.mark.parametrize("form", ["%y/%m/%d %H:%M", "%y-%m-%d"])
def test_years_of_two_digits_that_may_come_first_are_asked_about(form: str) -> None:
    days = [datetime.datetime(2017, 6, 9) + datetime.timedelta(number) for number in range(6)]
    rows = pl.DataFrame({"date": [f"{day:{form}}" for day in days], "label": [0, 1] * 3})
    with pytest.raises(
        DataError, match=r"date \(17.06.09.*write it with four; if it comes last say --time-unit day-first"
    ):
        infer_schema(rows)
    assert infer_schema(rows, time_unit="day-first").time_unit == "day-first"


@pytest.mark.parametrize("form", ["%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S"])
def test_hours_in_numbers_are_read_as_what_they_are(tmp_path: Path, form: str) -> None:
    hours = [datetime.datetime(2024, 1, 31, 20) + datetime.timedelta(hours=number) for number in range(COUNT)]
    (tmp_path / "t.csv").write_text(
        "created_at,label\n" + "".join(f"{hour:{form}},{hour.hour % 2}\n" for hour in hours)
    )
    events, reading = read_all(tmp_path / "t.csv")
    assert reading.schema.time_unit == "datetime"
    assert events.time.tolist() == pl.Series(hours, dtype=pl.Datetime("ns")).to_physical().to_list()


def test_a_name_that_only_ends_like_a_time_may_hold_something_else() -> None:
    rows = pl.DataFrame({"looked_at": ["phone", "desk"] * 20, "x": range(COUNT)})
    assert infer_schema(rows).categorical == ("looked_at",)


def test_two_units_of_time_are_refused() -> None:
    rows = pl.DataFrame({"sent_at": [1_714_564_800, 1_714_564_800_000] * 20, "x": range(COUNT)})
    with pytest.raises(DataError, match="sent_at mixes units"):
        infer_schema(rows)
    assert infer_schema(rows, time="sent_at", time_unit="milliseconds").time_unit == "milliseconds"


def test_what_is_declared_of_times_and_lists_must_be_there() -> None:
    with pytest.raises(DataError, match="declared to be seconds, but no column holds them"):
        infer_schema(ROWS, time=ROW_ORDER, time_unit="seconds")
    with pytest.raises(DataError, match="shop holds no list of numbers"):
        infer_schema(ROWS, embedding=["shop"])


def test_years_are_no_time() -> None:
    rows = pl.DataFrame({"year": [2016, 2017, 2018], "label": [0, 1, 0]})
    with pytest.raises(DataError, match="holds years"):
        infer_schema(rows, time="year")
    assert infer_schema(rows).time is None


def test_two_labels_are_ambiguous() -> None:
    with pytest.raises(DataError, match=r"several columns could be the label \(label, target\)"):
        infer_schema(pl.DataFrame({"label": [0, 1], "target": [0, 1]}))


def test_two_ids_are_none() -> None:
    rows = ROWS.with_columns(order_id=pl.col("code"))
    assert infer_schema(rows).id is None
    assert infer_schema(rows, id="order_id").id == "order_id"
    assert infer_schema(rows.with_columns(id=pl.col("code"))).id == "id"


def test_a_column_that_gives_the_label_away_is_pointed_out() -> None:
    rows = ROWS.with_columns(severity=pl.col("label") * 2 + 1)
    schema = infer_schema(rows)
    assert "is it known before the label?" in schema.why["severity"]
    assert "is it known before the label?" not in schema.why["votes"]


@pytest.mark.parametrize("values", [["a", "b"] * 10, [1, 2] * 10, [*list(range(19)), 0]])
def test_a_column_called_id_that_can_t_be_one_is_told(values: list[Any]) -> None:
    rows = pl.DataFrame({"id": values, "x": [0.5 * number for number in range(20)]})
    schema = infer_schema(rows)
    assert schema.id is None
    why = {**schema.why, **schema.ignored}["id"]
    assert "it repeats or has gaps, so it doesn't name the rows" in why
    assert why.endswith("say --id id")
    assert "--id" not in infer_schema(rows.with_columns(row=pl.int_range(20)), id="row").why.get("id", "")
