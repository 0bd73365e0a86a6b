"""`recollect serve`: a model and its history over HTTP."""

import gc
import math
import os
from pathlib import Path
from typing import Annotated

import typer

DURATION = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def serve(
    model: Annotated[Path, typer.Argument(help="The model's directory.")],
    history: Annotated[str, typer.Option(help="The history: a directory or a URL.")],
    host: Annotated[str, typer.Option(help="The address to bind to. Any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 for any that is free.")] = 8000,
    read_only: Annotated[bool, typer.Option("--read-only", help="Answer predictions only, never write.")] = False,
    keep_inputs: Annotated[
        str, typer.Option(help="How long inputs are kept for labels to come: 90d, 12h, or 0 for not at all.")
    ] = "90d",
    state: Annotated[
        Path | None,
        typer.Option(help="The service's own files.", show_default="beside the history; with --read-only none"),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Inputs or items of one request.")] = 256,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of one request.")] = 4 << 20,
    max_text: Annotated[int, typer.Option(min=1, help="Characters of one text.")] = 20_000,
    max_queue: Annotated[int, typer.Option(min=1, help="Rows that may wait; beyond that requests get a 429.")] = 1024,
    request_seconds: Annotated[float, typer.Option(min=0.001, help="Longest time to an answer.")] = 30.0,
    idle_seconds: Annotated[float, typer.Option(min=1, help="Longest time a connection may say nothing.")] = 60.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of the model.", show_default="all cores")
    ] = None,
) -> None:
    """Answer over HTTP, and append what is posted; the page is at /, the contract at /openapi.json.

    Tokens are taken from the environment: RECOLLECT_TOKEN may do everything, RECOLLECT_PREDICT_TOKEN,
    RECOLLECT_WRITE_TOKEN and RECOLLECT_PAYLOADS_TOKEN have one scope each.

    Example: recollect serve ./model --history ./history
    """
    from recollect.cli_options import use_threads
    from recollect.errors import SettingError
    from recollect.history.disk.ahead import Ahead

    ahead = None if "://" in history else Ahead(Path(history))  # while everything else is imported
    gc.disable()  # until all is loaded: what comes now stays, and looking through it again and again takes time
    # Both are read when the libraries are imported. Tables here have a few rows: handing them to a pool takes longer
    # than they do. And to find huge pages for the keys may take the kernel seconds, which a start can't wait for.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    try:
        from recollect.serving.run import serve as run
    except ModuleNotFoundError as error:
        raise SettingError(f"the package {error.name} is missing: pip install 'recollect[serve]'") from error
    from recollect.retrieval.workers import use_workers
    from recollect.serving.settings import Limits, Settings, Tokens, state_of

    threads = threads or os.cpu_count() or 1
    # Only the pass over the keys is long enough to be shared: the small products of an answer would spend their time
    # waiting for each other.
    use_threads(1)
    use_workers(threads)
    limits = Limits(
        body_bytes=max_body,
        batch=max_batch,
        text=max_text,
        queue=max_queue,
        request_seconds=request_seconds,
        idle_seconds=idle_seconds,
    )
    run(
        Settings(
            model=model,
            history=history,
            state=state or state_of(history),
            host=host,
            port=port,
            read_only=read_only,
            keep_seconds=seconds_from(keep_inputs),
            stores=not read_only or state is not None,
            limits=limits,
            tokens=Tokens.from_environment(),
        ),
        ahead,
    )


def seconds_from(text: str) -> float:
    """A span such as 90d."""
    from recollect.errors import SettingError

    number, unit = (text, "s") if text == "0" else (text[:-1], text[-1:])
    try:
        seconds = float(number) * DURATION[unit]
    except (KeyError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SettingError(f"--keep-inputs is {text!r}: give a number with s, m, h, d or w, such as 90d")
    return seconds
