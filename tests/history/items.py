"""Small items of every kind of column, for the tests of the history."""

from typing import Any

import numpy as np
import pyarrow as pa

from recollect.history.compaction import Limits
from recollect.history.disk.schema import Column, Key, Schema

SCHEMA = Schema(
    key=Key(3, "float32", "made up"),
    features=(Column("wide", "float16", (5,)), Column("count", "int64"), Column("grid", "bfloat16", (2, 2))),
    time="number",
    payload=pa.schema([("text", pa.string()), ("tags", pa.list_(pa.int32()))]),
)

# So small that a handful of items is sealed and merged, as millions would be.
TINY = Limits(seal_rows=6, merge_width=3, background=False)


def items(names: list[str], *, time: float = 0.0, label: int = 0, **columns: Any) -> dict[str, Any]:
    """Items whose columns all follow from their names, so that a mixed-up row shows."""
    seeds = np.array([sum(map(ord, name)) % 1000 for name in names], np.float64)
    made = {
        "id": names,
        "time": np.full(len(names), time),
        "label": np.full(len(names), label),
        "key": np.stack([seeds, seeds / 2, -seeds], axis=1).reshape(-1, 3),
        "wide": (seeds[:, None] + np.arange(5)).astype(np.float16),
        "count": seeds.astype(np.int64),
        "grid": np.broadcast_to((seeds % 100)[:, None, None], (len(names), 2, 2)).astype(np.float32),
        "text": [f"text of {name}" for name in names],
        "tags": [[len(name), index] if name else None for index, name in enumerate(names)],
    }
    return made | columns


def numbered(start: int, stop: int) -> list[str]:
    return [f"item-{number}" for number in range(start, stop)]
