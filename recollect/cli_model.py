"""`recollect train`, `ingest`, `predict`, `explain` and `replay`: a model and its history, from rows of tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recollect.cli_config import ConfigOption, JsonOption, SharedConfigOption, echo_json, told_as_json, write_config
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
    IgnoredColumns,
    LabelDelayOption,
    NumericColumns,
    TextColumns,
    ThreadsOption,
    TimeUnitOption,
)

if TYPE_CHECKING:
    from recollect.data.events import Events
    from recollect.data.reading import Summary
    from recollect.deployed import Deployed

DataArgument = Annotated[Path, typer.Argument(help="A table: .jsonl (.gz, .zst), .csv or .parquet.")]
ModelOption = Annotated[Path, typer.Option(help="The model's directory.")]
HistoryOption = Annotated[str, typer.Option(help="The history: a directory or a URL.")]
AsOfOption = Annotated[
    str | None, typer.Option(help="Answer as of this moment.", show_default="each row's own time, or now")
]


def train(
    data: DataArgument,
    model: ModelOption,
    history: Annotated[str | None, typer.Option(help="Also make a history of all rows here.")] = None,
    time: Annotated[str | None, typer.Option(help="Column of times.", show_default="inferred, or row order")] = None,
    time_unit: TimeUnitOption = None,
    label: Annotated[str | None, typer.Option(help="Column of labels.", show_default="inferred")] = None,
    known_at: Annotated[str | None, typer.Option(help="Column that says when a label became known.")] = None,
    label_delay: LabelDelayOption = "0",
    id: Annotated[str | None, typer.Option(help="Column of ids.", show_default="inferred, or file:line")] = None,
    text: TextColumns = None,
    numeric: NumericColumns = None,
    categorical: CategoricalColumns = None,
    embedding: EmbeddingColumns = None,
    ignore: IgnoredColumns = None,
    columns_only: ColumnsOnlyOption = False,
    cutoff: Annotated[
        str | None,
        typer.Option(
            help="Train on what was known before this: a date, a plain time, or the share of rows before it.",
            show_default="on everything",
        ),
    ] = None,
    retrieve: Annotated[
        Literal["items", "labels"], typer.Option(help="What of a precedent the classifier is shown.")
    ] = "items",
    seed: Annotated[int, typer.Option(help="Of all randomness.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of training.", show_default="by the data")] = None,
    bad_rows: BadRowsOption = "fail",
    embedder: EmbedderOption = "wordllama",
    embed_width: EmbedWidthOption = None,
    embed_prompt: EmbedPromptOption = None,
    embed_tokens: EmbedTokensOption = None,
    embed_backend: EmbedBackendOption = None,
    cache: CacheOption = None,
    keys_of: Annotated[
        Path | None,
        typer.Option(help="See rows as this model does, with its columns, keys and classes: its history fits both."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
) -> None:
    """Train on the labelled rows of a table, and make a history of them.

    Example: recollect train events.csv --label fraud --model ./model --history ./history
    """
    settings = dict(locals())
    from recollect.cli_options import default_cache, only_columns, use_threads
    from recollect.comparison.notes import of_columns, show
    from recollect.comparison.settings import cutoff_in, delay_from, read_table
    from recollect.data.embedding import EmbedderSpec
    from recollect.deployed import append_events, create_history, intake_of
    from recollect.history.writer import HistoryWriter
    from recollect.trained import MODEL, Trained, check_replaceable
    from recollect.training.progress import Display
    from recollect.training.table import train_table

    like = None if keys_of is None else Trained.load(keys_of)
    known = None if like is None else intake_of(like).schema
    given = {
        "time": time,
        "time_unit": time_unit,
        "known_at": known_at,
        "label": label,
        "id": id,
        "text": text or [],
        "numeric": numeric or [],
        "categorical": categorical or [],
        "embedding": embedding or [],
        "ignore": ignore or [],
        "bad_rows": bad_rows,
    }
    if columns_only:
        only_columns(data, given, as_json, known)
        return
    check_replaceable(model, MODEL, "model", force=force)
    if history is not None:
        HistoryWriter.check_free(history)
    model.mkdir(parents=True, exist_ok=True)  # where it may not be, that is told before an hour of training
    use_threads(threads)
    cache = cache or default_cache()
    found: dict[str, Any] = {"model": str(model)}
    with told_as_json(as_json):
        events, schema, summary = read_table(data, given, known)
        events = events.delayed(delay_from(label_delay, schema))
        moment = None if cutoff is None else cutoff_in(events, cutoff, schema.plain_times)
        with Display() as display:
            trained = train_table(
                events,
                schema,
                cutoff=moment,
                retrieve=retrieve,
                embedder=EmbedderSpec(embedder, embed_width, embed_prompt, embed_tokens, embed_backend),
                cache=cache,
                seed=seed,
                steps=steps,
                like=like,
                display=display,
            )
        trained.save(model, force=force)
        write_config(settings, model)
        typer.echo(f"model: {model}")
        told = of_columns(intake_of(trained))
        show(told)
        if history is not None:
            with create_history(history, trained) as writer:
                added = append_events(writer, trained, events, cache=cache).added
            found |= {"history": history, "items": added}
            typer.echo(f"history: {history}, {added} items")
    if as_json:
        found |= {"rows": len(events), "classes": trained.classes, "schema": schema.roles(), "notes": told}
        echo_json({**found, **summary.to_json()})


def ingest(
    data: DataArgument,
    model: ModelOption,
    history: HistoryOption,
    create: Annotated[bool, typer.Option("--create", help="Make the history, which isn't there yet.")] = False,
    label_delay: LabelDelayOption = "0",
    bad_rows: BadRowsOption = "fail",
    cache: CacheOption = None,
    config: SharedConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append the labelled rows of a table to a history, durably; rows whose id is there already are skipped.

    Where the order of the rows is the time, new ones come after all that is there.

    Example: recollect ingest new.jsonl --model ./model --history ./history
    """
    from recollect.cli_options import default_cache
    from recollect.comparison.settings import delay_from
    from recollect.data.reading import read_events
    from recollect.deployed import intake_of
    from recollect.ingesting import ingest_events
    from recollect.trained import Trained

    trained = Trained.load(model)
    schema = intake_of(trained).schema
    delay = delay_from(label_delay, schema)
    reading = read_events(data, schema, bad_rows=bad_rows, every_column=True)
    done = ingest_events(reading, trained, history, create=create, label_delay=delay, cache=cache or default_cache())
    if as_json:
        echo_json({"history": history, **vars(done), **reading.summary.to_json()})
    else:
        typer.echo(f"{data.name}: {reading.summary}; {done.added} items added, {done.there_already} were there already")
        if done.differing:
            typer.echo(
                f"{done.differing} of those that were there already have another label, time or content here; what is "
                'in the history stays: "recollect history correct" gives an item another label'
            )
        if done.new_classes:
            typer.echo(f"classes that the history did not have before: {', '.join(done.new_classes)}")


def predict(
    data: DataArgument,
    model: ModelOption,
    history: HistoryOption,
    as_of: AsOfOption = None,
    out: Annotated[
        Path | None, typer.Option(help="A .parquet, .csv or .jsonl to write.", show_default="the screen")
    ] = None,
    bad_rows: BadRowsOption = "fail",
    cache: CacheOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
) -> None:
    """The class and the probabilities of every row of a table.

    Without --out they are printed, one JSON object a line.

    Example: recollect predict today.csv --model ./model --history ./history --out answers.parquet
    """
    settings = dict(locals())
    from recollect.cli_options import use_threads
    from recollect.evaluation.answer_table import answer_table, check_table_path, write_table

    if out is not None:
        check_table_path(out)
    use_threads(threads)
    deployed, events, moments, summary = _open(data, model, history, as_of, bad_rows, cache)
    answers = deployed.answer(events.columns, moments)
    table = answer_table(events.id, answers.log_probs.numpy(), deployed.classes)
    if out is None:
        typer.echo(table.write_ndjson(), nl=False)
        if summary.has_gaps:
            typer.echo(f"{data.name}: {summary}", err=True)  # beside the answers, not among them
    else:
        write_table(table, out)
        write_config(settings, out)
        if as_json:
            told = {"out": str(out), "rows": table.height, "classes": deployed.classes}
            echo_json({**told, **summary.to_json()})
        else:
            typer.echo(f"{data.name}: {summary}")
            typer.echo(f"{out}: {table.height} answers")


def explain(
    data: DataArgument,
    model: ModelOption,
    history: HistoryOption,
    as_of: AsOfOption = None,
    row: Annotated[
        list[int] | None, typer.Option(help="A row of the table, from 0; may be repeated.", show_default="the first 5")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Precedents to show of each.")] = 5,
    bad_rows: BadRowsOption = "fail",
    cache: CacheOption = None,
    config: SharedConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answers with their precedents: which items the network was shown, how old, with what weight.

    The labels of other near items count in an answer as well. Ages are days, or steps of the time where it is plain
    numbers or the order of the rows.

    Example: recollect explain today.csv --model ./model --history ./history --row 0
    """
    from dataclasses import asdict

    from rich.table import Table

    from recollect.console import plain_console

    deployed, events, moments, summary = _open(data, model, history, as_of, bad_rows, cache)
    chosen = _places(events, row, data.name, summary)
    if summary.has_gaps:
        typer.echo(f"{data.name}: {summary}", err=True)
    unit = "steps" if deployed.intake.schema.plain_times else "days"
    predictions = deployed.predict(events.columns[chosen], moments[chosen], most=most)
    for place, prediction in zip(chosen.tolist(), predictions, strict=True):
        if as_json:
            echo_json({"row": int(events.rows[place]), "id": events.id[place], "age_unit": unit, **asdict(prediction)})
            continue
        likely = ", ".join(f"{name} {value:.2f}" for name, value in prediction.probabilities.items())
        columns = ("precedent", "label", f"age ({unit})", "weight", "similarity")
        table = Table(*columns, title=f"{events.id[place]}: {likely}")
        for found in prediction.precedents:
            cells = (found.age, found.weight, found.similarity)
            table.add_row(str(found.id), found.label, *(f"{value:.3f}" for value in cells))
        plain_console().print(table)


def _places(events: "Events", asked: list[int] | None, name: str, summary: "Summary") -> Any:
    """Of these rows of the table, or of the first few, among the events, which are in its order: a bad row is none."""
    import numpy as np

    from recollect.errors import SettingError

    if not asked:
        return np.arange(min(5, len(events)))
    rows = len(events) + summary.bad.total()
    places = np.minimum(np.searchsorted(events.rows, asked), len(events) - 1)
    for row, found in zip(asked, events.rows[places].tolist(), strict=True):
        if not 0 <= row < rows:
            raise SettingError(f"{name} has no row {row}: it has {rows}, the first is 0")
        if row != found:
            raise SettingError(f"row {row} of {name} is a bad row and was left out: mend it first")
    return places


def replay(
    model: ModelOption,
    history: HistoryOption,
    out: Annotated[Path | None, typer.Option(help="Write every answer to this .parquet, .csv or .jsonl.")] = None,
    bins: Annotated[int, typer.Option(min=1, help="Periods to judge by.")] = 10,
    against: Annotated[
        Path | None,
        typer.Option(help="Compare with these answers: another replay's, or a file of a comparison's predictions/."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
) -> None:
    """Answer again everything in a history that the model was not trained on, each item as of its own time.

    A corrected item is asked once and judged by its newest label; what is erased is not asked.
    With --against the two runs are compared on the items they have in common, by a paired test.

    Example: recollect replay --model ./model --history ./history --out answers.parquet --against before.parquet
    """
    settings = dict(locals())
    from recollect.cli_options import use_threads
    from recollect.comparison.replaying import replay_history

    use_threads(threads)
    with told_as_json(as_json):
        report = replay_history(model, history, bins=bins, out=out, against=against)
    if out is not None:
        write_config(settings, out)
    if as_json:
        echo_json(report)


def _open(
    data: Path,
    model: Path,
    history: str,
    as_of: str | None,
    bad_rows: Literal["fail", "skip", "file"],
    cache: Path | None,
) -> "tuple[Deployed, Events, Any, Summary]":
    """A table's rows as inputs: as of the moment given, or each as of its own time where it has one, or now.

    With the summary of their reading.
    """
    import numpy as np

    from recollect.cli_options import default_cache
    from recollect.comparison.settings import moment_from
    from recollect.data.reading import first_rows, read_all
    from recollect.deployed import Deployed, rows_schema

    deployed = Deployed.open(model, history, cache or default_cache())
    schema = rows_schema(deployed.intake.schema, first_rows(data).columns)
    events, reading = read_all(data, schema, bad_rows=bad_rows, every_column=True)
    events = events.take(np.argsort(events.rows, kind="stable"))
    if as_of is not None:
        moment = moment_from(as_of, deployed.intake.schema.plain_times)
    elif schema.time is not None:
        return deployed, events, events.time, reading.summary
    else:
        moment = deployed.now()
    moments = np.full(len(events), moment, dtype=np.float64 if deployed.intake.schema.plain_times else np.int64)
    return deployed, events, moments, reading.summary
