"""Events of a few columns, for tests of what they become."""

from typing import Any

import polars as pl

from recollect.data.events import make_events
from recollect.data.schema import TableSchema
from recollect.data.tables.sources import PolarsTable


def made(schema: TableSchema, **columns: Any) -> tuple[Any, list[Any]]:
    table = PolarsTable(pl.DataFrame(columns))
    (chunk,) = table.chunks(schema.hopes(), 10_000)
    return make_events(chunk, schema, table)
