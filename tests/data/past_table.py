"""A small past of every kind of column, for tests of features."""

import numpy as np
import polars as pl

from recollect.data.schema import TableSchema

SCHEMA = TableSchema(label="label", numeric=("a", "b"), categorical=("colour",), text=("said",))


def past(rows: int = 40) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "a": [float(row) for row in range(rows)],
            "b": [None if row % 4 == 0 else 2.0 * row for row in range(rows)],
            "colour": [("red", "green")[row % 2] for row in range(rows)],
            "said": ["so it goes"] * rows,
        },
        schema_overrides={"b": pl.Float64},
    )


def embeddings(rows: int = 40) -> dict[str, np.ndarray]:
    return {"said": np.random.default_rng(0).normal(3.0, 2.0, (rows, 5)).astype(np.float32)}
