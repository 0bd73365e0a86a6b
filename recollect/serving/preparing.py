"""What a model has to do before its first answer, and what is kept of it for the next start."""

import logging

import polars as pl
import torch

from recollect.answering.live import Progress
from recollect.deployed import Deployed
from recollect.serving.record import HeadsRecord

logger = logging.getLogger(__name__)


def prepare(deployed: Deployed, record: HeadsRecord, on_progress: Progress | None = None) -> None:
    """Everything that the first answer would have to wait for."""
    found = record.load()
    dtype = deployed.live.lookup.view.items.known_at.dtype
    now = torch.tensor([deployed.now()], dtype=dtype)
    # What came after a record was saved need not keep everyone waiting: it is scored as if it came now.
    deployed.live.catch_up(now, on_progress, most=0 if found else None)
    # A row goes the whole way, so that the embedder is loaded and memory has been asked for.
    features, keys = deployed.features(_some_row(deployed))
    deployed.described(deployed.live.answer(features, keys, now, most=0), keys, now, most=1, rows=True)
    if found:
        record.saved_rows = deployed.snapshot.num_rows
    else:
        save(record)


def save(record: HeadsRecord) -> None:
    try:
        record.save()
    except OSError as error:
        logger.warning("the heads' record could not be saved: %s", error.strerror)


def _some_row(deployed: Deployed) -> pl.DataFrame:
    schema = deployed.intake.schema
    columns: list[pl.Series] = [pl.Series(name, [None], pl.Float64) for name in schema.numeric]
    columns += [pl.Series(name, [None], pl.String) for name in schema.categorical]
    columns += [pl.Series(name, ["a word"], pl.String) for name in schema.text]  # no text reaches no embedder
    columns += [pl.Series(name, [None], pl.Array(pl.Float32, width)) for name, width in schema.embedding.items()]
    return pl.DataFrame(columns)
