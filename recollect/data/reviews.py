"""Amazon reviews as rows to classify: the schema of Amazon Reviews '23, the paper's label, its text and its covariates.

Knows neither embedders (it is handed the rows they made of `Reviews.text`) nor splits.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float16
from numpy.typing import NDArray

from recollect.data.embedding import REVIEW_LAYOUT
from recollect.data.feature_fitting import fit_features
from recollect.data.features import NUMBERS
from recollect.data.mapped import mapped_rows
from recollect.data.reading import BadRows, Reading, first_rows, read_all
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import check_columns
from recollect.errors import DataError
from recollect.records import Features, FeatureSpec

NEEDED = ("rating", "title", "text", "timestamp")
RATINGS = (1.0, 5.0)
FIRST_YEAR = 1995  # what lies in 1970 was counted in seconds
HELPFUL, VERIFIED = "helpful_vote", "verified_purchase"
BANDS, MAX_FREQUENCY = 48, 64.0
"""Of the Fourier bands that `helpful_vote` is given."""

FITTED_ROWS = 100_000
"""Embeddings are standardised by so many rows of the past: all of them would not fit into memory."""

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Rule:
    """A review is positive if its rating is above `before`, from the cutoff on above `after`: the change to be met."""

    cutoff: int
    before: float = 3.0
    after: float = 1.0


@dataclass(frozen=True)
class Reviews:
    """Reviews in order of time, ties as in the file. Times are nanoseconds since 1970 in UTC.

    `text` is what is to be embedded. `columns` has `helpful_vote` and `verified_purchase` as numbers, where the file
    has them.
    """

    time: NDArray[np.int64]
    rating: NDArray[np.float64]
    text: pl.Series
    columns: pl.DataFrame

    def __len__(self) -> int:
        return len(self.time)

    def labels(self, rule: Rule) -> NDArray[np.int64]:
        """1 for positive, 0 for negative."""
        threshold = np.where(self.time < rule.cutoff, rule.before, rule.after)
        return (self.rating > threshold).astype(np.int64)


def start_of(year: int) -> int:
    """The first moment of a year, in UTC."""
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 10**9


def read_reviews(
    path: str | Path, *, bad_rows: BadRows = "fail", bad_rows_file: str | Path | None = None
) -> tuple[Reviews, Reading]:
    """All reviews of a file of JSON lines, plain or compressed, and how the reading went."""
    there = first_rows(path).columns
    check_columns(Path(path).name, NEEDED, there)
    schema = TableSchema(
        time="timestamp",
        time_unit="milliseconds",
        label="rating",
        text=("title", "text"),
        numeric=(HELPFUL,) if HELPFUL in there else (),
        categorical=(VERIFIED,) if VERIFIED in there else (),
        time_seen=start_of(FIRST_YEAR),
    )
    events, reading = read_all(path, schema, bad_rows=bad_rows, bad_rows_file=bad_rows_file, labels=RATINGS)
    assert events.label is not None
    columns = events.columns.cast({pl.Categorical: pl.String})
    title, text = (columns[name].fill_null("") for name in ("title", "text"))
    written = pl.select(pl.format(REVIEW_LAYOUT.format(title="{}", text="{}"), title, text).alias("text"))
    covariates = [columns[HELPFUL]] if HELPFUL in there else []
    if VERIFIED in there:
        covariates.append(_zero_or_one(columns[VERIFIED]))
    ratings = events.label.cast(pl.Float64).to_numpy()
    reviews = Reviews(events.time, ratings, written.to_series(), pl.DataFrame(covariates))
    return reviews, reading


def _zero_or_one(values: pl.Series) -> pl.Series:
    """True and false, however written, as 1 and 0; anything else is missing."""
    codes = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}
    return values.str.to_lowercase().replace_strict(codes, default=None, return_dtype=pl.Float64)


def review_features(
    reviews: Reviews, embeddings: NDArray[Any], past: NDArray[np.int64], *, folder: Path | None = None
) -> tuple[Features, tuple[FeatureSpec, ...]]:
    """Features of all reviews, fitted on the rows of the past alone: the embedded text and the paper's covariates.

    `embeddings` has a row for each review and may be mapped from a file. Its standardised rows are in half precision,
    in memory or, with `folder`, mapped from a file there. `helpful_vote` is standardised and given Fourier bands,
    `verified_purchase` neither.
    """
    embedded = _standardised(reviews, embeddings, past, folder)
    features: Features = {"text": torch.from_numpy(embedded)}
    specs = [FeatureSpec("text", "embedded", embedded.shape[1])]
    if HELPFUL in reviews.columns.columns:
        fitted = fit_features(reviews.columns[past], TableSchema(numeric=(HELPFUL,)))
        for spec in fitted.specs:  # none if it never changed
            features[HELPFUL] = fitted(reviews.columns)[NUMBERS]
            specs.append(FeatureSpec(HELPFUL, "numeric", spec.width, BANDS, MAX_FREQUENCY))
    if VERIFIED in reviews.columns.columns and reviews.columns[VERIFIED][past].drop_nulls().n_unique() > 1:
        verified = reviews.columns[VERIFIED].fill_null(0.5)  # what is missing stands in the middle
        features[VERIFIED] = torch.from_numpy(verified.to_numpy().astype(np.float32)).unsqueeze(1)
        specs.append(FeatureSpec(VERIFIED, "numeric", 1))
    return features, tuple(specs)


def _standardised(
    reviews: Reviews, embeddings: NDArray[Any], past: NDArray[np.int64], folder: Path | None
) -> Float16[np.ndarray, "rows width"]:
    if len(embeddings) != len(reviews):
        raise DataError(f"{len(embeddings)} embeddings came for {len(reviews)} reviews: embed the text of each")
    rows = past[np.linspace(0, len(past) - 1, min(len(past), FITTED_ROWS)).astype(np.int64)]

    def table(some: pl.Series) -> pl.DataFrame:
        return some.alias("text").to_frame()

    fitted = fit_features(table(reviews.text[rows]), TableSchema(text=("text",)), {"text": embeddings[rows]})
    if not fitted.embedded:
        raise DataError("all texts before the cutoff have the same embedding: embed the texts of the reviews")
    made = mapped_rows(len(embeddings), embeddings.shape[1], folder)
    for start in range(0, len(reviews), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        made[some] = fitted(table(reviews.text[some]), {"text": embeddings[some]})["text"].numpy()
    return made
