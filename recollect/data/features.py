"""From the columns of a table to the features that networks read: fitted on the past once, then the same for ever.

What a column was before the cutoff decides what may reach the network: values beyond all that was seen are drawn back
to the edge, and a column that never changed is kept out, since nothing could be learned of it and anything might come.
Knows columns; nothing of time (the caller hands in rows from before the cutoff), labels, keys or models.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.data.names import Coded
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.errors import DataError
from recollect.records import TERMS, Features, FeatureSpec

NUMBERS = "numbers"
"""All numeric columns are one feature of this name, with a column of its own for each that may be missing; embeddings
that may be missing have theirs behind them."""

WORDS = "words"
"""The feature of the scores of all texts (`data/words.py`)."""

TAKEN = ("", NUMBERS, WORDS, TERMS, "id", "time", "known_at", "label", "key", "commit", "until", "row")
"""What no feature of a column may be called: others are, or a history has such columns of its own."""

FORMAT = 2
RARE = 5
"""A category of fewer rows than this shares a place with categories never seen: so that place is learned too."""

MOST_CATEGORIES = 1000
UNBOUNDED = 1e30  # deviations, as a float32 still finite
FARTHEST = 1e4  # deviations of an embedding
LARGEST = 1e100  # the square of anything larger might be infinite
MISSING = "\x00missing"
"""What no cell can hold; a missing cell is a category like the others."""


@dataclass(frozen=True)
class NumericColumn:
    """Standardised by what was seen, drawn back to its range; `flagged`: values were missing, so that is a signal."""

    name: str
    mean: float
    deviation: float
    low: float
    high: float
    flagged: bool


@dataclass(frozen=True)
class CategoricalColumn:
    """Codes in this order; after them, where rare ones were seen, one place for these and all that is unknown."""

    name: str
    categories: tuple[str, ...]
    shared: bool

    @property
    def width(self) -> int:
        return len(self.categories) + self.shared

    @cached_property
    def kind(self) -> Any:
        """What polars calls a column of these; made once, since one row of a request would wait for it."""
        return pl.Enum(self.categories)


@dataclass(frozen=True)
class EmbeddedColumn:
    """Centred column by column and divided by one number: an embedding keeps its proportions. `flagged`: some were
    missing, so that is a signal."""

    name: str
    mean: tuple[float, ...]
    deviation: float
    flagged: bool


@dataclass(frozen=True)
class FeatureMap:
    """Call it with a table, and with the embeddings of its text columns: the same row has the same features always."""

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    embedded: tuple[EmbeddedColumn, ...]
    left_out: Mapping[str, str]
    bands: int = 0

    @property
    def specs(self) -> list[FeatureSpec]:
        """What a model must know of these features."""
        width = self._width_of_numbers
        specs = [FeatureSpec(NUMBERS, "numeric", width, bands=self.bands)] if width else []
        names = self._feature_names
        specs += [FeatureSpec(names[column.name], "categorical", column.width) for column in self.categorical]
        return specs + [FeatureSpec(names[column.name], "embedded", len(column.mean)) for column in self.embedded]

    @cached_property
    def _width_of_numbers(self) -> int:
        flags = [column.flagged for column in self.numeric] + [column.flagged for column in self.embedded]
        return len(self.numeric) + sum(flags)

    @cached_property
    def _feature_names(self) -> dict[str, str]:
        """What features are called by the columns they are of: so that files can be, too."""
        names: dict[str, str] = {}
        columns: list[CategoricalColumn | EmbeddedColumn] = [*self.categorical, *self.embedded]
        for number, column in enumerate(columns):
            name = re.sub(r"[^A-Za-z0-9_-]", "_", column.name)[:80]
            folded = {other.casefold() for other in names.values()}.union(TAKEN)
            names[column.name] = f"{name}.{number}" if name.casefold() in folded else name
        return names

    def __call__(self, table: pl.DataFrame, embeddings: Mapping[str, NDArray[Any]] | None = None) -> Features:
        """Features of every row. `embeddings` holds the arrays of text columns; lists of numbers are in the table."""
        embeddings = embeddings or {}
        features: Features = {}
        numbers = np.empty((table.height, self._width_of_numbers), np.float32)
        place = self._fill_numbers(numbers, table)
        if self._width_of_numbers:
            features[NUMBERS] = torch.from_numpy(numbers)
        for categorical in self.categorical:
            codes = _codes(needed_column(table, categorical.name), categorical)
            features[self._feature_names[categorical.name]] = torch.from_numpy(codes)
        for embedded, mean in zip(self.embedded, self._means, strict=True):
            values = _array(table, embeddings, embedded.name)
            if values.shape[1] != len(mean):
                raise DataError(
                    f"the embedding {embedded.name} came {values.shape[1]} wide, {len(mean)} were fitted: "
                    "use the embedder that the features were fitted with"
                )
            # One that is absurdly far would make probabilities NaN.
            scaled = ((torch.from_numpy(values) - mean) / embedded.deviation).clamp(-FARTHEST, FARTHEST)
            missing = _missing(table, embedded.name, values) if embedded.flagged else np.isnan(values[:, 0])
            if missing.any():
                scaled[torch.from_numpy(missing)] = 0.0  # as the mean
            if embedded.flagged:
                numbers[:, place] = missing
                place += 1
            features[self._feature_names[embedded.name]] = scaled
        return features

    @cached_property
    def _means(self) -> list[Tensor]:
        return [torch.tensor(column.mean, dtype=torch.float32) for column in self.embedded]

    def _fill_numbers(self, numbers: NDArray[np.float32], table: pl.DataFrame) -> int:
        """Column by column: what is in one row lies far apart, and each pass over all of them would wait for memory.

        Returns the first place that is left.
        """
        values = np.empty(table.height)
        place = 0
        for column in self.numeric:
            found = _floats(table, column.name)
            missing = np.isnan(found)
            np.clip(found, column.low, column.high, out=values)
            values -= column.mean
            values /= column.deviation
            values[np.flatnonzero(missing)] = 0.0
            numbers[:, place] = values
            place += 1
            if column.flagged:
                # A column that may be missing is followed by whether it is. Bytes become floats faster than truths do.
                numbers[:, place] = missing.view(np.uint8)
                place += 1
        return place

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "left_out": dict(self.left_out)}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> "FeatureMap":
        if plain.get("format") != FORMAT:
            raise DataError(
                f"these features have format {plain.get('format')}, this version reads {FORMAT}: "
                "use the version of recollect that wrote them"
            )
        return FeatureMap(
            numeric=tuple(NumericColumn(**column) for column in plain["numeric"]),
            categorical=tuple(
                CategoricalColumn(column["name"], tuple(column["categories"]), column["shared"])
                for column in plain["categorical"]
            ),
            embedded=tuple(
                EmbeddedColumn(column["name"], tuple(column["mean"]), column["deviation"], column["flagged"])
                for column in plain["embedded"]
            ),
            left_out=dict(plain["left_out"]),
            bands=plain["bands"],
        )


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
    embedded = [_fit_embedding(table, _array(table, embeddings, name), name, left_out) for name in wide]
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
    values = _floats(table, name)
    absent = np.isnan(values)
    missing = bool(absent.any())
    there = values[~absent] if missing else values
    if ever is not None:
        later = _floats(ever, name)
        missing = bool(np.isnan(later).any())
        there = there if len(there) else later[~np.isnan(later)]
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
        met = pl.concat([counts["category"], _texts(needed_column(ever, name))]).unique(maintain_order=True)
        kept = tuple(met.head(MOST_CATEGORIES))
        shared = len(kept) < len(met)
    if len(kept) + shared < 2:
        first = counts["category"][0]
        what = "missing" if first == MISSING else repr(first)
        left_out[name] = f"always {what} before the cutoff" if counts.height == 1 else "no value comes often enough"
        return None
    return CategoricalColumn(name, kept, shared)


def _fit_embedding(
    table: pl.DataFrame, values: NDArray[np.float32], name: str, left_out: dict[str, str]
) -> EmbeddedColumn | None:
    missing = _missing(table, name, values)
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
    return EmbeddedColumn(name, tuple(mean.tolist()), deviation, flagged=bool(missing.any()))


def _floats(table: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """A column as floats, NaN where it is missing. Not to be written to: it may be the table's own memory."""
    column = needed_column(table, name)
    # A cast of what is a float already would cost one row of a request more than all else.
    column = column if column.dtype == pl.Float64 else column.cast(pl.Float64)
    # numpy is asked for what has no null: making NaN of them on the way takes three times as long.
    return (column.fill_null(np.nan) if column.null_count() else column).to_numpy()


def _counted(values: pl.Series) -> pl.DataFrame:
    """Every different `category` with its number of `rows`."""
    if values.dtype != pl.Categorical:
        return _texts(values).alias("category").value_counts(name="rows")
    coded = Coded(values)
    return pl.DataFrame({"category": _texts(coded.names), "rows": pl.Series(coded.rows, dtype=pl.UInt32)})


def _texts(values: pl.Series) -> pl.Series:
    texts = values.cast(pl.String)
    return texts.fill_null(MISSING) if texts.null_count() else texts


def _codes(values: pl.Series, column: CategoricalColumn) -> NDArray[np.int64]:
    if values.dtype == pl.Categorical:
        coded = Coded(values)
        return coded.each(_codes(coded.names, column))
    codes = _texts(values).cast(column.kind, strict=False).to_physical()
    # What has no place gets the first code beyond all, which is that of the shared place if there is one.
    if codes.null_count():
        codes = codes.cast(pl.Int64).fill_null(len(column.categories))
    return codes.to_numpy().astype(np.int64)


def _array(table: pl.DataFrame, embeddings: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """One row for each of the table's; NaN throughout where the table has none."""
    if name in embeddings:
        values = np.asarray(embeddings[name], dtype=np.float32)
    elif name in table.columns and table.schema[name] != pl.String:
        values = _stacked(needed_column(table, name))
    else:
        raise DataError(f"the text column {name} came without its embedding: embed it, and hand the array in")
    if len(values) != table.height:
        raise DataError(f"the embedding {name} has {len(values)} rows, the table {table.height}: give one for each row")
    return values


def _stacked(lists: pl.Series) -> NDArray[np.float32]:
    """Lists of one length below each other; a missing one is NaN throughout."""
    rows = lists.to_list()
    widths = {len(row) for row in rows if row is not None}
    if len(widths) > 1:
        raise DataError(f"the embedding {lists.name} is {min(widths)} to {max(widths)} wide: give lists of one length")
    if not widths:
        widths = {lists.dtype.size if isinstance(lists.dtype, pl.Array) else 0}
    (width,) = widths
    absent = [np.nan] * width
    values = np.array([absent if row is None else row for row in rows], dtype=np.float32)
    return values.reshape(len(rows), width)


def _missing(table: pl.DataFrame, name: str, values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Rows without an embedding, whose first number tells, and rows without a text, which was embedded all the same."""
    if not values.shape[1]:
        return np.ones(len(values), np.bool_)
    without = needed_column(table, name).is_null().to_numpy() if name in table.columns else False
    missing: NDArray[np.bool_] = np.isnan(values[:, 0]) | without
    return missing


def needed_column(table: pl.DataFrame, name: str) -> pl.Series:
    try:
        return column_of(table, name)
    except pl.exceptions.ColumnNotFoundError:  # to ask before would list all columns for each of them
        came = ", ".join(table.columns[:8])
        raise DataError(
            f"the column {name} is missing, {came} came: give every column that the features were made of"
        ) from None
