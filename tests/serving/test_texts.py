"""Rows with texts: embedded as they come, by the embedder of training, which is loaded before the first request."""

from pathlib import Path

import polars as pl

from recollect.client import Client, NewItem
from recollect.data.embedding import EmbedderSpec
from recollect.data.intake import _loaded
from tests.serving.conftest import train
from tests.serving.server import served

ROWS = 200
WORDS = ("refund my order please", "where is the parcel", "it arrived broken and wet", "thank you so much")


def test_texts_are_embedded_as_they_come(tmp_path: Path) -> None:
    table = pl.DataFrame(
        {
            "when": [f"2024-01-{1 + row // 10:02d}T{row % 10:02d}:00:00" for row in range(ROWS)],
            "text": [f"{WORDS[row % 4]} number {row}" for row in range(ROWS)],
            "label": [str(row % 4 > 1) for row in range(ROWS)],
            "id": [f"row-{row}" for row in range(ROWS)],
        }
    )
    table.write_csv(tmp_path / "old.csv")
    train(
        tmp_path, "--label", "label", "--text", "text", "--steps", 5, "--cache", tmp_path / "cache", "--embed-width", 64
    )
    _loaded.clear()
    with served(tmp_path) as (url, _), Client(url) as client:
        assert list(_loaded) == [EmbedderSpec("wordllama", width=64)]
        text = "the parcel came broken"
        before = client.predict([{"text": text}, {"text": None}, {}])
        assert before[1].probabilities == before[2].probabilities != before[0].probabilities
        assert client.add([NewItem(f"new-{number}", {"text": text}, "other") for number in range(4)]) == ["added"] * 4
        after = client.predict([{"text": text}], precedents=64)[0]
        near = next(each for each in after.precedents if each.id.startswith("new-"))
        assert near.similarity > 0.999
        assert near.row == {"text": text}
