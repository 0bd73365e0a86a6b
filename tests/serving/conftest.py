"""Small models and histories, made once for all tests of the service: the first rows of the electricity market, and a
table with every kind of column whose times are plain numbers."""

import fcntl
import gzip
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app

ROWS, TRAINED = 374, 360
TICKETS = 160


def train(folder: Path, *more: Any, table: str = "old.csv") -> None:
    """On a table in a folder, into the model and the history there."""
    places = ["--id", "id", "--model", folder / "model", "--history", folder / "history"]
    arguments = ["train", folder / table, *places, *more]
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that all workers share, made by the first that comes."""
    root = factory.getbasetemp()
    folder = (root.parent if root.name.startswith("popen-") else root) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            make(folder)
            (folder / "done").touch()
    return folder


def make_market(folder: Path) -> None:
    with gzip.open(str(files("recollect.data") / "electricity.csv.gz")) as file:
        table = pl.read_csv(file.read(), n_rows=ROWS)
    when = [(datetime(1996, 5, 7) + timedelta(minutes=30 * row)).isoformat() for row in range(ROWS)]
    names = [f"row-{row}" for row in range(ROWS)]
    table = table.with_columns(pl.Series("when", when), pl.Series("id", names))
    table[:TRAINED].write_csv(folder / "old.csv")
    table.write_csv(folder / "all.csv")
    train(folder, "--label", "target", "--steps", 8)


def make_tickets(folder: Path) -> None:
    words = ("refund my order please", "where is the parcel", "it arrived broken", "thank you so much")
    pl.DataFrame(
        {
            "day": [row / 4 for row in range(TICKETS)],
            "shop": [("north", "south", "east")[row % 3] for row in range(TICKETS)],
            "price": [float(row % 7) for row in range(TICKETS)],
            "text": [f"{words[row % 4]}, number {row}" for row in range(TICKETS)],
            "place": [[row % 5 / 5, row % 4 / 4] for row in range(TICKETS)],
            "answer": [("sorry", "welcome")[row % 4 == 3] for row in range(TICKETS)],
            "id": [f"ticket-{row}" for row in range(TICKETS)],
        }
    ).write_parquet(folder / "old.parquet")
    columns = ["--label", "answer", "--time", "day", "--text", "text", "--categorical", "shop"]
    train(folder, *columns, "--steps", 5, "--cache", folder / "cache", table="old.parquet")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For looking at only: all workers share it."""
    return once(tmp_path_factory, "serving", make_market)


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy with a history to be written to."""
    return copied(made, tmp_path)


@pytest.fixture
def tickets(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """Numbers, names, texts and embeddings with plain numbers for times, and a history to be written to."""
    return copied(once(tmp_path_factory, "tickets", make_tickets), tmp_path)


def copied(folder: Path, to: Path) -> Path:
    for name in ("history", "model"):
        shutil.copytree(folder / name, to / name)
    return to
