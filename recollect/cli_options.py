"""Options that several commands share: one definition, one wording."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recollect.cli_config import echo_json, told_as_json

if TYPE_CHECKING:
    from recollect.data.schema import TableSchema

Scale = Literal["quick", "default", "paper"]
ScaleOption = Annotated[
    Scale, typer.Option(help="quick: minutes; default: the published figures; paper: the paper's sizes.")
]


def different_seeds(seeds: list[int] | None) -> list[int] | None:
    """One that is given twice would count as two runs that don't deviate."""
    if seeds and len({*seeds}) < len(seeds):
        raise typer.BadParameter("a seed is given twice: give different ones")
    return seeds


SeedOption = Annotated[
    list[int] | None,
    typer.Option(help="A seed; may be repeated.", show_default="0, 1 and 2", callback=different_seeds),
]
FirstSeedOption = Annotated[
    list[int] | None, typer.Option(help="A seed; may be repeated.", show_default="0", callback=different_seeds)
]
OutOption = Annotated[
    Path | None, typer.Option(help="Where the report goes.", show_default="runs/NAME-SCALE", file_okay=False)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a result that is already there.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="all cores")]
CacheOption = Annotated[
    Path | None,
    typer.Option(help="Where embeddings are kept.", show_default="$RECOLLECT_CACHE or ~/.cache/recollect"),
]
EmbedderOption = Annotated[
    str, typer.Option(help="wordllama, minilm, or a name or path of a sentence-transformers model.")
]
EmbedWidthOption = Annotated[
    int | None,
    typer.Option(min=1, help="Keep the first so many columns of an embedding.", show_default="all"),
]
EmbedTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Cut texts after so many tokens.", show_default="by the model")
]
EmbedBackendOption = Annotated[
    Literal["torch", "openvino"] | None,
    typer.Option(help="What runs the embedder; openvino: 8 bits on the CPU.", show_default="torch"),
]
PROMPT_HELP = "Put this before every text, such as $'Instruct: TASK\\nQuery:' for Qwen3-Embedding."
EmbedPromptOption = Annotated[str | None, typer.Option(help=PROMPT_HELP, show_default="the model's own")]
TextColumns = Annotated[
    list[str] | None, typer.Option(help="A column of texts; may be repeated.", show_default="inferred")
]
NumericColumns = Annotated[
    list[str] | None, typer.Option(help="A column of numbers; may be repeated.", show_default="inferred")
]
CategoricalColumns = Annotated[
    list[str] | None, typer.Option(help="A column of categories; may be repeated.", show_default="inferred")
]
EmbeddingColumns = Annotated[
    list[str] | None, typer.Option(help="A column of lists of numbers; may be repeated.", show_default="inferred")
]
TimeUnitOption = Annotated[
    Literal["datetime", "day-first", "month-first", "seconds", "milliseconds", "microseconds", "nanoseconds", "number"]
    | None,
    typer.Option(
        help="What times are: ISO dates, dates such as 31/12/2024 or 12/31/2024, counts since 1970, or plain numbers.",
        show_default="inferred",
    ),
]
LabelDelayOption = Annotated[
    str, typer.Option(help="How long after its row a label is known: 7d, 12h, 30m, or a plain number.")
]
IgnoredColumns = Annotated[
    list[str] | None, typer.Option(help="A column not to look at; may be repeated.", show_default="inferred")
]
ColumnsOnlyOption = Annotated[
    bool, typer.Option("--columns-only", help="Show what each column is taken for, and stop.")
]
BadRows = Literal["fail", "skip", "file"]
BadRowsOption = Annotated[BadRows, typer.Option(help="What a row does that can't be used: stop, be counted, be kept.")]


def default_cache() -> Path:
    """Where what is slow to compute is kept between runs."""
    return Path(os.environ.get("RECOLLECT_CACHE") or Path.home() / ".cache" / "recollect")


def use_threads(threads: int | None) -> None:
    if threads is not None:  # otherwise torch takes all cores by itself
        import torch

        torch.set_num_threads(threads)


def only_columns(data: Path, given: Mapping[str, Any], as_json: bool, schema: "TableSchema | None" = None) -> None:
    """What --columns-only does: nothing is trained, embedded or written."""
    from recollect.comparison.settings import show_columns

    with told_as_json(as_json):
        _, schema = show_columns(data, given, schema)
    if as_json:
        echo_json({**schema.to_json(), "why": dict(schema.why)})
