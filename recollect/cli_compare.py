"""`recollect compare`, the main job: thin, like the rest of the command line."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from recollect.cli_config import ConfigOption, JsonOption, report_in, told_how_to_go_on
from recollect.cli_options import (
    BadRowsOption,
    CacheOption,
    CategoricalColumns,
    ColumnsOnlyOption,
    EmbedBackendOption,
    EmbedderOption,
    EmbeddingColumns,
    EmbedPromptOption,
    EmbedTokensOption,
    EmbedWidthOption,
    FirstSeedOption,
    ForceOption,
    IgnoredColumns,
    LabelDelayOption,
    NumericColumns,
    TextColumns,
    ThreadsOption,
    TimeUnitOption,
)

CompareScaleOption = Annotated[
    Literal["quick", "default"],
    typer.Option(help="quick: 150 steps of training; default: as many as the data ask for."),
]


def compare(
    data: Annotated[
        Path, typer.Argument(help="A table: .jsonl (.gz, .zst), .csv or .parquet; or electricity, which comes along.")
    ],
    time: Annotated[str | None, typer.Option(help="Column of times.", show_default="inferred, or row order")] = None,
    time_unit: TimeUnitOption = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.", show_default="inferred")] = None,
    known_at: Annotated[str | None, typer.Option(help="Column that says when a label became known.")] = None,
    label_delay: LabelDelayOption = "0",
    cutoff: Annotated[
        str, typer.Option(help="Where training ends: a date, a plain time, or the share of rows before it.")
    ] = "0.5",
    id: Annotated[str | None, typer.Option(help="Column of ids.", show_default="inferred, or file:line")] = None,
    text: TextColumns = None,
    numeric: NumericColumns = None,
    categorical: CategoricalColumns = None,
    embedding: EmbeddingColumns = None,
    ignore: IgnoredColumns = None,
    columns_only: ColumnsOnlyOption = False,
    bins: Annotated[int, typer.Option(min=1, help="Periods after the cutoff; peers are refitted with each.")] = 10,
    refit: Annotated[
        list[str] | None,
        typer.Option(
            help="Also train Recollect anew every so often: 90d, or a plain number; may be repeated, "
            "to see how far apart refits can be.",
            show_default="never",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="A peer; may be repeated, and 'all' adds the slow ones. Fast: majority, previous_label, "
            "logreg_frozen, logreg_refit_period, logreg_refit_year, lightgbm_frozen, lightgbm_refit_period, "
            "lightgbm_refit_year, recent_neighbours; slow: arf, leveraging_bagging, hoeffding_adaptive, finetuned.",
            show_default="the fast ones",
        ),
    ] = None,
    peer_window: Annotated[
        str | None,
        typer.Option(
            help="What peers called refit_year look back on: 180d, or a plain number.",
            show_default="365d, or 4 periods of plain numbers",
        ),
    ] = None,
    peer_period: Annotated[
        str | None, typer.Option(help="How often peers are refitted: 30d, or a plain number.", show_default="--bins")
    ] = None,
    seed: FirstSeedOption = None,
    bad_rows: BadRowsOption = "fail",
    embedder: EmbedderOption = "wordllama",
    embed_width: EmbedWidthOption = None,
    embed_prompt: EmbedPromptOption = None,
    embed_tokens: EmbedTokensOption = None,
    embed_backend: EmbedBackendOption = None,
    cache: CacheOption = None,
    scale: CompareScaleOption = "default",
    config: ConfigOption = None,
    out: Annotated[Path | None, typer.Option(help="Where the report goes.", show_default="runs/compare-NAME")] = None,
    force: ForceOption = False,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Does it help on my data? Recollect and its peers, trained before the cutoff and replayed after it.

    Writes report.html, report.json, predictions.parquet, the model and config.toml. Stopped with Ctrl-C, the same
    command goes on where it was.

    Example: recollect compare events.csv --time created_at --label fraud --label-delay 7d
    """
    settings = dict(locals())
    from recollect.cli_options import default_cache, only_columns, use_threads
    from recollect.comparison import settings as reading
    from recollect.comparison.compare import compare as run
    from recollect.data.embedding import EmbedderSpec

    given: dict[str, Any] = {
        "time": time,
        "time_unit": time_unit,
        "label": label,
        "known_at": known_at,
        "label_delay": label_delay,
        "cutoff": cutoff,
        "id": id,
        "text": text or [],
        "numeric": numeric or [],
        "categorical": categorical or [],
        "embedding": embedding or [],
        "ignore": ignore or [],
        "bins": bins,
        "refit": refit or [],
        "peers": peer or [],
        "peer_window": peer_window,
        "peer_period": peer_period,
        "seeds": seed or [0],
        "bad_rows": bad_rows,
        "embedder": EmbedderSpec(embedder, embed_width, embed_prompt, embed_tokens, embed_backend),
        "scale": scale,
    }
    if columns_only:
        only_columns(data, given, as_json)
        return
    use_threads(threads)
    out = out or Path("runs") / f"compare-{reading.name_of(data)}"
    with report_in(settings, out, as_json):
        events, schema, options, name = reading.read(data, given)
        with told_how_to_go_on():
            run(events, schema, options, name=name, out=out, cache=cache or default_cache(), force=force)
