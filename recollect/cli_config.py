"""The settings of a command as TOML: written beside its result, and taken back with --config.

A file holds the options of a command by their names. What is given on the command line goes before what a file says.
"""

import contextlib
import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from recollect import plain_json
from recollect.errors import SettingError

CONFIG = "config.toml"
NOT_SETTINGS = ("config", "out", "force", "as_json", "threads", "columns_only")
"""Where a result goes, how it is shown and whether one is made at all is no part of what it is."""

EXAMPLE = "electricity"
"""Data that ships with the package: looks like a path and is none."""


def _take(ctx: Any, path: Path | None) -> Path | None:
    """What the file says becomes the defaults of this command; eager, so that it comes before the other options."""
    if path is not None:
        written, known = _read(path), _settings_of(ctx)
        unknown = sorted(set(written) - set(known))
        if unknown:
            raise SettingError(f"{path} sets {', '.join(unknown)}: settings of this command are {', '.join(known)}")
        ctx.default_map = written
    return path


def _take_shared(ctx: Any, path: Path | None) -> Path | None:
    """The same of what another command wrote, whose other settings are none of this one's."""
    if path is not None:
        known = _settings_of(ctx)
        ctx.default_map = {name: value for name, value in _read(path).items() if name in known}
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} can't be read ({error}): give a {CONFIG} that a command wrote") from error


def _settings_of(ctx: Any) -> list[str]:
    return [each.name for each in ctx.command.params if each.name not in NOT_SETTINGS]


ConfigOption = Annotated[
    Path | None,
    typer.Option(help="Settings from a TOML file that this command wrote.", exists=True, is_eager=True, callback=_take),
]
SharedConfigOption = Annotated[
    Path | None,
    typer.Option(
        help="Settings from a TOML file that train or predict wrote: the model, the history and what else fits.",
        exists=True,
        is_eager=True,
        callback=_take_shared,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="For machines: JSON on standard output, the rest on error.")]


def write_config(settings: Mapping[str, Any], result: Path) -> None:
    """What a command ran with: in the folder of its result, or beside the file that it is."""
    path = result / CONFIG if result.is_dir() else result.with_suffix(".toml")
    path.write_text("# To be given back to the same command with --config.\n" + as_toml(settings), encoding="utf-8")


def as_toml(settings: Mapping[str, Any]) -> str:
    """JSON's texts, numbers and lists are TOML's too; what is None has no line."""
    plain = {name: _plain(_found(name, value)) for name, value in settings.items() if name not in NOT_SETTINGS}
    written = {name: json.dumps(value, ensure_ascii=False) for name, value in plain.items() if value is not None}
    return "".join(f"{name} = {value}\n" for name, value in written.items())


def _found(name: str, value: Any) -> Any:
    """A path that is found from any directory; a history may be a URL, which is found as it is."""
    if name == "history" and isinstance(value, str) and "://" not in value:
        value = Path(value)
    return value.absolute() if isinstance(value, Path) and str(value) != EXAMPLE else value


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value] or None
    return str(value) if isinstance(value, Path) else value


@contextlib.contextmanager
def told_as_json(as_json: bool) -> Iterator[None]:
    """With --json everything meant for people goes to standard error, so that the other holds nothing but JSON."""
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def report_in(settings: Mapping[str, Any], out: Path, as_json: bool) -> Iterator[None]:
    """Around what leaves a report.json in a folder: its settings are put beside it, and with --json it is printed."""
    with told_as_json(as_json):
        yield
    write_config(settings, out)
    if as_json:
        typer.echo((out / "report.json").read_text())


@contextlib.contextmanager
def told_how_to_go_on() -> Iterator[None]:
    """Around what keeps its parts: stopped with Ctrl-C, it says what is lost."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("recollect: stopped; the same command goes on from what is done and does the rest anew", err=True)
        raise


def echo_json(value: Any) -> None:
    typer.echo(plain_json.as_json(value, str))
