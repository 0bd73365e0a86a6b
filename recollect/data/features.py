"""From the columns of a table to the features that networks read, as `data/feature_fitting.py` found them in the past.

The same row has the same features always: in training, replay and service. Knows columns; nothing of time, labels, keys
or models.
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

from recollect.data.columns import embedding_of, floats_of, missing_rows, needed_column, texts_of
from recollect.data.names import Coded
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
FARTHEST = 1e4  # deviations of an embedding


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

    def category_of(self, column: str) -> tuple[str, tuple[str, ...]] | None:
        """What the feature of a column of categories is called, and those that have a place; None if there is none."""
        found = [each for each in self.categorical if each.name == column]
        return (self._feature_names[column], found[0].categories) if found else None

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
            values = embedding_of(table, embeddings, embedded.name)
            if values.shape[1] != len(mean):
                raise DataError(
                    f"the embedding {embedded.name} came {values.shape[1]} wide, {len(mean)} were fitted: "
                    "use the embedder that the features were fitted with"
                )
            # One that is absurdly far would make probabilities NaN.
            scaled = ((torch.from_numpy(values) - mean) / embedded.deviation).clamp(-FARTHEST, FARTHEST)
            missing = missing_rows(table, embedded.name, values) if embedded.flagged else np.isnan(values[:, 0])
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
            found = floats_of(table, column.name)
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


def _codes(values: pl.Series, column: CategoricalColumn) -> NDArray[np.int64]:
    if values.dtype == pl.Categorical:
        coded = Coded(values)
        return coded.each(_codes(coded.names, column))
    codes = texts_of(values).cast(column.kind, strict=False).to_physical()
    # What has no place gets the first code beyond all, which is that of the shared place if there is one.
    if codes.null_count():
        codes = codes.cast(pl.Int64).fill_null(len(column.categories))
    return codes.to_numpy().astype(np.int64)
