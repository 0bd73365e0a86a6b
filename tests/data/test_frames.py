"""Rows and times that a program hands over come in as those of a file do."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from recollect.data.frames import polars_frame, stored_times
from recollect.errors import DataError

DAY = 1_704_067_200 * 10**9  # 2024-01-01


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2024-01-01"], "datetime64[D]"),
        np.array(["2024-01-01T00:00"], "datetime64[ns]"),
        [datetime.datetime(2024, 1, 1)],
        ["2024-01-01"],
        pd.Series(pd.to_datetime(["2024-01-01"])),
        pl.Series([datetime.date(2024, 1, 1)]),
    ],
)
def test_moments_of_any_kind_are_nanoseconds(values: Any) -> None:
    assert stored_times(values, "time").tolist() == [DAY]


@pytest.mark.parametrize("unit", ["D", "s", "us"])
def test_years_that_do_not_fit_are_refused_and_never_wrap_around(unit: str) -> None:
    with pytest.raises(DataError, match="row 1 is not a time"):
        stored_times(np.array(["2024-01-01", "9999-01-01"], f"datetime64[{unit}]"), "time")


def test_objects_that_say_missing_in_any_way_are_missing() -> None:
    rows = np.array([[1.5, "x"], [pd.NA, None], [float("nan"), "y"]], dtype=object)
    frame = polars_frame(rows, ["a", "b"])
    assert frame.to_dict(as_series=False) == {"a": [1.5, None, None], "b": ["x", None, "y"]}
