"""The commands under `recollect history`, on small histories."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

from recollect.cli_history import history
from recollect.data.key_fitting import fit_pca
from recollect.data.keys import first_columns
from recollect.errors import HistoryError, ItemError, RecollectError, SettingError
from recollect.history.files import schema_of
from recollect.history.key_table import KeyTable
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from recollect.inputs import Lookup
from recollect.records import FeatureSpec
from recollect.retrieval.scoring import score, summarise
from recollect.retrieval.selection import greedy

COMMANDS = ["append", "inspect", "verify", "compact", "rekey", "correct", "erase"]


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


def test_everything_that_is_done_is_told_as_json_too(made: Path, tmp_path: Path) -> None:
    def told(*args: object) -> Any:
        return json.loads(invoke(*args, "--json").stdout)

    found = told("append", made, as_file(tmp_path, "jsonl", 5, 8))
    assert (found["added"], found["skipped"], found["history"]) == (3, 0, str(made))
    assert told("correct", made, "order-6", "fraud", "--at", "2024-05-01")["label"] == "fraud"
    assert told("erase", made, "order-7")["rows_erased"] == 1
    assert told("rekey", made, "--first", 2, "--feature", "embedding")["keys"] > 0
    assert told("rekey", made, "--first", 2, "--feature", "embedding")["keys"] == 0
    assert told("compact", made)["version"] == told("inspect", made)["version"]
    assert told("verify", made) == {"history": str(made), "whole": True, "problems": []}


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


def test_a_correction_that_can_t_be_meant_is_refused_with_its_remedy(made: Path) -> None:
    with pytest.raises(
        SettingError, match="no class 'fruad', it has fraud, fine: give one of these, or add --new-class"
    ):
        invoke("correct", made, "order-1", "fruad", "--at", "2024-02-01")
    invoke("correct", made, "order-1", "abuse", "--at", "2024-02-01", "--new-class")
    assert History.open(made).snapshot.classes == ("fraud", "fine", "abuse")
    invoke("correct", made, "order-1", "fine", "--at", "2024-02-02T12")
    with pytest.raises(
        ItemError, match=r"\('tomorrow'\): give datetimes, or ISO 8601 texts such as 2024-05-01T12:00:00Z"
    ):
        invoke("correct", made, "order-1", "fine", "--at", "tomorrow")
    early = r"can't be corrected at 2020-01-01T00:00:00.000000000Z: its label became known at 2024-02-02T12:00:00"
    with pytest.raises(ItemError, match=early):
        invoke("correct", made, "order-1", "fine", "--at", "2020-01-01")


def test_an_id_that_is_not_there_can_be_neither_corrected_nor_erased(made: Path) -> None:
    for wrong in (["nope"], ["order-1", "nope", "none"]):
        unknown = "there is no item " + ", ".join(repr(each) for each in wrong if each != "order-1")
        with pytest.raises(ItemError, match=unknown):
            invoke("erase", made, *wrong)
    many = [f"x{number}" for number in range(8)]
    with pytest.raises(ItemError, match=r"'x4' and 3 more in history .*, and nothing was changed"):
        invoke("erase", made, *many)
    with pytest.raises(ItemError, match="there is no item 'nope'"):
        invoke("correct", made, "nope", "fraud", "--at", "2024-02-01")
    assert json.loads(invoke("inspect", made, "--json").output)["items"] == 5


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


# Other keys


def nearest(path: Path, key_function: str, query: list[float]) -> str:
    """The id that a query finds, by the table and the selection that predictions use."""
    view = KeyTable(key_function=key_function).follow(History.open(path).snapshot)
    visible = view.visible(torch.tensor([2**62]))
    scores = score(torch.tensor([[query]]), Lookup(view, recency=False).keys, visible, temperature=1.0)
    position = greedy(scores, summarise(scores)).positions.flatten()
    return str(view.source.column("id")[int(view.at("row", position))])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rekey_by_the_first_columns(tmp_path: Path, dtype: str) -> None:
    made = tmp_path / "h"
    schema = schema_of(pa.Table.from_pylist(rows(0, 1)), features=["embedding", "amount"], key_function="abc")
    with HistoryWriter.create(made, replace(schema, key=replace(schema.key, dtype=dtype))) as writer:
        writer.append(pa.Table.from_pylist(rows(0, 5)))
    assert nearest(made, "abc", [-1.0, 0.0]) == "order-0"
    fingerprint = first_columns("embedding", 3, 1).fingerprint
    result = invoke("rekey", made, "--first", 1, "--feature", "embedding")
    assert result.output == (
        f"5 keys made anew, {dtype} x 1, function {fingerprint} (before: {dtype} x 2, function abc); "
        f"{made} is otherwise as it was\n"
    )
    assert nearest(made, fingerprint, [1.0]) == "order-4"
    with pytest.raises(HistoryError, match=f"has keys of fingerprint {fingerprint}, the model expects abc"):
        nearest(made, "abc", [-1.0, 0.0])
    key = History.open(made).snapshot.fetch([0, 3], ["key"])["key"]
    assert (key.dtype, key.tolist()) == (getattr(torch, dtype), [[0.0], [1.5]])
    assert "nothing to do" in invoke("rekey", made, "--first", 1, "--feature", "embedding").output
    assert verify(made) == []


def test_rekey_by_a_file(made: Path, tmp_path: Path) -> None:
    """From the items as they are, in the log or in segments; nothing but the keys is written."""
    invoke("compact", made)
    invoke("append", made, as_file(tmp_path, "parquet", 5, 9))
    snapshot = History.open(made).snapshot
    specs = [FeatureSpec("embedding", "embedded", 3), FeatureSpec("amount", "categorical", 41)]
    function = fit_pca(snapshot.fetch(range(5)), specs, 3, whiten=True)
    function.save(tmp_path / "key_function")
    before = {file: file.stat().st_mtime_ns for file in made.glob("segments/*/feature.*")}
    with pytest.raises(HistoryError) as refused:
        KeyTable(key_function=function.fingerprint).follow(snapshot)
    command = str(refused.value).partition('"recollect history ')[2].removesuffix('"')
    result = invoke(*command.replace("FILE", str(tmp_path / "key_function")).split())
    assert f"9 keys made anew, float32 x 3, function {function.fingerprint}" in result.output
    assert {file: file.stat().st_mtime_ns for file in before} == before
    view = KeyTable(key_function=function.fingerprint).follow(History.open(made).snapshot)
    assert torch.equal(view.items.key, function(snapshot.fetch(view.items.row)))
    assert f"function {function.fingerprint}" in invoke("inspect", made).output


def test_rekey_as_it_can_not_be(made: Path, tmp_path: Path) -> None:
    first_columns("embedding", 4, 2).save(tmp_path / "wide")
    (tmp_path / "text").write_text("no key function")
    for options in (
        [],
        ["--first", 2],
        ["--feature", "embedding"],
        ["--key-function", tmp_path / "wide", "--first", 2],
    ):
        assert invoke("rekey", made, *options).exit_code == 2
    assert invoke("rekey", made, "--key-function", tmp_path / "missing").exit_code == 2
    wrong = {
        ("--key-function", tmp_path / "wide"): "'embedding' came as float32 of shape [5, 3]",
        ("--key-function", tmp_path / "text"): "can't be read as a key function",
        ("--first", 4, "--feature", "embedding"): "the first 4 columns of feature 'embedding' were asked for, it has 3",
        ("--first", 1, "--feature", "nothing"): "the history has no feature 'nothing': it has embedding, amount",
    }
    for arguments, message in wrong.items():
        assert message in str(invoke("rekey", made, *arguments, error=RecollectError).exception)
    assert nearest(made, "abc", [1.0, 0.0]) == "order-4"
    assert verify(made) == []


# Stops for ever at the moment named, after saying so.
STOPPED = """
import sys, time
from recollect.cli import main
from {module} import {owner}

def stop(*arguments, **others):
    print("stopped", flush=True)
    time.sleep(600)

{owner}.{method} = stop
sys.argv = ["recollect", "history", "rekey", {path!r}, "--first", "1", "--feature", "embedding"]
main()
"""


@pytest.mark.parametrize(
    ("module", "owner", "method"),
    [
        ("recollect.data.keys", "KeyFunction", "__call__"),
        ("recollect.history.disk.storage", "LocalStorage", "sync"),
        ("recollect.history.disk.storage", "LocalStorage", "replace"),
    ],
    ids=["computing", "written", "publishing"],
)
def test_a_killed_rekey_leaves_the_old_keys(made: Path, module: str, owner: str, method: str) -> None:
    invoke("compact", made)  # so that the log is empty, and the first file written is that of the new keys
    script = STOPPED.format(module=module, owner=owner, method=method, path=str(made))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert nearest(made, "abc", [1.0, 0.0]) == "order-4"
    assert verify(made) == []
    assert "5 keys made anew" in invoke("rekey", made, "--first", 1, "--feature", "embedding").output
    assert nearest(made, first_columns("embedding", 3, 1).fingerprint, [1.0]) == "order-4"
    assert verify(made) == []
    invoke("compact", made)
    assert len(list(made.glob("segments/*/key.npy"))) == 1
