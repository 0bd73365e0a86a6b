"""A row keeps the first reason it can't be used for."""

from recollect.data.schema import TableSchema
from tests.data.made_events import made


def test_the_first_reason_counts_and_the_others_stay() -> None:
    schema = TableSchema(time="at", time_unit="number", label="y", numeric=("x",))
    events, bad = made(schema, at=[1.0, None, 3.0], y=["a", None, "c"], x=[1.0, float("inf"), None])
    assert [(each.row, each.kind, each.place) for each in bad] == [(1, "no time", "table:row 1")]
    assert events.time.tolist() == [1.0, 3.0]
    assert events.columns["x"].to_list() == [1.0, None]
    assert events.rows.tolist() == [0, 2]
