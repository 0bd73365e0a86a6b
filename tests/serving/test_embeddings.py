"""Rows with lists of numbers: answered and appended with the list, and without it."""

from pathlib import Path

import numpy as np
import polars as pl

from recollect.client import Client, NewItem
from tests.serving.conftest import train
from tests.serving.server import served

ROWS, WIDTH = 200, 4


def test_lists_of_numbers_may_come_or_not(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    lists = chance.normal(size=(ROWS, WIDTH)).astype(np.float32)
    table = pl.DataFrame(
        {
            "when": [f"2024-01-{1 + row // 10:02d}T{row % 10:02d}:00:00" for row in range(ROWS)],
            "e": pl.Series(lists, dtype=pl.Array(pl.Float32, WIDTH)).cast(pl.List(pl.Float32)),
            "label": [str(row) for row in (lists[:, 0] > 0).astype(int)],
            "id": [f"row-{row}" for row in range(ROWS)],
        }
    )
    table.write_parquet(tmp_path / "old.parquet")
    train(tmp_path, "--label", "label", "--steps", 5, table="old.parquet")
    there, missing = {"e": [1.5, 0.1, -0.2, 0.3]}, {"e": None}
    with served(tmp_path) as (url, _), Client(url, retries=0) as client:
        assert client.status()["columns"]["e"] == "embedding"
        said = client.predict([there, missing, {}])
        assert said[1].probabilities == said[2].probabilities != said[0].probabilities
        news = [NewItem("with", there, "1"), NewItem("without", {}, "0")]
        assert client.add(news) == ["added", "added"]
        near = client.predict([there, {}], precedents=64)
        assert next(each for each in near[0].precedents if each.id == "with").similarity > 0.999
        assert next(each for each in near[1].precedents if each.id == "without").similarity > 0.999
