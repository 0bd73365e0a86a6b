"""From raw columns to features by one fitted path: which columns there are, how texts are embedded, how all is scaled.

Saved with a model, so that training, replay and service see a row the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.embedding import Embedder, load_embedder
from recollect.data.embedding_cache import embed_column
from recollect.data.features import FeatureMap, fit_features
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.records import Features

Embeddings = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Intake:
    """Call it with columns of raw rows. `embedder` is the name that texts are embedded by."""

    schema: TableSchema
    features: FeatureMap
    embedder: str | None

    def __call__(self, columns: pl.DataFrame, embeddings: Embeddings | None = None) -> Features:
        """`embeddings` of the text columns, if they are there already."""
        if embeddings is None:
            embeddings = self.embed(columns)
        return self.features(columns, embeddings)

    def embed(self, columns: pl.DataFrame) -> Embeddings:
        return embed_now(columns, self.schema, self.embedder)

    def to_json(self) -> dict[str, Any]:
        return {"schema": self.schema.to_json(), "features": self.features.to_json(), "embedder": self.embedder}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> "Intake":
        return Intake(
            TableSchema.from_json(plain["schema"]), FeatureMap.from_json(plain["features"]), plain["embedder"]
        )


_loaded: dict[str, Embedder] = {}


def loaded(name: str) -> Embedder:
    """An embedder takes a second or more to load: each is loaded once."""
    if name not in _loaded:
        _loaded[name] = load_embedder(name)
    return _loaded[name]


def embed_now(columns: pl.DataFrame, schema: TableSchema, embedder: str | None) -> Embeddings:
    """Embeddings of the text columns, computed here and now: for the few rows of a request."""
    if not schema.text or embedder is None:
        return {}
    return {name: loaded(embedder).embed(_texts(column_of(columns, name))) for name in schema.text}


def embed_texts(columns: pl.DataFrame, schema: TableSchema, embedder: str | None, cache: Path) -> Embeddings:
    """Embeddings of all text columns of a table, with progress, from the cache where they are in it."""
    if not schema.text or embedder is None:
        return {}
    return {name: embed_column(_texts(column_of(columns, name)), loaded(embedder), cache) for name in schema.text}


def fit_intake(
    columns: pl.DataFrame, past: NDArray[np.int64], schema: TableSchema, embedder: str | None, embeddings: Embeddings
) -> Intake:
    """Fitted on the rows known before the cutoff."""
    of_past = {name: rows[past] for name, rows in embeddings.items()}
    return Intake(schema, fit_features(columns[past], schema, of_past), embedder)


def _texts(values: pl.Series) -> list[str]:
    return values.cast(pl.String).fill_null("").to_list()
