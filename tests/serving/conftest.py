"""A small model of the electricity market and a history of its first rows, made once for all tests of the service."""

import fcntl
import gzip
import shutil
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app

ROWS, TRAINED = 374, 360


def train(folder: Path, *more: Any, table: str = "old.csv") -> None:
    """On a table in a folder, into the model and the history there."""
    places = ["--id", "id", "--model", folder / "model", "--history", folder / "history"]
    arguments = ["train", folder / table, *places, *more]
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For looking at only: all workers share it."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if root.name.startswith("popen-") else root) / "serving"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            with gzip.open(str(files("recollect.data") / "electricity.csv.gz")) as file:
                table = pl.read_csv(file.read(), n_rows=ROWS)
            when = [(datetime(1996, 5, 7) + timedelta(minutes=30 * row)).isoformat() for row in range(ROWS)]
            names = [f"row-{row}" for row in range(ROWS)]
            table = table.with_columns(pl.Series("when", when), pl.Series("id", names))
            table[:TRAINED].write_csv(folder / "old.csv")
            table.write_csv(folder / "all.csv")
            train(folder, "--label", "target", "--steps", 8)
            (folder / "done").touch()
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy with a history to be written to."""
    shutil.copytree(made / "history", tmp_path / "history")
    shutil.copytree(made / "model", tmp_path / "model")
    return tmp_path
