"""The commands under `recollect history`, on small histories."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from recollect.cli_history import history
from recollect.errors import HistoryError, ItemError
from recollect.history.reader import History

COMMANDS = ["append", "inspect", "verify", "compact", "correct", "erase"]


def invoke(*args: object, error: type[Exception] | None = None) -> Any:
    result = CliRunner().invoke(history, [str(arg) for arg in args])
    if error is None and result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if error is not None:
        assert isinstance(result.exception, error), result.output
    return result


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"order-{number}",
            "time": f"2024-01-{number % 28 + 1:02d}T00:00:00Z",
            "label": "fraud" if number % 3 == 0 else "fine",
            "key": [float(number), 1.0],
            "embedding": [number / 2, 1.5, 2.5],
            "amount": number * 10,
            "text": f"order number {number}",
        }
        for number in range(start, stop)
    ]


def as_file(folder: Path, ending: str, start: int = 0, stop: int = 5) -> Path:
    file = folder / f"items-{start}.{ending}"
    table = pa.Table.from_pylist(rows(start, stop))
    if ending == "parquet":
        pyarrow.parquet.write_table(table, file)
    elif ending == "feather":
        pyarrow.feather.write_feather(table, file)
    elif ending == "npz":
        np.savez(file, allow_pickle=False, **{name: np.array(column) for name, column in table.to_pydict().items()})
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(start, stop)))
    return file


@pytest.fixture
def made(tmp_path: Path) -> Path:
    create = ["--create", "--feature", "embedding", "--feature", "amount", "--key-function", "abc"]
    invoke("append", tmp_path / "h", as_file(tmp_path, "parquet"), *create)
    return tmp_path / "h"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert f"Example: recollect history {command} ./history" in words


@pytest.mark.parametrize("ending", ["parquet", "feather", "jsonl", "npz"])
def test_append_from_every_kind_of_file(tmp_path: Path, ending: str) -> None:
    create = ["--create", "--feature", "embedding", "--feature", "amount", "--key-function", "abc"]
    result = invoke("append", tmp_path / "h", as_file(tmp_path, ending), *create)
    assert result.output == f"5 items added; {tmp_path / 'h'} is at version 1\n"
    invoke("append", tmp_path / "h", as_file(tmp_path, ending, 5, 8))
    snapshot = History.open(tmp_path / "h").snapshot
    assert snapshot.column("id").tolist() == [f"order-{number}" for number in range(8)]
    assert snapshot.schema.key.function == "abc"
    fetched = snapshot.fetch([6, 2])
    assert (fetched["embedding"][:, 0].tolist(), fetched["amount"].tolist()) == ([3.0, 1.0], [60, 20])
    assert snapshot.payload([7]).to_pylist() == [{"text": "order number 7"}]
    assert snapshot.classes == ("fraud", "fine")
    assert len(snapshot.as_of("2024-01-04")) == 3


def test_append_again(made: Path, tmp_path: Path) -> None:
    file = as_file(tmp_path, "parquet", 3, 9)
    invoke("append", made, file, error=ItemError)
    assert "4 items added, 2 skipped" in invoke("append", made, file, "--on-duplicate", "skip").output


def test_append_without_a_history(tmp_path: Path) -> None:
    invoke("append", tmp_path / "h", as_file(tmp_path, "jsonl"), error=HistoryError)
    assert invoke("append", tmp_path / "h", tmp_path / "missing.jsonl").exit_code == 2


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    for name, message in {"a.csv": "ends in '.csv': give a .parquet", "a.parquet": "can't be read as parquet"}.items():
        (tmp_path / name).write_text("id,time\n")
        assert message in str(invoke("append", tmp_path / "h", tmp_path / name, error=ItemError).exception)
    (tmp_path / "b.jsonl").write_text('{"id": 1}\n')
    result = invoke("append", tmp_path / "h", tmp_path / "b.jsonl", "--create", error=ItemError)
    assert "the file lacks the column time, label, key" in str(result.exception)


def test_inspect(made: Path) -> None:
    found = json.loads(invoke("inspect", made, "--json").output)
    assert (found["items"], found["version"], found["classes"]) == (5, 1, ["fraud", "fine"])
    assert found["features"] == ["embedding float32 [3]", "amount int64 []"]
    assert found["known_at"][0].startswith("2024-01-01T00:00:00")
    lines = invoke("inspect", made).output.splitlines()
    assert any(line.split() == ["items", "5"] for line in lines)


def test_verify(made: Path) -> None:
    assert invoke("verify", made).output == f"{made} is whole\n"
    invoke("compact", made)
    (file,) = made.glob("segments/*/feature.embedding.npy")
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    result = invoke("verify", made)
    assert result.exit_code == 1
    assert f"segment {file.parent.name}: segments/{file.parent.name}/feature.embedding.npy does not" in result.output


def test_correct_and_erase(made: Path) -> None:
    invoke("correct", made, "order-1", "fraud", "--at", "2024-02-01T00:00:00Z")
    view = History.open(made).as_of("2024-03-01")
    assert dict(zip(view.column("id").tolist(), view.column("label").tolist(), strict=True))["order-1"] == 0
    assert "2 rows erased" in invoke("erase", made, "order-1").output
    assert invoke("compact", made).output == f"{made} is compact at version 3\n"
    found = json.loads(invoke("inspect", made, "--json").output)
    assert (found["items"], found["erased"], found["erased_bytes_remain"]) == (4, 2, False)


def test_numbers_for_ids_labels_and_times(tmp_path: Path) -> None:
    file = tmp_path / "items.npz"
    np.savez(file, id=np.arange(3), time=np.arange(3.0), label=np.arange(3), key=np.ones((3, 2), np.float16))
    invoke("append", tmp_path / "h", file, "--create")
    invoke("correct", tmp_path / "h", "1", "2", "--at", "7.5")
    snapshot = History.open(tmp_path / "h").snapshot
    assert (snapshot.schema.id, snapshot.schema.time, snapshot.schema.key.dtype) == ("integer", "number", "float16")
    assert snapshot.column("label").tolist() == [0, 1, 2, 2]
    for wrong in (["correct", "one", "2", "--at", "8"], ["correct", "1", "two", "--at", "8"], ["erase", "one"]):
        assert invoke(wrong[0], tmp_path / "h", *wrong[1:]).exit_code == 2
    assert invoke("correct", tmp_path / "h", "1", "2", "--at", "noon").exit_code == 2


def test_an_empty_history_can_be_inspected(tmp_path: Path) -> None:
    from recollect.history.writer import HistoryWriter
    from tests.history.items import SCHEMA

    HistoryWriter.create(tmp_path / "h", SCHEMA).close()
    assert json.loads(invoke("inspect", tmp_path / "h", "--json").output)["known_at"] == []
