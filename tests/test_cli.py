"""The command line, without running any experiment."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import recollect
import recollect.reproduction
from recollect import cli
from recollect.cli_config import as_toml
from recollect.comparison import settings
from recollect.errors import OutputExistsError

HEAVY = ("torch", "numpy", "polars", "pyarrow", "matplotlib", "pandas", "sklearn", "fsspec")


def invoke(*args: str) -> Any:
    return CliRunner().invoke(cli.app, list(args))


def walk(command: Any = None, names: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command and group of commands, with its name."""
    command = typer.main.get_command(cli.app) if command is None else command
    found = [(names, command)]
    for name, below in getattr(command, "commands", {}).items():
        found += walk(below, (*names, name))
    return found


COMMANDS = walk()


@pytest.fixture(params=["rotating", "needle"])
def experiment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A stand-in for an experiment that keeps the arguments it was run with."""
    stand_in = ModuleType(request.param)
    stand_in.calls = []

    def run(**arguments: Any) -> None:
        stand_in.calls.append(arguments)
        arguments["out"].mkdir(parents=True, exist_ok=True)
        (arguments["out"] / "report.json").write_text('{"steps": 20}')
        print("20 steps")

    stand_in.run = run
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, f"recollect.reproduction.{request.param}", stand_in)
    monkeypatch.setattr(recollect.reproduction, request.param, stand_in, raising=False)
    return stand_in


@pytest.mark.parametrize("names", [names for names, _ in COMMANDS], ids=" ".join)
def test_help_shows_an_example_that_can_be_typed(names: tuple[str, ...]) -> None:
    result = invoke(*names, "--help")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert " ".join(["Example: recollect", *names]) in words


@pytest.mark.parametrize(
    ("names", "command"),
    # Whatever a service writes is JSON.
    [
        (" ".join(names), command)
        for names, command in COMMANDS
        if not hasattr(command, "commands") and names != ("serve",)
    ],
)
def test_every_command_speaks_json_and_those_that_write_a_result_take_settings(names: str, command: Any) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    assert ("--config" in options) == ("--out" in options or names in ("train", "ingest", "explain"))


def test_history_has_all_it_takes_to_look_after_one() -> None:
    found = {names[1] for names, _ in COMMANDS if names[:1] == ("history",) and len(names) == 2}
    assert found == {"append", "inspect", "verify", "compact", "rekey", "correct", "erase"}


def test_version() -> None:
    assert invoke("--version").output == f"recollect {recollect.__version__}\n"


@pytest.mark.parametrize("module", ["recollect", "recollect.cli"])
def test_python_runs_it_too(module: str) -> None:
    """Who runs it as a module must not take silence for success."""
    command = [sys.executable, "-m", module]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown == f"recollect {recollect.__version__}\n"
    assert subprocess.run([*command, "nonsense"], capture_output=True).returncode == 2


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["reproduce", "nonsense"],
        ["reproduce", "rotating", "--scale", "huge"],
        ["reproduce", "rotating", "--threads", "0"],
        ["reproduce", "rotating", "--seed", "one"],
        ["reproduce", "needle", "--recipe", "no_context"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    assert invoke(*args).exit_code == 2


def test_what_is_not_given_has_a_default(experiment: ModuleType) -> None:
    name = experiment.__name__
    for scale in ("quick", "default", "paper"):
        assert invoke("reproduce", name, "--scale", scale).exit_code == 0
    recipes = ["default", "paper"] + ["no_context"] * (name == "rotating")
    several = [0, 1, 2] if name == "rotating" else [0]
    assert experiment.calls == [
        dict(scale=scale, recipes=recipes, seeds=seeds, out=Path("runs", f"{name}-{scale}"), force=False, log=None)
        for scale, seeds in [("quick", [0]), ("default", several), ("paper", several)]
    ]


def test_what_is_given_is_passed_on(experiment: ModuleType, tmp_path: Path) -> None:
    several = ["--recipe", "paper", "--recipe", "default", "--seed", "7", "--seed", "0"]
    single = ["--out", str(tmp_path), "--force", "--threads", "1"]
    assert invoke("reproduce", experiment.__name__, *several, *single).exit_code == 0
    assert experiment.calls == [
        dict(scale="default", recipes=["paper", "default"], seeds=[7, 0], out=tmp_path, force=True, log=None)
    ]


def test_a_users_mistake_is_one_line_and_exit_code_1(
    experiment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**arguments: Any) -> None:
        raise OutputExistsError("runs/demo holds a result:\nuse --force to overwrite it")

    experiment.run = refuse
    monkeypatch.setattr(sys, "argv", ["recollect", "reproduce", experiment.__name__])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert capsys.readouterr() == ("", "recollect: runs/demo holds a result: use --force to overwrite it\n")


def test_help_loads_nothing_heavy() -> None:
    """That is what makes it start quickly: no test times anything."""
    code = """
import sys
from recollect import cli
sys.argv = ["recollect", "--help"]
try:
    cli.main()
except SystemExit:
    print(sorted(name for name in sys.modules if name in HEAVY))
""".replace("HEAVY", repr(HEAVY))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def test_paths_among_the_settings_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = as_toml({"data": Path("a/events.csv"), "history": "h", "label": "h", "as_json": True})
    expected = {"data": str(tmp_path / "a/events.csv"), "history": str(tmp_path / "h"), "label": "h"}
    assert tomllib.loads(written) == expected
    elsewhere = {"data": Path(settings.EXAMPLE), "history": "s3://bucket/h"}
    assert tomllib.loads(as_toml(elsewhere)) == {"data": "electricity", "history": "s3://bucket/h"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes(shell: str) -> None:
    start = "from recollect.cli import main; import sys; sys.argv[0] = 'recollect'; main()"
    # Otherwise typer looks for a shell among the parents of this process, and there may be none.
    told = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [sys.executable, "-c", start, "--show-completion", shell], capture_output=True, text=True, check=True, env=told
    ).stdout
    assert "_RECOLLECT_COMPLETE" in shown
    asked = {"_RECOLLECT_COMPLETE": f"complete_{shell}", "COMP_WORDS": "recollect com", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "recollect com", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    offered = subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, env={**os.environ, **asked}
    ).stdout
    assert "compare" in offered


def test_settings_are_written_beside_the_result_and_taken_back(experiment: ModuleType, tmp_path: Path) -> None:
    name = experiment.__name__
    first = invoke("reproduce", name, "--scale", "quick", "--seed", "7", "--out", str(tmp_path / "one"), "--json")
    assert json.loads(first.stdout) == {"steps": 20}
    written = tmp_path / "one" / "config.toml"
    assert tomllib.loads(written.read_text()) == {"scale": "quick", "seed": [7]}
    again = ["reproduce", name, "--config", str(written), "--out", str(tmp_path / "two")]
    assert invoke(*again, "--seed", "3").exit_code == 0
    assert [(call["scale"], call["seeds"]) for call in experiment.calls] == [("quick", [7]), ("quick", [3])]
    written.write_text("colour = 1\n")
    assert "sets colour: settings of this command are scale" in str(invoke(*again).exception)
    written.write_text("scale\n")
    assert "can't be read" in str(invoke(*again).exception)
    written.write_text('scale = "huge"\n')
    assert invoke(*again).exit_code == 2
