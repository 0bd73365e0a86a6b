"""The commands under `recollect reproduce` that take real data: thin, like the rest of the command line."""

from contextlib import contextmanager
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from recollect.cli_config import ConfigOption, JsonOption, report_in, told_how_to_go_on
from recollect.cli_options import (
    PROMPT_HELP,
    BadRows,
    BadRowsOption,
    CacheOption,
    EmbedBackendOption,
    EmbedderOption,
    EmbedTokensOption,
    EmbedWidthOption,
    FirstSeedOption,
    ForceOption,
    OutOption,
    Scale,
    ScaleOption,
    SeedOption,
    ThreadsOption,
    default_cache,
    use_threads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from recollect.data.embedding import EmbedderSpec
    from recollect.data.reviews import Rule
    from recollect.evaluation.stream import Stream

SmallScaleOption = Annotated[
    Literal["quick", "default"], typer.Option(help="quick: minutes; default: the published figures.")
]
ReviewPromptOption = Annotated[
    str | None,
    typer.Option(help=PROMPT_HELP, show_default="the paper's, for models that take an instruction"),
]


class Part(StrEnum):  # typer takes no lists of literals
    """What is trained and asked: our recipe, the paper's, or everyone else."""

    ours = auto()
    paper = auto()
    peers = auto()


class TrickName(StrEnum):
    """What the paper's bag of tricks for reviews holds."""

    similarity_residual = auto()
    input_dropout = auto()
    item_dropout = auto()
    retrieval_rate = auto()
    temperature_decay = auto()
    weight_decay = auto()
    clipping = auto()
    rate_schedule = auto()


class TermName(StrEnum):
    """What the paper tried on reviews and found of no use."""

    entropy_bonus = auto()
    diversity = auto()
    similarity_term = auto()


class AblationPart(StrEnum):
    """What has something taken away."""

    ours = auto()
    paper = auto()
    rotating = auto()
    table = auto()


PartOption = Annotated[
    list[Part] | None,
    typer.Option(
        help="Run this part alone; may be repeated. paper: its recipe by learned queries, by similarity, no context.",
        show_default="all",
    ),
]
FewerPartsOption = Annotated[
    list[Part] | None,
    typer.Option(help="Run this part; may be repeated. paper: the paper's recipe.", show_default="ours and peers"),
]
WITHOUT_PAPER = (Part.ours, Part.peers)


def reviews(
    reviews: Annotated[Path, typer.Option(help="Reviews as JSON lines, .gz and .zst too.", exists=True)],
    cutoff: Annotated[int, typer.Option(help="The year the rule changes and training ends.")] = 2014,
    before: Annotated[float, typer.Option(help="Positive is a rating above this before the cutoff.")] = 3.0,
    after: Annotated[float, typer.Option(help="Positive is a rating above this from the cutoff on.")] = 1.0,
    bins: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="So many equal periods over all time, as in the paper (100); up to 10,000 reviews of each are asked.",
            show_default="quarters, all reviews",
        ),
    ] = None,
    bad_rows: BadRowsOption = "fail",
    embedder: EmbedderOption = "wordllama",
    embed_width: EmbedWidthOption = None,
    embed_prompt: ReviewPromptOption = None,
    embed_tokens: EmbedTokensOption = None,
    embed_backend: EmbedBackendOption = None,
    cache: CacheOption = None,
    scale: ScaleOption = "default",
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    part: PartOption = None,
    architecture: Annotated[
        Literal["perceiver", "mlp"], typer.Option(help="Which of its networks the paper's recipe has.")
    ] = "perceiver",
    without: Annotated[
        list[TrickName] | None,
        typer.Option(help="Leave this trick out of the paper's recipe; may be repeated.", show_default="none"),
    ] = None,
    term: Annotated[
        list[TermName] | None,
        typer.Option(help="Add this term, which the paper found of no use; may be repeated.", show_default="none"),
    ] = None,
) -> None:
    """Amazon reviews whose rule changes at the cutoff: ours, the paper's recipe and refitted peers, period by period.

    Example: recollect reproduce reviews --reviews reviews.jsonl.gz --cutoff 2012
    """
    settings = dict(locals())
    from recollect.data.embedding import EmbedderSpec
    from recollect.data.reviews import Rule, start_of
    from recollect.reproduction.drift import check_papers

    use_threads(threads)
    parts, left_out = part or tuple(Part), without or ()
    # Before texts are embedded, which may take hours.
    check_papers([Part.paper] if Part.paper in parts else [], scale, architecture, left_out, term or ())
    out = out or Path("runs") / f"reviews-{cutoff}-{scale}"
    spec = EmbedderSpec(embedder, embed_width, embed_prompt, embed_tokens, embed_backend)
    with _resumable(settings, out, force, as_json):
        rule = Rule(start_of(cutoff), before, after)
        words = {*parts} != {Part.paper}  # of which there is nothing in the paper
        stream, embeddings, told = _reviews(reviews, rule, spec, cache, bad_rows, bins, words=words)
        of_paper = {"paper_keys": embeddings, "architecture": architecture, "without": left_out, "terms": term or ()}
        _compare(stream, f"reviews-{cutoff}", scale, seed, out, force, parts, **of_paper, reading=told)


def ablation(
    reviews: Annotated[
        Path | None, typer.Option(help="Reviews as JSON lines, .gz and .zst too; without, rotating alone.", exists=True)
    ] = None,
    cutoff: Annotated[int, typer.Option(help="The year the rule of reviews changes and training ends.")] = 2012,
    bad_rows: BadRowsOption = "fail",
    embedder: EmbedderOption = "wordllama",
    embed_width: EmbedWidthOption = None,
    embed_prompt: ReviewPromptOption = None,
    embed_tokens: EmbedTokensOption = None,
    embed_backend: EmbedBackendOption = None,
    cache: CacheOption = None,
    scale: SmallScaleOption = "default",
    seed: FirstSeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    part: Annotated[
        list[AblationPart] | None,
        typer.Option(
            help="Run this part alone; may be repeated: reviews by our recipe or the paper's, the rotating boundary, "
            "or that as rows of a table."
        ),
    ] = None,
) -> None:
    """What each idea is worth: our recipe and the paper's, with one thing taken away at a time.

    On the rotating boundary, and on reviews if there is a file of them: on their first four quarters after the cutoff.

    Example: recollect reproduce ablation --reviews reviews.jsonl.gz --cutoff 2012 --scale quick
    """
    settings = dict(locals())
    from recollect.data.embedding import EmbedderSpec
    from recollect.data.reviews import Rule, start_of
    from recollect.reproduction import ablation as ideas

    use_threads(threads)
    out = out or Path("runs") / f"ablation-{scale}"
    spec = EmbedderSpec(embedder, embed_width, embed_prompt, embed_tokens, embed_backend)
    with _resumable(settings, out, force, as_json):
        stream, embeddings, told = None, None, None
        if reviews is not None:
            rule, words = Rule(start_of(cutoff)), AblationPart.ours in (part or tuple(AblationPart))
            stream, embeddings, told = _reviews(reviews, rule, spec, cache, bad_rows, words=words)
        ideas.run(
            scale=scale,
            seeds=seed or [0],
            out=out,
            force=force,
            stream=stream,
            name=f"reviews {cutoff}",
            paper_keys=embeddings,
            reading=told,
            parts=part or tuple(AblationPart),
        )


def tradeoff(
    scale: SmallScaleOption = "default",
    seed: FirstSeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """What history costs and what it brings: accuracy against time and memory, over slots and windows, on electricity.

    Times are measured on one thread.

    Example: recollect reproduce tradeoff --scale quick
    """
    settings = dict(locals())
    from recollect.reproduction import tradeoff as costs
    from recollect.reproduction.tables import electricity_stream

    out = out or Path("runs") / f"tradeoff-{scale}"
    with report_in(settings, out, as_json):
        costs.run(scale=scale, seeds=seed or [0], out=out, force=force, stream=electricity_stream())


def _reviews(
    path: Path,
    rule: "Rule",
    spec: "EmbedderSpec",
    cache: Path | None,
    bad_rows: BadRows,
    bins: int | None = None,
    *,
    words: bool,
) -> "tuple[Stream, Tensor, dict[str, Any]]":
    """Reviews as a stream, their raw embeddings, and what was left out when they were read.

    They are embedded by the paper's prompt where the embedder takes an instruction.
    """
    import torch

    from recollect.data.embedding import REVIEW_PROMPT, load_embedder
    from recollect.data.embedding_cache import embed_column
    from recollect.data.reviews import read_reviews
    from recollect.reproduction.reviews_stream import reviews_stream

    embedder = load_embedder(spec, instruct=REVIEW_PROMPT)  # before hours of reading: it may be refused
    rows, reading = read_reviews(path, bad_rows=bad_rows)
    typer.echo(f"{path.name}: {reading.summary}")
    cache = cache or default_cache()
    # At the paper's size neither embeddings nor features fit into memory.
    embeddings = embed_column(rows.text.to_list(), embedder, cache, folder=cache)
    stream = reviews_stream(rows, embeddings, rule, bins=bins, folder=cache, words=words)
    return stream, torch.from_numpy(embeddings), reading.summary.to_json()


def electricity(
    label_delay: Annotated[float, typer.Option(min=0, help="Days until a label is known.")] = 0.0,
    scale: ScaleOption = "default",
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    part: FewerPartsOption = None,
) -> None:
    """The Australian electricity market, which ships with the package: does the price go up?

    Example: recollect reproduce electricity --label-delay 1 --seed 0
    """
    settings = dict(locals())
    from recollect.reproduction.tables import DAY, electricity_stream

    use_threads(threads)
    name = "electricity" if label_delay == 0 else f"electricity-late-{label_delay:g}d"
    out = out or Path("runs") / f"{name}-{scale}"
    with _resumable(settings, out, force, as_json):
        _compare(electricity_stream(round(label_delay * DAY)), name, scale, seed, out, force, part or WITHOUT_PAPER)


def accidents(
    accidents: Annotated[Path, typer.Option(help="The table of US accidents as CSV, .gz too.", exists=True)],
    cutoff: Annotated[int, typer.Option(help="The year training ends.")] = 2019,
    bad_rows: BadRowsOption = "fail",
    cache: CacheOption = None,
    scale: ScaleOption = "default",
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    part: FewerPartsOption = None,
) -> None:
    """US accidents season by season: text and columns, and strong natural drift.

    Example: recollect reproduce accidents --accidents us_accidents.csv.gz --seed 0
    """
    settings = dict(locals())
    from recollect.reproduction.drift import check_papers
    from recollect.reproduction.tables import FOUR_SEASONS, LONGEST_SEASON, accidents_stream

    use_threads(threads)
    check_papers([Part.paper] if Part.paper in (part or ()) else [], scale)
    out = out or Path("runs") / f"accidents-{scale}"
    with _resumable(settings, out, force, as_json):
        stream, summary = accidents_stream(accidents, cache or default_cache(), cutoff, bad_rows=bad_rows)
        typer.echo(f"{accidents.name}: {summary}")
        others = {"period": LONGEST_SEASON, "year": FOUR_SEASONS, "reading": summary.to_json()}
        _compare(stream, "accidents", scale, seed, out, force, part or WITHOUT_PAPER, **others)


def rotating_table(
    scale: ScaleOption = "default",
    seed: SeedOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    threads: ThreadsOption = None,
    part: FewerPartsOption = None,
) -> None:
    """The paper's rotating boundary as rows of a table: what any table gets, all heads and peers, nothing set.

    Example: recollect reproduce rotating-table --seed 0
    """
    settings = dict(locals())
    from recollect.reproduction.tables import ROTATING_BIN, rotating_stream

    use_threads(threads)
    out = out or Path("runs") / f"rotating-table-{scale}"
    with _resumable(settings, out, force, as_json):
        spans = {"period": ROTATING_BIN, "year": 4 * ROTATING_BIN}
        _compare(rotating_stream(), "rotating-table", scale, seed, out, force, part or WITHOUT_PAPER, **spans)


@contextmanager
def _resumable(settings: dict[str, Any], out: Path, force: bool, as_json: bool) -> "Iterator[None]":
    """Around what keeps its parts. That a result is there is told before a large file is read."""
    from recollect.comparison.runs import PARTS
    from recollect.evaluation.output import check_free

    check_free(out, force=force, resumable=PARTS)
    with report_in(settings, out, as_json), told_how_to_go_on():
        yield


def _compare(
    stream: "Stream",
    name: str,
    scale: Scale,
    seeds: list[int] | None,
    out: Path,
    force: bool,
    parts: "Sequence[Part]",
    **others: Any,
) -> None:
    """`others` are settings of `drift.run`, by name."""
    from recollect.evaluation.peers import DEFAULT
    from recollect.reproduction import drift

    drift.run(
        stream,
        name=name,
        scale=scale,
        seeds=seeds or [0, 1, 2],
        out=out,
        force=force,
        ours="ours" in parts,
        papers=tuple(drift.PAPERS) if "paper" in parts else (),
        peer_names=DEFAULT if "peers" in parts else (),
        **others,
    )
