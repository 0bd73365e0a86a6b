"""The Australian electricity market, which ships with the package: does the price go up?"""

from datetime import UTC, datetime, timedelta
from importlib.resources import files

import polars as pl

START = datetime(1996, 5, 7, tzinfo=UTC)
HALF_HOUR = timedelta(minutes=30)


def electricity_table() -> pl.DataFrame:
    """45,312 half-hours in order, each with its `time`."""
    with files("recollect.data").joinpath("electricity.csv.gz").open("rb") as file:
        table = pl.read_csv(file.read())
    return table.with_columns(time=pl.Series([START + index * HALF_HOUR for index in range(table.height)]))
