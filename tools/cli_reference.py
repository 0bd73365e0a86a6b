"""Writes docs/cli.md from the command line itself; a test holds the page to it. Run it with `make docs`."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer.main

from recollect.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# Commands

This page is made from the commands' own `--help`.

Exit codes are 0 for done, 1 for failed, with one line that says why and what to do, 2 for wrong usage, and 130 for
stopped with Ctrl-C. With `--json` standard output holds nothing but JSON. What writes a result writes its settings
beside it as TOML; give the file back with `--config`, and what is typed beside it goes first. After
`recollect --install-completion` the shell completes commands and options.
"""


def reference() -> str:
    """The whole page."""
    command = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *_sections(command, ("recollect",))])


def _sections(command: Any, names: tuple[str, ...]) -> Iterator[str]:
    """A command, then those below it."""
    below = getattr(command, "commands", {})
    if not below:
        yield from _section(command, names)
    elif len(names) > 1:
        yield f"## {' '.join(names)}\n\n{_help(command)}\n"
    for name, each in below.items():
        yield from _sections(each, (*names, name))


def _section(command: Any, names: tuple[str, ...]) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    options = [each for each in options if each.name not in ("help", "install_completion", "show_completion")]
    usage = " ".join([*names, *(_argument_name(each) for each in arguments), "[OPTIONS]"])
    level = "##" if len(names) == 2 else "###"
    yield f"{level} {' '.join(names)}\n\n```text\n{usage}\n```\n\n{_help(command)}\n"
    rows = [(f"`{_argument_name(each)}`", each.help or "", "required" if each.required else "") for each in arguments]
    kinds = get_type_hints(command.callback)
    rows += [(_option_names(each, kinds[each.name]), each.help or "", _default(each)) for each in options]
    yield "| option | | default |\n|---|---|---|"
    yield "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _help(command: Any) -> str:
    """The command's own words, with its example as code."""
    text = " ".join((command.help or "").split("\n")).strip()
    words, _, example = text.partition("Example: ")
    return f"{' '.join(words.split())}\n\n```text\n{' '.join(example.split())}\n```"


def _argument_name(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _option_names(option: Any, kind: Any) -> str:
    names = "`, `".join([*option.opts, *option.secondary_opts])
    return f"`{names}` {option.metavar or _value(kind)}".strip()


def _value(kind: Any) -> str:
    """What is to be given, by the type of the function's parameter."""
    inner = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) is Literal:
        return _listed(inner)
    if inner:  # a list, or something that may be None
        return _value(inner[0])
    if issubclass(kind, StrEnum):
        return _listed([each.value for each in kind])
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def _listed(values: list[str]) -> str:
    *others, last = [f"`{value}`" for value in values]
    return f"{', '.join(others)} or {last}"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if isinstance(option.show_default, str):
        return option.show_default
    if option.default is None or isinstance(option.default, bool):
        return ""
    return f"`{getattr(option.default, 'value', option.default)}`"


if __name__ == "__main__":
    PAGE.write_text(reference())
