"""The command line, without running any experiment."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import recollect
import recollect.reproduction
from recollect import cli
from recollect.errors import OutputExistsError

COMMANDS = [[], ["reproduce"], ["reproduce", "rotating"], ["reproduce", "needle"]]


def invoke(*args: str) -> Any:
    return CliRunner().invoke(cli.app, list(args))


@pytest.fixture(params=["rotating", "needle"])
def experiment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for an experiment that keeps the arguments it was run with."""
    stand_in = ModuleType(request.param)
    stand_in.calls = []
    stand_in.run = lambda **arguments: stand_in.calls.append(arguments)
    monkeypatch.setitem(sys.modules, f"recollect.reproduction.{request.param}", stand_in)
    monkeypatch.setattr(recollect.reproduction, request.param, stand_in, raising=False)
    return stand_in


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_shows_an_example(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    words = " ".join(result.output.replace("│", " ").split())
    assert " ".join(["Example: recollect", *command]) in words


def test_version() -> None:
    assert invoke("--version").output == f"recollect {recollect.__version__}\n"


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
    code = "import sys, recollect.cli; print({'torch', 'numpy', 'matplotlib'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
