"""From a table to a model: what a model that sees rows as another does may take over from it."""

from pathlib import Path

import polars as pl
import pytest

from recollect.data.events import Events
from recollect.data.reading import read_all
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.trained import Trained
from recollect.training.progress import Display
from recollect.training.table import train_table
from tests.data.test_word_scores import praise

ROWS = 400


@pytest.fixture(scope="module")
def table() -> tuple[Events, TableSchema]:
    texts, labels = praise(ROWS)
    frame = pl.DataFrame({"time": [float(row) for row in range(ROWS)], "label": labels, "text": texts})
    events, reading = read_all(frame)
    return events, reading.schema


def trained(table: tuple[Events, TableSchema], cache: Path, *, cutoff: float, like: Trained | None = None) -> Trained:
    with Display() as display:
        return train_table(*table, cutoff=cutoff, cache=cache, steps=2, like=like, display=display)


def test_words_of_a_later_model_would_leak_labels(table: tuple[Events, TableSchema], tmp_path: Path) -> None:
    later = trained(table, tmp_path, cutoff=300.0)
    assert later.intake is not None
    assert later.intake.words is not None
    assert trained(table, tmp_path, cutoff=300.0, like=later).intake == later.intake
    with pytest.raises(SettingError, match="no earlier than its own"):
        trained(table, tmp_path, cutoff=200.0, like=later)
