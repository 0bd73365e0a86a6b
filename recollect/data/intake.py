"""From raw columns to features by one fitted path: which columns there are, how texts are embedded, what their words
say, how all is scaled.

Saved with a model, so that training, replay and service see a row the same way.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float32, Int32
from numpy.typing import NDArray
from torch import Tensor

from recollect.data.columns import needed_column
from recollect.data.embedding import Embedder, EmbedderSpec, load_embedder, spec_of
from recollect.data.embedding_cache import clean_text, embed_batch, embed_column
from recollect.data.feature_fitting import fit_features
from recollect.data.features import FeatureMap
from recollect.data.schema import TableSchema
from recollect.data.splits import known_before_the_newest
from recollect.data.tables.raw import column_of
from recollect.data.terms import value_terms, value_terms_by
from recollect.data.words import Words, fit_words
from recollect.errors import SettingError
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS, Features, FeatureSpec

Embeddings = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Intake:
    """Call it with columns of raw rows. Texts are embedded by `embedder`, which had this fingerprint when the features
    were fitted; None where there are no texts, or where it was not written down. `words` scores texts by their words;
    None where there are none, or they don't tell the label. The values of the columns `valued` are terms, as words are:
    what nobody had met before the cutoff, or hardly ever, is told apart by them alone."""

    schema: TableSchema
    features: FeatureMap
    embedder: EmbedderSpec | None
    fingerprint: str | None = None
    words: Words | None = None
    valued: tuple[str, ...] = ()

    @property
    def num_terms(self) -> int:
        """How many terms a row has at most."""
        return len(self.valued) + (0 if self.words is None else self.words.num_terms)

    @property
    def specs(self) -> tuple[FeatureSpec, ...]:
        """What a model must know of the features."""
        return (*self.features.specs, *(() if self.words is None else (self.words.spec,)))

    def __call__(
        self, columns: pl.DataFrame, embeddings: Embeddings | None = None, *, progress: bool = False
    ) -> Features:
        """`embeddings` of the text columns, if they are there already. `progress` shows a bar while words are read."""
        if embeddings is None:
            embeddings = self.embed(columns)
        features = self.features(columns, embeddings)
        if self.words is not None:
            features |= self.words(columns, progress=progress, room=len(self.valued))
        if self.valued:
            values = np.empty((columns.height, len(self.valued)), np.int32)
            for place, name in enumerate(self.valued):
                values[:, place] = self._value_terms(needed_column(columns, name), features)
            terms = torch.from_numpy(values)
            features.setdefault(TERMS, terms)[:, -len(self.valued) :] = terms
        return features

    def _value_terms(self, values: pl.Series, features: Features) -> Int32[np.ndarray, " rows"]:
        found = self.features.category_of(values.name)
        if found is None:
            return value_terms(values)
        feature, categories = found
        return value_terms_by(features[feature].numpy(), categories, values)

    def embed(self, columns: pl.DataFrame, cache: Path | None = None) -> Embeddings:
        """Of the text columns; with a cache, what is in it is not embedded again.

        Refuses an embedder that has changed since: its rows would mean something else to the model.
        """
        if self.schema.text and self.embedder is not None and self.fingerprint is not None:
            found = loaded(self.embedder).fingerprint
            if found != self.fingerprint:
                raise SettingError(
                    f"the model was trained with an embedder {self.embedder.name} of fingerprint {self.fingerprint}, "
                    f"what is here by that name has {found}: bring the former back, or train anew"
                )
        if cache is None:
            return embed_now(columns, self.schema, self.embedder)
        return embed_texts(columns, self.schema, self.embedder, cache)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema.to_json(),
            "features": self.features.to_json(),
            "embedder": None if self.embedder is None else asdict(self.embedder),
            "embedder_fingerprint": self.fingerprint,
            "words": None if self.words is None else self.words.to_json(),
            "valued": list(self.valued),
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any], of_words: Mapping[str, Tensor] | None = None) -> "Intake":
        """`of_words` are the tensors of the words, which are no JSON."""
        embedder = plain["embedder"]
        return Intake(
            TableSchema.from_json(plain["schema"]),
            FeatureMap.from_json(plain["features"]),
            None if embedder is None else EmbedderSpec(**embedder),
            plain["embedder_fingerprint"],
            None if plain["words"] is None else Words.restored(plain["words"], of_words or {}),
            tuple(plain["valued"]),
        )


_loaded: dict[EmbedderSpec, Embedder] = {}


def loaded(embedder: str | EmbedderSpec) -> Embedder:
    """An embedder takes a second or more to load: each is loaded once."""
    spec = spec_of(embedder)
    if spec not in _loaded:
        _loaded[spec] = load_embedder(spec)
    return _loaded[spec]


def embed_now(columns: pl.DataFrame, schema: TableSchema, embedder: str | EmbedderSpec | None) -> Embeddings:
    """Embeddings of the text columns, computed here and now: for the few rows of a request.

    Rounded to half precision as those in a cache are: a text has the same features with a cache and without.
    """
    if not schema.text or embedder is None:
        return {}
    return {name: _embed(_texts(column_of(columns, name)), loaded(embedder)) for name in schema.text}


def embed_texts(
    columns: pl.DataFrame, schema: TableSchema, embedder: str | EmbedderSpec | None, cache: Path
) -> Embeddings:
    """Embeddings of all text columns of a table, with progress, from the cache where they are in it."""
    if not schema.text or embedder is None:
        return {}
    return {name: embed_column(_texts(column_of(columns, name)), loaded(embedder), cache) for name in schema.text}


def fit_intake(
    columns: pl.DataFrame,
    past: NDArray[np.int64],
    schema: TableSchema,
    embedder: str | EmbedderSpec | None,
    embeddings: Embeddings,
    labels: NDArray[np.int64],
    time: NDArray[Any],
    known_at: NDArray[Any],
) -> Intake:
    """Fitted on the rows known before the cutoff, in order of time; what is fitted to labels, to none of the newest,
    which are held out when a model is trained."""
    of_past = {name: rows[past] for name, rows in embeddings.items()}
    spec = None if embedder is None else spec_of(embedder)
    fingerprint = loaded(spec).fingerprint if spec is not None and schema.text else None
    features = fit_features(columns[past], schema, of_past)
    words = None
    if schema.text:
        words = fit_words(columns, schema.text, labels, *known_before_the_newest(past, time, known_at))
    valued = schema.categorical if len(np.unique(labels[past])) <= MOST_CLASSES_OF_TERMS else ()
    return Intake(schema, features, spec, fingerprint, words, valued)


def _embed(texts: list[str], embedder: Embedder) -> Float32[np.ndarray, "texts width"]:
    """The numbers that `embed_column` gives: zeros where there is no text, whatever a model makes of that."""
    cleaned = [clean_text(text, row) for row, text in enumerate(texts)]
    written = [(row, text) for row, text in enumerate(cleaned) if text is not None]
    found = np.zeros((len(texts), embedder.width), np.float32)
    for first in range(0, len(written), embedder.batch):
        rows, batch = zip(*written[first : first + embedder.batch], strict=True)
        found[list(rows)] = embed_batch(embedder, list(batch))
    return found


def _texts(values: pl.Series) -> list[str]:
    return values.cast(pl.String).fill_null("").to_list()
