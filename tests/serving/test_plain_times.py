"""Times that are plain numbers: one that is out of all proportion doesn't spoil what comes after it."""

import gzip
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.client import Client, NewItem
from recollect.deployed import append_events
from recollect.history.writer import HistoryWriter
from recollect.serving.rows import Given, Rows
from recollect.trained import Trained
from tests.serving.conftest import train
from tests.serving.server import served
from tests.serving.test_service import ROW, refused

ROWS = 200


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """A model whose times are the order of the rows."""
    with gzip.open(str(files("recollect.data") / "electricity.csv.gz")) as file:
        table = pl.read_csv(file.read(), n_rows=ROWS)
    table.with_columns(pl.Series("id", [f"row-{row}" for row in range(ROWS)])).write_csv(tmp_path / "old.csv")
    train(tmp_path, "--label", "target", "--steps", 5)
    return tmp_path


def test_a_time_beyond_all_sense_is_refused(counted: Path) -> None:
    with served(counted) as (url, _), Client(url, retries=0) as client:
        for wrong in (1.797e308, -1e300, 2.0**53):
            refused(422, "invalid", client.add, [NewItem("a", ROW, "1", wrong)])
            refused(422, "invalid", client.predict, [ROW], as_of=wrong)
        for wrong in (1e12, -1e12):
            told = refused(409, "impossible-time", client.add, [NewItem("a", ROW, "1", wrong)])
            assert told.errors[0]["pointer"] == "#/items/0/time"
            assert "from 0 to 199" in told.detail
        refused(409, "impossible-time", client.add, [NewItem("a", ROW, "1", 5.0, 1e12)])
        refused(409, "impossible-time", client.correct, "row-0", "other", at=1e12)
        far = client.predict([ROW], as_of=2.0**52)[0]
        assert all(math.isfinite(each) for each in far.probabilities.values())
        assert client.add([NewItem("a", ROW, "1", 10_000.0), NewItem("b", ROW, "1", -7.0)]) == ["added", "added"]
        assert client.predict([ROW])[0].as_of == pytest.approx(10_000)
        assert client.erase("a")
        assert client.predict([ROW])[0].as_of == pytest.approx(199)
        assert client.status()["newest"] == 199
        client.add([NewItem("c", ROW, "1")])
        item = client.item("c")
        assert item is not None
        assert item.time == 200


def test_a_label_is_known_after_all_that_was_there_when_it_came(counted: Path) -> None:
    with served(counted) as (url, _), Client(url, retries=0) as client:
        client.predict([ROW], ids=["early"])
        client.add([NewItem("between", ROW, "1")])
        (later,) = client.predict([ROW])
        for status in ("added", "there"):
            assert client.label({"early": "0"}) == [status]
        item = client.item("early")
        assert item is not None
        assert item.time < 200 < item.known_at
        assert client.predict([ROW], as_of=later.as_of)[0].probabilities == later.probabilities
        for status in ("added", "there"):
            assert client.add([NewItem("ahead", ROW, "1", None, item.known_at + 5)]) == [status]


def test_an_item_beyond_all_times_leaves_answers_whole(counted: Path) -> None:
    model = Trained.load(counted / "model")
    assert model.intake is not None
    events, _, _ = Rows(model.intake.schema, longest=10).items([Given(ROW, "far", "1")], "#/items")
    events = replace(events, time=np.array([1.797e308]), known_at=np.array([1.797e308]))
    with HistoryWriter.open(counted / "history") as writer:
        append_events(writer, model, events)
    with served(counted) as (url, _), Client(url, retries=0) as client:
        (answer,) = client.predict([ROW])
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
        client.erase("far")
        assert client.predict([ROW])[0].as_of == pytest.approx(199)
