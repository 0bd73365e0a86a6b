"""The command line: parses, calls the library, and turns its errors into one line and an exit code.

It holds no logic of its own. Heavy imports stay inside the commands, so that `--help` answers at once.
Exit codes: 0 done, 1 failed for a reason the user can put right, 2 wrong usage.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from recollect import __version__
from recollect.cli_compare import compare
from recollect.cli_config import ConfigOption, JsonOption, report_in
from recollect.cli_history import history
from recollect.cli_model import explain, ingest, predict, replay, train
from recollect.cli_options import ForceOption, OutOption, ScaleOption, SeedOption, ThreadsOption, use_threads
from recollect.cli_plan import plan
from recollect.cli_reproduce import ablation, accidents, electricity, reviews, rotating_table, tradeoff
from recollect.cli_serve import serve
from recollect.errors import RecollectError, told


class Recipe(StrEnum):
    """What to train; a StrEnum, since typer takes no list of a Literal."""

    default = "default"
    paper = "paper"
    no_context = "no_context"


class NeedleRecipe(StrEnum):
    """Without its history the needle task has no answer, so there is no such recipe."""

    default = "default"
    paper = "paper"


LogOption = Annotated[
    Path | None, typer.Option(help="Also write curves for TensorBoard into this directory.", file_okay=False)
]

app = typer.Typer(
    name="recollect",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A classifier that looks up precedents in a growing history.\n\n"
    "Example: recollect reproduce rotating --scale quick",
)
reproduce = typer.Typer(
    no_args_is_help=True,
    help="Rerun an experiment of the paper, with its recipe and with ours.\n\n"
    "Example: recollect reproduce needle --scale quick",
)
app.add_typer(reproduce, name="reproduce")
app.add_typer(history, name="history")
app.command()(compare)
for on_a_model in (train, ingest, predict, explain, replay):
    app.command()(on_a_model)
app.command()(serve)
app.command()(plan)
for command in (reviews, electricity, accidents, rotating_table, ablation, tradeoff):
    reproduce.command()(command)


def _print_version(asked: bool) -> bool:
    if asked:
        typer.echo(f"recollect {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@reproduce.command("rotating")
def reproduce_rotating(
    scale: ScaleOption = "default",
    recipe: Annotated[
        list[Recipe] | None, typer.Option(help="A recipe; may be repeated.", show_default="all three")
    ] = None,
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    log: LogOption = None,
) -> None:
    """A decision boundary that turns with time: accuracy after the cutoff, with frozen weights.

    Seeds are 0, 1 and 2, or 0 alone at scale quick.

    Example: recollect reproduce rotating --scale quick --recipe default --recipe no_context --out runs/mine
    """
    settings = dict(locals())
    from recollect.reproduction import rotating

    use_threads(threads)
    out = out or Path("runs") / f"rotating-{scale}"
    with report_in(settings, out, as_json):
        rotating.run(
            scale=scale,
            recipes=[each.value for each in recipe or Recipe],
            seeds=seed or ([0] if scale == "quick" else [0, 1, 2]),
            out=out,
            force=force,
            log=log,
        )


@reproduce.command("needle")
def reproduce_needle(
    scale: ScaleOption = "default",
    recipe: Annotated[
        list[NeedleRecipe] | None, typer.Option(help="A recipe; may be repeated.", show_default="both")
    ] = None,
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    log: LogOption = None,
) -> None:
    """One item among many holds the answer: steps of training until it is found.

    The seed is 0.

    Example: recollect reproduce needle --scale default --seed 0 --seed 1 --out runs/mine
    """
    settings = dict(locals())
    from recollect.reproduction import needle

    use_threads(threads)
    out = out or Path("runs") / f"needle-{scale}"
    with report_in(settings, out, as_json):
        needle.run(
            scale=scale,
            recipes=[each.value for each in recipe or NeedleRecipe],
            seeds=seed or [0],
            out=out,
            force=force,
            log=log,
        )


@reproduce.command("memory")
def reproduce_memory(
    scale: ScaleOption = "default",
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Peak memory of a training step against history size, batch, slots, key and feature width: planned and measured.

    Example: recollect reproduce memory --scale quick --out runs/mine
    """
    settings = dict(locals())
    from recollect.reproduction import memory

    out = out or Path("runs") / f"memory-{scale}"
    with report_in(settings, out, as_json):
        memory.run(scale=scale, out=out, force=force)


def main() -> None:
    """Run the command line; a user's mistake, or a disk's refusal, becomes one line on stderr and exit code 1."""
    try:
        app()
    except RecollectError as error:
        _fail(str(error))
    except OSError as error:
        message = told(error)
        if message is None:
            raise
        _fail(message)


def _fail(message: str) -> NoReturn:
    typer.echo(f"recollect: {' '.join(message.split())}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
