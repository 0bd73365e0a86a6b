"""Items of every kind a user may hand in: the same columns, or an error that names the row and the remedy."""

import datetime
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from recollect.errors import ItemError
from recollect.history.disk.log import Rows
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.rows import check_items, moment
from tests.history.items import SCHEMA, items

DATED = Schema(
    key=Key(2, "float16"),
    features=(Column("wide", "float32", (3,)), Column("count", "int32")),
    payload=pa.schema([("text", pa.string()), ("when", pa.timestamp("ms"))]),
)


def dated() -> dict[str, Any]:
    return {
        "id": ["a", "b"],
        "time": np.array(["2020-01-01T00:00:00.000000001", "2021-06-01"], "datetime64[ns]"),
        "known_at": np.array(["2020-02-01", "2021-06-01"], "datetime64[ns]"),
        "label": ["spam", "ham"],
        "key": [[1.0, 2.0], [3.0, 4.0]],
        "wide": [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]],
        "count": [7, 8],
        "text": ["x", None],
        "when": [datetime.datetime(2020, 1, 1), None],
    }


def as_pandas() -> Any:
    frame = pd.DataFrame(dated())
    return frame.assign(time=frame["time"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"))


def as_arrow() -> Any:
    table = pa.table(dated())
    zoned = table.column("time").cast(pa.timestamp("ns", "UTC"))
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(0.5, 6), pa.float32()), 3)
    table = table.set_column(table.schema.get_field_index("time"), "time", zoned)
    return table.set_column(table.schema.get_field_index("wide"), "wide", wide)


KINDS = {
    "lists and arrays": dated,
    "tensors": lambda: dated() | {"wide": torch.tensor(dated()["wide"]), "count": torch.tensor([7, 8])},
    "nanoseconds": lambda: dated() | {"time": dated()["time"].astype(np.int64)},
    "texts": lambda: dated() | {"time": ["2020-01-01T00:00:00.000000001Z", "2021-06-01T09:00:00+09:00"]},
    "pandas": as_pandas,
    "pandas with Arrow": lambda: pd.DataFrame(dated()).convert_dtypes(dtype_backend="pyarrow"),
    "polars": lambda: pl.DataFrame(dated()),
    "Arrow": as_arrow,
    "a record batch": lambda: as_arrow().combine_chunks().to_batches()[0],
}


def same(one: Rows, two: Rows) -> None:
    for name, array in two.columns.items():
        np.testing.assert_array_equal(one.columns[name], array)
        assert one.columns[name].dtype == array.dtype
    assert one.payload == two.payload


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_rows(kind: str) -> None:
    given = check_items(KINDS[kind](), DATED)
    same(given.rows, check_items(dated(), DATED).rows)
    assert given.names == ["spam", "ham"]
    assert given.rows.columns["time"].tolist() == [1577836800000000001, 1622505600000000000]
    assert given.rows.columns["id"].tolist() == [b"a", b"b"]
    assert given.rows.payload is not None
    assert given.rows.payload.to_pydict() == {"text": ["x", None], "when": [datetime.datetime(2020, 1, 1), None]}


def test_known_at_is_the_time_unless_given() -> None:
    made = items(["a", "b"], time=3)
    assert check_items(made, SCHEMA).rows.columns["known_at"].tolist() == [3, 3]
    assert check_items(made | {"known_at": None}, SCHEMA).rows.columns["known_at"].tolist() == [3, 3]


def test_payload_that_may_be_empty_may_be_missing() -> None:
    made = items(["a"])
    del made["text"]
    payload = check_items(made, SCHEMA).rows.payload
    assert payload is not None
    assert payload.column("text").to_pylist() == [None]


def test_bfloat16_keeps_its_bits() -> None:
    tensor = torch.tensor([[[1.0, -2.5], [3e38, 0.1]]], dtype=torch.bfloat16)
    rows = check_items(items(["a"], grid=tensor), SCHEMA).rows
    assert torch.equal(torch.from_numpy(rows.columns["feature.grid"]).view(torch.bfloat16), tensor)
    again = check_items(items(["a"], grid=tensor.float().numpy()), SCHEMA).rows
    np.testing.assert_array_equal(again.columns["feature.grid"], rows.columns["feature.grid"])


def test_a_scalar_may_come_as_a_column_of_width_1() -> None:
    rows = check_items(items(["a", "b"], count=np.array([[1], [2]])), SCHEMA).rows
    assert rows.columns["feature.count"].tolist() == [1, 2]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "known too early": (
        {"known_at": [5.0, -1.0]},
        r"row 1 has known_at -1.0 before its time 0.0: .* leave known_at out",
    ),
    "no time": ({"time": [0.0, float("nan")]}, "row 1 has time nan: give a finite number"),
    "infinite time": ({"known_at": [float("inf"), 1.0]}, "row 0 has known_at inf: give a finite number"),
    "time as text": ({"time": ["1", "2"]}, "this history's times are plain numbers"),
    "wrong width": (
        {"wide": np.zeros((2, 4))},
        r"column wide has items of shape \(4,\), the history's schema has \(5,\)",
    ),
    "ragged": ({"wide": [[1.0], [2.0, 3.0]]}, "column wide is not an array of one width"),
    "ragged Arrow": ({"wide": pa.array([[1.0], [2.0, 3.0]])}, "row 1 of column wide is 2 wide, row 0 is 1"),
    "float as int": ({"count": [0.5, 1.0]}, "column count has the type float64, the history stores int64: convert"),
    "too large": ({"wide": np.full((2, 5), 1e6)}, "row 0 of column wide holds a value that does not fit into float16"),
    "text as number": ({"wide": [["a"] * 5] * 2}, "column wide has the type"),
    "key not finite": ({"key": [[1, 2, 3], [1, float("nan"), 3]]}, "row 1 has a key that is not finite"),
    "too few rows": ({"count": [1]}, "column feature.count has 1 rows, time has 2: give one value per item"),
    "too few payload": ({"text": ["x"]}, "payload text has 1 rows, time has 2"),
    "missing column": ({"wide": None}, "items lack the column wide: this history's schema requires it"),
    "unknown column": ({"colour": [1, 2]}, "items have the column colour, .* leave it out, or create a new history"),
    "id of the wrong type": ({"id": [1, 2]}, "ids have the type int64, this history's ids are texts"),
    "empty id": ({"id": ["a", ""]}, "row 1 has the id '': an id is a text of one character or more"),
    "id with NUL": ({"id": ["a\0", "b"]}, r"row 0 has the id 'a\\x00'"),
    "missing id": ({"id": ["a", None]}, "row 1 has the id None"),
    "missing id in Arrow": ({"id": pa.array(["a", None])}, "row 1 has no id: fill it in"),
    "long id": ({"id": ["a", "é" * 600]}, "the id of row 1 is longer than 1024 bytes: use a hash"),
    "negative label": ({"label": [1, -1]}, "row 1 has the label -1: codes count from 0"),
    "label as float": ({"label": [0.5, 1.0]}, "labels have the type float64: give names of classes, or their codes"),
    "empty label": ({"label": ["spam", ""]}, "row 1 has the label '': give the name of a class"),
    "payload of the wrong type": ({"tags": ["x", "y"]}, "payload tags is not of the type list"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named(kind: str) -> None:
    columns, message = WRONG[kind]
    with pytest.raises(ItemError, match=message):
        check_items(items(["a", "b"]) | columns, SCHEMA)


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ([1.5, 2.5], "this history's times are moments: give datetimes, or whole nanoseconds"),
        (["soon", "later"], "time can't be read as moments"),
        (np.array(["2020", "NaT"], "datetime64[s]"), "row 1 has no time"),
        (np.array(["2020", "9999"], "datetime64[s]"), "only the years 1678 to 2261 can be stored"),
        (pa.array([True, False]), "time has the type bool, this history's times are moments"),
    ],
)
def test_moments_that_are_none(time: Any, message: str) -> None:
    with pytest.raises(ItemError, match=message):
        check_items(dated() | {"time": time, "known_at": None}, DATED)


def test_items_of_no_known_kind() -> None:
    with pytest.raises(ItemError, match="items came as list: give a mapping of columns, a pandas or polars"):
        check_items([1, 2], SCHEMA)


def test_integer_ids() -> None:
    schema = Schema(key=Key(1), id="integer", time="number")
    columns = {"id": np.array([3, 4], np.uint8), "time": [1, 2], "label": [0, 0], "key": [[1.0], [2.0]]}
    assert check_items(columns, schema).rows.columns["id"].tolist() == [3, 4]
    with pytest.raises(ItemError, match="this history's ids are whole numbers"):
        check_items(columns | {"id": ["a", "b"]}, schema)
    with pytest.raises(ItemError, match="does not fit into int64"):
        check_items(columns | {"id": np.array([1, 2**63], np.uint64)}, schema)


def test_one_moment() -> None:
    now = 1577836800000000000
    for same_moment in (
        now,
        "2020-01-01",
        np.datetime64("2020-01-01"),
        pd.Timestamp("2020-01-01"),
        datetime.datetime(2020, 1, 1, 9, tzinfo=datetime.timezone(datetime.timedelta(hours=9))),
        datetime.date(2020, 1, 1),
    ):
        assert moment(same_moment, DATED, "as_of") == now
    assert moment(2, SCHEMA, "as_of") == 2.0


def test_pandas_and_polars_are_not_imported() -> None:
    code = "import sys, recollect.history.reader, recollect.history.writer\n"
    code += "print({'pandas', 'polars', 's3fs'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
