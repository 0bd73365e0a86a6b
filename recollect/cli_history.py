"""The commands under `recollect history`: thin, like the rest of the command line; heavy imports stay inside them."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recollect.cli_config import JsonOption, echo_json

if TYPE_CHECKING:
    from torch import Tensor

    from recollect.records import Features

history = typer.Typer(
    no_args_is_help=True,
    help="Look after a history on disk or on an object store.\n\nExample: recollect history inspect ./history",
)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A directory, or a URL such as s3://bucket/name.")]


@history.command()
def append(
    path: PathArgument,
    file: Annotated[Path, typer.Argument(help=".parquet, .arrow, .feather, .jsonl or .npz", exists=True)],
    on_duplicate: Annotated[
        Literal["refuse", "skip"], typer.Option(help="What to do with an id that is there already.")
    ] = "refuse",
    create: Annotated[bool, typer.Option("--create", help="Make a new history that fits the file.")] = False,
    feature: Annotated[
        list[str] | None, typer.Option(help="With --create: a column that is a feature; others are payload.")
    ] = None,
    key_function: Annotated[str, typer.Option(help="With --create: fingerprint of what made the keys.")] = "",
    time: Annotated[
        Literal["nanoseconds", "number"] | None,
        typer.Option(help="With --create: what times are.", show_default="by the file"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add the items of a file, durably: columns id, time, label, key, perhaps known_at, features and payload.

    Example: recollect history append ./history items.parquet --create --feature embedding
    """
    from recollect.errors import RecollectError
    from recollect.history.files import read_items, schema_of
    from recollect.history.writer import HistoryWriter

    items = read_items(file)
    if create:
        schema = schema_of(items, features=feature or [], key_function=key_function, time=time)
        writer = HistoryWriter.create(path, schema)
    else:
        writer = HistoryWriter.open(path)
    try:
        with writer:
            done = writer.append(items, on_duplicate=on_duplicate)
    except RecollectError as error:
        if create:
            raise type(error)(f"{error}; the history {path} is there now and empty: repeat without --create") from error
        raise
    if as_json:
        echo_json({"history": path, "version": done.commit, "added": done.added, "skipped": done.skipped})
        return
    skipped = f", {done.skipped} skipped" if done.skipped else ""
    typer.echo(f"{done.added} items added{skipped}; {path} is at version {done.commit}")


@history.command()
def inspect(path: PathArgument, as_json: JsonOption = False) -> None:
    """Say what a history holds.

    Example: recollect history inspect ./history --json
    """
    from recollect.history.reader import History

    found = History.open(path).snapshot.describe()
    if as_json:
        echo_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        typer.echo(f"{name.ljust(width)}  {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


@history.command()
def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read every byte and compare it with its checksum; exit code 1 if anything is wrong.

    Example: recollect history verify ./history
    """
    from recollect.history.verify import verify as problems_of

    problems = problems_of(path)
    if as_json:
        echo_json({"history": path, "whole": not problems, "problems": problems})
    else:
        for problem in problems:
            typer.echo(problem)
        if not problems:
            typer.echo(f"{path} is whole")
    if problems:
        raise typer.Exit(1)


@history.command()
def compact(path: PathArgument, as_json: JsonOption = False) -> None:
    """Merge small segments, and remove the bytes of what was erased.

    Example: recollect history compact ./history
    """
    from recollect.history.writer import HistoryWriter

    with HistoryWriter.open(path) as writer:
        writer.compact()
        _done(as_json, f"{path} is compact at version {writer.version}", path, writer.version)


@history.command()
def rekey(
    path: PathArgument,
    key_function: Annotated[
        Path | None, typer.Option(help="A file that KeyFunction.save wrote.", exists=True, dir_okay=False)
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="Instead: the first so many columns of a feature, as they are.")
    ] = None,
    feature: Annotated[str | None, typer.Option(help="With --first: which feature.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute the keys of all items anew from their features, by another key function; nothing else is rewritten.

    If it is stopped on the way, the old keys stay.

    Example: recollect history rekey ./history --first 64 --feature embedding
    """
    from recollect.data.keys import KeyFunction, first_columns
    from recollect.history.disk.schema import Key
    from recollect.history.writer import HistoryWriter

    if (key_function is None) == (first is None) or (first is None) != (feature is None):
        raise typer.BadParameter("give either --key-function FILE, or --first NUMBER with --feature NAME")
    with HistoryWriter.open(path) as writer:
        if first is not None and feature is not None:
            function = first_columns(feature, math.prod(writer.schema.feature(feature).shape), first)
        elif key_function is not None:
            function = KeyFunction.load(key_function)
        old = writer.schema.key
        new = Key(function.key_dim, old.dtype, function.fingerprint)
        if new == old:
            told = f"{path} has keys of function {new.function} already: nothing to do"
            _done(as_json, told, path, writer.version, keys=0, key_function=new.function)
            return
        with _counted(function, writer.num_rows) as counted:
            writer.rekey(new, counted, columns=function.names)
        told = (
            f"{writer.num_rows} keys made anew, {new.dtype} x {new.dim}, function {new.function} "
            f"(before: {old.dtype} x {old.dim}, function {old.function or 'unnamed'}); {path} is otherwise as it was"
        )
        _done(as_json, told, path, writer.version, keys=writer.num_rows, key_function=new.function)


@contextmanager
def _counted(function: Callable[["Features"], "Tensor"], total: int) -> Iterator[Callable[["Features"], "Tensor"]]:
    """The same function; on a terminal, a bar moves on with the rows that it has done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from recollect.console import plain_console

    console = plain_console(stderr=True)
    columns = [TextColumn("keys"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")]
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("keys", total=total, rate="")

        def counted(features: "Features") -> "Tensor":
            keys = function(features)
            progress.advance(task, len(keys))
            speed = progress.tasks[0].speed
            progress.update(task, rate="" if speed is None else f"{speed:,.0f} rows/s")
            return keys

        yield counted


@history.command()
def correct(
    path: PathArgument,
    item: Annotated[str, typer.Argument(metavar="ID", help="The item's id.")],
    label: Annotated[str, typer.Argument(help="The right label; its code where classes have no names.")],
    at: Annotated[str, typer.Option(help="When the right label became known: ISO 8601, or a number.")],
    new_class: Annotated[
        bool, typer.Option("--new-class", help="The label is of a class that is not there yet.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Give an item another label from a moment on; what was known before stays as it was.

    Example: recollect history correct ./history order-17 fraud --at 2024-05-01T12:00:00Z
    """
    from recollect.data.names import name_of
    from recollect.errors import SettingError
    from recollect.history.writer import HistoryWriter

    with HistoryWriter.open(path) as writer:
        label = name_of(label) if name_of(label) in writer.classes else label
        if writer.classes and label not in writer.classes and not new_class:
            there = ", ".join(writer.classes)
            raise SettingError(f"{path} has no class {label!r}, it has {there}: give one of these, or add --new-class")
        code = label if writer.classes else _whole_number(label, "label")
        writer.correct(_id(item, writer.schema.id), code, _moment(at, writer.schema.time))
        told = f"{item} is {label} from {at} on; {path} is at version {writer.version}"
        _done(as_json, told, path, writer.version, id=item, label=label, at=at)


@history.command()
def erase(
    path: PathArgument,
    items: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of items.")],
    as_json: JsonOption = False,
) -> None:
    """Take items out of every view, past ones too. `compact` then removes their bytes.

    If an id is not there, nothing is erased. An erased id may be appended again: ingesting the file it came in brings
    it back.

    Example: recollect history erase ./history order-17 order-18
    """
    from recollect.history.writer import HistoryWriter

    with HistoryWriter.open(path) as writer:
        rows = writer.erase([_id(item, writer.schema.id) for item in items], on_unknown="refuse")
        told = f"{rows} rows erased; remove their bytes with: recollect history compact {path}"
        _done(as_json, told, path, writer.version, rows_erased=rows)


def _done(as_json: bool, told: str, path: str, version: int, **more: Any) -> None:
    """A sentence for people, or the same as JSON."""
    if as_json:
        echo_json({"history": path, "version": version, **more})
    else:
        typer.echo(told)


def _id(text: str, kind: str) -> str | int:
    return _whole_number(text, "id") if kind == "integer" else text


def _whole_number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"this history's {name}s are whole numbers, not {text!r}") from None


def _moment(text: str, kind: str) -> str | float:
    if kind == "nanoseconds":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"this history's times are numbers, not {text!r}") from None
