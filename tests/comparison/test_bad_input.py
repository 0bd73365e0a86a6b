"""What people really hand in: refused with one line that names the remedy, or handled and told in the report."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from recollect import cli
from recollect.comparison.notes import notes
from recollect.data.feature_fitting import MOST_CATEGORIES, fit_features
from recollect.data.inference import infer_schema
from recollect.data.reading import read_all
from recollect.data.schema import TableSchema
from recollect.evaluation.peers import DEFAULT, SLOW
from recollect.evaluation.table_stream import prepare

DAYS = range(1, 29)


class Ran:
    """What a person sees of one command."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capfd, self.monkeypatch = capfd, monkeypatch

    def __call__(self, *arguments: Any) -> tuple[int, list[str]]:
        """The exit code, and the lines on standard error."""
        self.monkeypatch.setattr(sys, "argv", ["recollect", *map(str, arguments)])
        self.capfd.readouterr()
        try:
            cli.main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
        return int(code), self.capfd.readouterr().err.splitlines()


@pytest.fixture
def recollect(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    return Ran(capfd, monkeypatch)


def table(folder: Path, row: Callable[[int], str], header: str = "when,x,label", name: str = "events.csv") -> Path:
    """A CSV file of 28 days."""
    path = folder / name
    path.write_text("\n".join([header, *(row(day) for day in DAYS)]) + "\n")
    return path


def good_row(day: int) -> str:
    return f"2020-01-{day:02d},{7 * day % 31},{day % 2}"


def assert_refused(ran: tuple[int, list[str]], *words: str) -> None:
    code, lines = ran
    assert code == 1
    assert len(lines) == 1, lines
    assert lines[0].startswith("recollect: ")
    assert "Traceback" not in lines[0]
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("options", [["--label", "fraud"], ["--time", "fraud"], ["--numeric", "fraud"]], ids=" ".join)
def test_no_such_column(tmp_path: Path, recollect: Ran, options: list[str]) -> None:
    ran = recollect("compare", table(tmp_path, good_row), *options, "--out", tmp_path / "out")
    assert_refused(ran, "no column fraud", "there are when, x, label", "declare those that are there")


def test_one_class(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"2020-01-{day:02d},{day},a")
    assert_refused(recollect("compare", data, "--out", tmp_path / "out"), "always 'a'", "another label column")
    assert_refused(recollect("train", data, "--model", tmp_path / "model"), "always 'a'", "another label column")


def test_times_that_are_none(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"day {day},{day},{day % 2}")
    ran = recollect("compare", data, "--time", "when", "--out", tmp_path / "out")
    assert_refused(ran, "does not hold times (day 1, day 2, day 3)", "name a column of ISO 8601 dates")


def test_how_the_order_of_the_rows_becomes_the_time_is_told(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"{2000 + day},{day},{day % 2}")
    ran = recollect("compare", data, "--time", "when", "--out", tmp_path / "out")
    assert_refused(ran, 'make the order of the rows the time with --time "(row order)"')


def test_a_peer_s_name_is_in_the_help() -> None:
    told = " ".join(CliRunner().invoke(cli.app, ["compare", "--help"]).output.replace("│", " ").split())
    for name in DEFAULT + SLOW:
        assert name in told


def test_one_time_that_is_none_far_down(tmp_path: Path, recollect: Ran) -> None:
    rows = [f"2020-01-01T{minute // 60:02d}:{minute % 60:02d},{minute},{minute % 2}" for minute in range(1200)]
    rows[1100] = "soon,1,1"
    (tmp_path / "events.csv").write_text("\n".join(["when,x,label", *rows]) + "\n")
    ran = recollect("compare", tmp_path / "events.csv", "--out", tmp_path / "out")
    assert_refused(ran, "events.csv:1102: the time 'soon'", "--bad-rows skip")


def test_all_times_equal(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"2020-01-01,{day},{day % 2}")
    ran = recollect("compare", data, "--out", tmp_path / "out")
    assert_refused(ran, "all times are 2020-01-01T00:00:00", "another column with --time")


@pytest.mark.parametrize("name", ["events.csv", "events.jsonl", "events.parquet"])
def test_an_empty_file(tmp_path: Path, recollect: Ran, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert_refused(recollect("compare", tmp_path / name, "--out", tmp_path / "out"), name, ": ")


def test_names_of_columns_and_no_row(tmp_path: Path, recollect: Ran) -> None:
    (tmp_path / "events.csv").write_text("when,x,label\n")
    ran = recollect("compare", tmp_path / "events.csv", "--out", tmp_path / "out")
    assert_refused(ran, "no row below the names of its columns", "give a table with rows")


def test_infinity(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"2020-01-{day:02d},{'inf' if day == 9 else day},{day % 2}")
    ran = recollect("compare", data, "--out", tmp_path / "out")
    assert_refused(ran, "events.csv:10: x is infinite", "leave it empty if it is not known")


def test_duplicate_ids(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"{max(2, day)},{good_row(day)}", "id,when,x,label")
    ran = recollect("compare", data, "--id", "id", "--out", tmp_path / "out")
    assert_refused(ran, "events.csv:3: its id '2' is that of events.csv:2", "--bad-rows skip")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("events.xlsx", b"PK\x03\x04", ("unknown ending", "name it .jsonl, .csv")),
        ("events.parquet", b"when,x,label\n2020-01-01,1,1\n", ("can't be read as Parquet",)),
        ("events.jsonl", b"when,x,label\n2020-01-01,1,1\n", ("no line that is a JSON object",)),
        ("events.csv", bytes(range(256)) * 9, ("events.csv",)),
    ],
    ids=["another ending", "not Parquet", "not JSON", "not a text"],
)
def test_a_wrong_type_of_file(
    tmp_path: Path, recollect: Ran, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert_refused(recollect("compare", tmp_path / name, "--out", tmp_path / "out"), *words)


def test_no_file_and_a_directory(tmp_path: Path, recollect: Ran) -> None:
    assert_refused(recollect("compare", tmp_path / "none.csv"), "give the path of a table")
    assert_refused(recollect("compare", tmp_path), "is a directory", "give the path of a file")


def test_an_unknown_peer_is_told_before_training(tmp_path: Path, recollect: Ran) -> None:
    ran = recollect("compare", table(tmp_path, good_row), "--peer", "oracle", "--out", tmp_path / "out")
    assert_refused(ran, 'no peer "oracle"', "choose among majority")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("span", ["0", "0d", "-5d"])
def test_refits_without_a_span_between_them(tmp_path: Path, recollect: Ran, span: str) -> None:
    ran = recollect("compare", table(tmp_path, good_row), "--refit", span, "--out", tmp_path / "out")
    assert_refused(ran, f"--refit '{span}' has no length", "such as 90d")
    assert not (tmp_path / "out").exists()


def test_far_too_many_refits(tmp_path: Path, recollect: Ran) -> None:
    ran = recollect("compare", table(tmp_path, good_row), "--refit", "1m", "--out", tmp_path / "out")
    assert_refused(ran, "--refit 1m would train 18,720 times", "choose a longer span")


def test_no_column_to_learn_from(tmp_path: Path, recollect: Ran) -> None:
    data = table(tmp_path, lambda day: f"2020-01-{day:02d},{day % 2}", "when,label")
    assert_refused(recollect("compare", data, "--out", tmp_path / "out"), "no column is left to learn from")
    assert_refused(recollect("train", data, "--model", tmp_path / "model"), "no column is left to learn from")


@pytest.mark.parametrize(
    "arguments",
    [["--bad-rows", "hide"], ["--bins", "0"], ["--scale", "paper"], ["--config", "nowhere.toml"], ["--seed", "one"]],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(tmp_path: Path, recollect: Ran, arguments: list[str]) -> None:
    assert recollect("compare", table(tmp_path, good_row), *arguments)[0] == 2


# Places that nothing can be written to, not even by root.


@pytest.mark.parametrize("place", ["events.csv/out", "events.csv", "/proc/recollect/out"])
def test_no_write_permission(tmp_path: Path, recollect: Ran, place: str) -> None:
    out = tmp_path / place
    assert_refused(recollect("compare", table(tmp_path, good_row), "--out", out), "choose another")
    data = table(tmp_path, lambda day: good_row(day))
    assert_refused(recollect("train", data, "--model", out), "choose another")


def test_a_directory_that_may_not_be_written_to(tmp_path: Path, recollect: Ran) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    try:
        (locked / "probe").touch()
    except PermissionError:
        pass
    else:
        pytest.skip("this user may write everywhere")
    assert_refused(recollect("compare", table(tmp_path, good_row), "--out", locked / "out"), "ask for permission")


def test_answers_that_can_t_be_written_are_told_before_they_are_made(tmp_path: Path, recollect: Ran) -> None:
    where = ["--model", tmp_path / "model", "--history", tmp_path / "history"]
    data = table(tmp_path, good_row)
    ran = recollect("predict", data, *where, "--out", tmp_path / "answers.xlsx")
    assert_refused(ran, "name it .parquet, .csv or .jsonl")
    assert_refused(recollect("predict", data, *where, "--out", data / "answers.csv"), "must be a folder")
    assert_refused(recollect("replay", *where, "--out", tmp_path / "no" / "answers.csv"), "must be a folder")


FULL_DISK = """
import resource, sys, tempfile
from recollect import cli

tempfile.gettempdir()  # torch looks for it when it is imported; found once, it is not looked for again
data, folder = sys.argv[1:]
for limit in (0, 2_000, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for command in (["compare", "--out", f"{folder}/out-{limit}", "--peer", "majority", "--scale", "quick"],
                    ["train", "--model", f"{folder}/model-{limit}", "--steps", "2"]):
        sys.argv = ["recollect", command[0], data, *command[1:]]
        print(f"== {limit} {command[0]}", file=sys.stderr, flush=True)
        try:
            cli.main()
            print("exit 0", file=sys.stderr)
        except SystemExit as stop:
            print(f"exit {stop.code}", file=sys.stderr, flush=True)
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """A real refusal by the kernel to make any file longer; told once, wherever in the work it comes."""
    chance = random.Random(0)
    rows = [
        f"2020-01-{1 + hour // 24:02d}T{hour % 24:02d}:00,{chance.random()},{chance.randint(0, 1)}"
        for hour in range(120)
    ]
    (tmp_path / "events.csv").write_text("\n".join(["when,x,label", *rows]) + "\n")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "events.csv"), str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    parts = [part.splitlines() for part in told.split("== ")[1:]]
    assert len(parts) == 6
    for title, *lines in parts:
        assert lines[-1] == "exit 1", told
        assert len(lines) == 2, told
        assert lines[0].startswith("recollect: the disk is full"), title
        assert "free some space" in lines[0]
    assert not list(tmp_path.glob("out-*/DONE"))


# Handled, and told in the report.


def prepared_from(folder: Path, frame: pl.DataFrame, schema: TableSchema) -> Any:
    events, _ = read_all(frame, schema)
    return prepare(events, schema, cutoff=0.5 * len(frame), bins=2, embedder=None, cache=folder)


def unsure(prepared: Any) -> np.ndarray:
    """Answers to the asked rows that tell nothing."""
    return np.zeros((len(prepared.stream.asked), len(prepared.classes)))


def test_half_of_the_values_missing(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    values = [row if there else None for row, there in enumerate(generator.random(400) < 0.5)]
    names = ["red" if value else None for value in generator.random(400) < 0.5]
    frame = pl.DataFrame({"x": values, "colour": names, "label": [str(row % 2) for row in range(400)]})
    prepared = prepared_from(tmp_path, frame, TableSchema(label="label", numeric=("x",), categorical=("colour",)))
    told = notes(prepared, unsure(prepared))
    shares = {name: round(100 * frame[name].null_count() / 400) for name in ("x", "colour")}
    for name, share in shares.items():
        assert f"{share}% of {name} is missing; that is a signal of its own" in told
    assert prepared.stream.features["numbers"].isfinite().all()


def test_what_was_never_missing_before_the_cutoff_gives_no_signal(tmp_path: Path) -> None:
    rows = range(400)
    frame = pl.DataFrame(
        {
            "x": [row % 7 if row < 300 else None for row in rows],
            "gone": [row % 7 if row >= 300 else None for row in rows],
            "colour": ["red" if row % 3 else "blue" for row in range(300)] + [None] * 100,
            "shade": ["mauve"] + ["red" if row % 3 else "blue" for row in range(299)] + [None] * 100,
            "label": [str(row % 2) for row in rows],
        }
    )
    schema = TableSchema(label="label", numeric=("x", "gone"), categorical=("colour", "shade"))
    prepared = prepared_from(tmp_path, frame, schema)
    told = [note for note in notes(prepared, unsure(prepared)) if "missing" in note]
    assert told == [
        "column gone is left out: always missing before the cutoff",
        "25% of x is missing, and never was before the cutoff: our network has not learned what that means",
        "25% of colour is missing, and never was before the cutoff: our network has not learned what that means",
        "25% of shade is missing; that is read as a rare or unknown value",
    ]


def test_a_column_called_id_that_repeats_is_in_the_report(tmp_path: Path) -> None:
    frame = pl.DataFrame({"id": [row // 40 for row in range(400)], "label": [str(row % 2) for row in range(400)]})
    prepared = prepared_from(tmp_path, frame, infer_schema(frame))
    told = notes(prepared, unsure(prepared))
    assert [note for note in told if note.startswith("column id: ") and note.endswith("say --id id")]


def test_a_million_categories(tmp_path: Path) -> None:
    """Some repeat, most don't: the common ones are told apart, the others share a place."""
    count = 1_000_000
    codes = np.arange(count)
    codes[: 5 * 2000] = np.arange(5 * 2000) % 2000
    column = pl.Series("shop", codes).cast(pl.String)
    schema = TableSchema(label="label", categorical=("shop",))
    frame = pl.DataFrame({"shop": column})
    fitted = fit_features(frame, schema)
    assert len(fitted.categorical[0].categories) == MOST_CATEGORIES
    found = fitted(frame)["shop"]
    assert int(found.max()) == MOST_CATEGORIES
    assert int((found < MOST_CATEGORIES).sum()) == 5 * MOST_CATEGORIES
    alone = fit_features(pl.DataFrame({"shop": pl.Series(range(count)).cast(pl.String)}), schema)
    assert alone.left_out == {"shop": "no value comes often enough"}


def test_categories_that_never_repeat_and_a_late_class_by_the_command(tmp_path: Path, recollect: Ran) -> None:
    """A column of different names only is left out; a class first seen late is answered once it has precedents."""
    chance, rows = random.Random(0), 1000
    x = [chance.gauss(0, 1) for _ in range(rows)]
    frame = pl.DataFrame(
        {
            "time": range(rows),
            "x": [value if chance.random() < 0.5 else None for value in x],
            "again": x,
            "shop": [f"shop {row}" for row in range(rows)],
            "label": ["new" if row > 600 and value > 0.5 else "ab"[value > 0] for row, value in enumerate(x)],
        }
    )
    frame.write_parquet(tmp_path / "events.parquet")
    options = [
        "--categorical",
        "shop",
        "--scale",
        "quick",
        "--peer",
        "majority",
        "--bins",
        4,
        "--out",
        tmp_path / "out",
    ]
    code, lines = recollect("compare", tmp_path / "events.parquet", *options)
    assert code == 0, lines
    told = json.loads((tmp_path / "out" / "report.json").read_text())["notes"]
    assert "column shop is left out: no value comes often enough" in told
    assert any(note.endswith("of x is missing; that is a signal of its own") for note in told)
    assert any(
        re.fullmatch(
            r"class 'new' first comes after the cutoff \(.*\); of \d+ rows of it .* \d+ were answered right", note
        )
        for note in told
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert "no value comes often enough" in page
    answers = pl.read_parquet(tmp_path / "out" / "predictions.parquet")
    first = answers.filter(pl.col("label") == "new")["time"].min()
    assert answers.filter(pl.col("time") <= first)["probability_new"].max() == 0
    late = answers.filter((pl.col("label") == "new") & (pl.col("time") > 800))
    assert (late["predicted"] == "new").mean() > 0.8
