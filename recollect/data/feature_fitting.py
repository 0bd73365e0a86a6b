"""What a column was before the cutoff decides what of it may reach a network.

Values beyond all that was seen are drawn back to the edge, and a column that never changed is kept out, since nothing
could be learned of it and anything might come. Nothing here knows the time: the caller hands in rows from before the
cutoff, and apart from them, for models that are fitted anew as time goes on, those that `ever` come.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.columns import MISSING, absent, embedding_of, floats_of, missing_rows, needed_column, texts_of
from recollect.data.features import CategoricalColumn, EmbeddedColumn, FeatureMap, NumericColumn
from recollect.data.names import Coded
from recollect.data.schema import TableSchema
from recollect.errors import DataError

RARE = 2
"""A category of fewer rows than this shares a place with categories never seen: so that place is learned too."""

MOST_CATEGORIES = 1000
UNBOUNDED = 1e30  # deviations, as a float32 still finite
LARGEST = 1e100  # the square of anything larger might be infinite


def fit_features(
    table: pl.DataFrame,
    schema: TableSchema,
    embeddings: Mapping[str, NDArray[Any]] | None = None,
    *,
    bands: int = 0,
    ever: pl.DataFrame | None = None,
) -> FeatureMap:
    """Learn from rows known before the cutoff what every column looks like.

    `ever` is the whole table, later rows too, for models that are fitted anew as time goes on: numbers are then not
    drawn back, those that never changed stay in, and what is first missing later, or a category first seen later, has a
    place that such a model can learn the meaning of. What rows are made of depends on no row after them.
    """
    if table.height == 0:
        raise DataError("there is no row before the cutoff to fit features on: choose a later cutoff")
    embeddings = embeddings or {}
    left_out: dict[str, str] = {}
    numeric = [_fit_number(table, name, left_out, ever) for name in schema.numeric]
    categorical = [_fit_categories(table, name, left_out, ever) for name in schema.categorical]
    wide = [*schema.text, *schema.embedding]
    embedded = [_fit_embedding(table, embedding_of(table, embeddings, name), name, left_out, ever) for name in wide]
    return FeatureMap(
        tuple(column for column in numeric if column is not None),
        tuple(column for column in categorical if column is not None),
        tuple(column for column in embedded if column is not None),
        left_out,
        bands,
    )


def _fit_number(
    table: pl.DataFrame, name: str, left_out: dict[str, str], ever: pl.DataFrame | None
) -> NumericColumn | None:
    values = floats_of(table, name)
    absent = np.isnan(values)
    missing = bool(absent.any())
    there = values[~absent] if missing else values
    if ever is not None:
        later = floats_of(ever, name)
        missing = bool(np.isnan(later).any())
        if not len(there) and not np.isnan(later).all():
            # By the first that comes, since how large later ones are is not known then.
            first = later[~np.isnan(later)][0]
            there = np.array([-first, first])
    low, high = (float(there.min()), float(there.max())) if len(there) else (0.0, 0.0)
    if max(-low, high) > LARGEST:
        there = np.clip(there, -LARGEST, LARGEST)
        low, high = float(there.min()), float(there.max())
    if not len(there) or (low == high and not missing and ever is None):
        left_out[name] = f"always {low:g} before the cutoff" if len(there) else "always missing before the cutoff"
        return None
    deviation = float(there.std())
    # Beside a large mean, rounding looks like a deviation.
    if deviation <= 1e-12 * max(abs(low), abs(high)):
        deviation = 1.0
    mean = float(there.mean())
    if ever is not None:
        low, high = mean - UNBOUNDED * deviation, mean + UNBOUNDED * deviation
    return NumericColumn(name, mean, deviation, low, high, missing)


def _fit_categories(
    table: pl.DataFrame, name: str, left_out: dict[str, str], ever: pl.DataFrame | None
) -> CategoricalColumn | None:
    counts = _counted(needed_column(table, name))
    counts = counts.sort(["rows", "category"], descending=[True, False])
    if ever is None:
        kept = tuple(counts.head(MOST_CATEGORIES).filter(pl.col("rows") >= RARE)["category"])
        shared = len(kept) < counts.height
    else:
        # A place for each, rare or not: how often a category is going to come is not known when it first comes.
        met = pl.concat([counts["category"], texts_of(needed_column(ever, name))]).unique(maintain_order=True)
        kept = tuple(met.head(MOST_CATEGORIES))
        shared = len(kept) < len(met)
    if len(kept) + shared < 2:
        first = counts["category"][0]
        what = "missing" if first == MISSING else repr(first)
        left_out[name] = f"always {what} before the cutoff" if counts.height == 1 else "no value comes often enough"
        return None
    return CategoricalColumn(name, kept, shared)


def _fit_embedding(
    table: pl.DataFrame,
    values: NDArray[np.float32],
    name: str,
    left_out: dict[str, str],
    ever: pl.DataFrame | None,
) -> EmbeddedColumn | None:
    missing = missing_rows(table, name, values)
    if missing.all():
        left_out[name] = "always missing before the cutoff"
        return None
    if missing.any():
        values = values[~missing]
    mean = values.mean(0, dtype=np.float64)
    deviation = float(np.sqrt(np.square(values - mean.astype(np.float32)).mean(dtype=np.float64)))
    if deviation <= 1e-12:
        left_out[name] = "always the same before the cutoff"
        return None
    flagged = bool(missing.any())
    if ever is not None and name in ever.columns:
        flagged = flagged or bool(absent(needed_column(ever, name)).any())
    return EmbeddedColumn(name, tuple(mean.tolist()), deviation, flagged)


def _counted(values: pl.Series) -> pl.DataFrame:
    """Every different `category` with its number of `rows`."""
    if values.dtype != pl.Categorical:
        return texts_of(values).alias("category").value_counts(name="rows")
    coded = Coded(values)
    return pl.DataFrame({"category": texts_of(coded.names), "rows": pl.Series(coded.rows, dtype=pl.UInt32)})
