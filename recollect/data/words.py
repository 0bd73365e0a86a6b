"""What the words of a text say of its label: regressions over words and pairs of words, fitted on the past.

An embedding that is the mean of its words' vectors loses much of what labels hang on, such as what a "not" stands
before. Whoever reads a score that was fitted to the very label it is to foretell trusts it too much, so there are four
regressions, each fitted without a quarter of the texts, and a text is always scored by the one that went without its
quarter. Which quarter is its own follows from the text alone: a text has one score, in training, replay and service
alike. Knows texts and labels; nothing of time: the caller hands in rows of the past.
"""

import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float32, Float64, Int, Int32
from numpy.typing import NDArray
from torch import Tensor

from recollect.data.embedding_cache import clean_text, text_progress
from recollect.data.features import NUMBERS, FeatureMap, fit_features
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.errors import SettingError
from recollect.records import Features, FeatureSpec

WORDS = "words"
"""What the feature is called that holds the scores of all text columns."""

FOLDS = 4
BUCKETS = 1 << 24
"""Words and pairs are known by hashes below this: few enough of them meet in one."""

MOST_TERMS = 1 << 15
LEAST_TEXTS = 2
"""A word or pair that stands in fewer texts than this can't tell anything of another one."""

STRENGTH = 4.0
STEPS = 60
LEAST_ROWS = 40
MOST_CELLS = 1 << 20
MOST_ROWS = 100_000
"""The newest rows are enough, and fewer of them where there are many classes: rows times classes cost time."""

MOST_CLASSES = 100
SCALED_BY = 20_000
"""Scores are standardised by so many rows of the past."""

_AT_ONCE = 8192


@dataclass(frozen=True)
class WordScores:
    """Scores of texts: log-odds of the second of two classes, or a number for each class of more.

    `terms` are hashes of the words and pairs that count, in order, `rarity` how much each does, and `weights` and
    `offsets` what each of the regressions makes of them.
    """

    terms: Int32[np.ndarray, " terms"]
    rarity: Float32[np.ndarray, " terms"]
    weights: Float32[np.ndarray, "folds terms scores"]
    offsets: Float32[np.ndarray, "folds scores"]

    def __call__(
        self, texts: Sequence[str | None], advance: Callable[[int], None] | None = None
    ) -> Float64[np.ndarray, "texts scores"]:
        """NaN where there is no text. `advance` is told how many are done."""
        scores = np.full((len(texts), self.offsets.shape[1]), np.nan)
        for first in range(0, len(texts), _AT_ONCE):
            some = texts[first : first + _AT_ONCE]
            rows, written = _written(some)
            own, folds = scores[first : first + _AT_ONCE], _folds(written)
            if not written:
                continue
            terms = _weighed(_counts(written), self.terms, self.rarity)
            for fold in np.unique(folds):
                mine = np.flatnonzero(folds == fold)
                own[rows[mine]] = terms[mine] @ self.weights[fold] + self.offsets[fold]
            if advance is not None:
                advance(len(some))
        return scores


def fit_word_scores(texts: Sequence[str | None], labels: Int[np.ndarray, " rows"]) -> WordScores | None:
    """Regressions fitted to rows of the past, oldest first.

    None where there are too few texts, where no word comes twice, and where there is one class alone, or more than can
    have a score each.
    """
    classes = len(np.unique(labels))
    if classes > MOST_CLASSES:
        return None
    most = min(MOST_ROWS, MOST_CELLS // max(1, classes))
    texts, labels = texts[-most:], labels[-most:]
    rows, written = _written(texts)
    if len(rows) < LEAST_ROWS:
        return None
    folds, labels = _folds(written), labels[rows]
    # A class that all but one of the regressions never met would have no score from that one.
    told = [code for code in np.unique(labels) if len(np.unique(folds[labels == code])) > 1]
    counts = _counts(written)
    found = np.bincount(counts.indices, minlength=BUCKETS)
    terms = np.flatnonzero(found >= LEAST_TEXTS)
    terms = np.sort(terms[np.argsort(-found[terms], kind="stable")[:MOST_TERMS]]).astype(np.int32)
    if len(told) < 2 or not len(terms):
        return None
    rarity = (1 + np.log((1 + len(written)) / (1 + found[terms]))).astype(np.float32)
    told_rows = np.isin(labels, told)
    made = _weighed(counts, terms, rarity)
    fits = [_fit(made[use], labels[use]) for use in (told_rows & (folds != fold) for fold in range(FOLDS))]
    weights, offsets = (np.stack([fit[part] for fit in fits]).astype(np.float32) for part in (0, 1))
    return WordScores(terms, rarity, weights, offsets)


def _fit(rows: Any, labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it may go on for longer
        fitted = LogisticRegression(C=STRENGTH, max_iter=STEPS).fit(rows, labels)
    return fitted.coef_.T, fitted.intercept_


def _weighed(counts: Any, terms: Int32[np.ndarray, " terms"], rarity: Float32[np.ndarray, " terms"]) -> Any:
    """Counts of the terms alone, each text as long as the others: how often they come, by how rare they are."""
    from scipy.sparse import csr_array
    from sklearn.preprocessing import normalize

    place = np.searchsorted(terms, counts.indices).clip(max=len(terms) - 1)
    values = np.where(terms[place] == counts.indices, np.log1p(counts.data) * rarity[place], 0).astype(np.float32)
    return normalize(csr_array((values, place, counts.indptr), shape=(counts.shape[0], len(terms))), copy=False)


def _counts(texts: Sequence[str]) -> Any:
    """How often each word and each pair stands in each text, by their hashes."""
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ModuleNotFoundError as error:
        raise SettingError(f"texts need the package {error.name}: pip install 'recollect[text]'") from error
    hashing = HashingVectorizer(
        token_pattern=r"\w+",
        ngram_range=(1, 2),
        n_features=BUCKETS,
        alternate_sign=False,
        norm=None,
        dtype=np.float32,
    )
    return hashing.transform(texts)


def _written(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """The rows that have a text, and these."""
    cleaned = [clean_text(text or "", row) for row, text in enumerate(texts)]
    found = [(row, text) for row, text in enumerate(cleaned) if text is not None]
    return np.array([row for row, _ in found], np.int64), [text for _, text in found]


def _folds(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([zlib.crc32(text.encode()) % FOLDS for text in texts], np.int64)


@dataclass(frozen=True)
class Words:
    """The scores of all text columns of a table as one numeric feature, standardised by the past."""

    scores: Mapping[str, WordScores]
    numbers: FeatureMap

    @cached_property
    def spec(self) -> FeatureSpec:
        (numbers,) = self.numbers.specs
        return FeatureSpec(WORDS, "numeric", numbers.width)

    def __call__(self, table: pl.DataFrame, *, progress: bool = False) -> Features:
        """With `progress` there is a bar."""
        with text_progress("reading words", table.height * len(self.scores), visible=progress) as advance:
            return {WORDS: self.numbers(_scored(self.scores, table, advance))[NUMBERS]}

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {"columns": list(self.scores), "numbers": self.numbers.to_json()}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": torch.from_numpy(value)
            for number, scores in enumerate(self.scores.values())
            for name, value in vars(scores).items()
        }

    @staticmethod
    def restored(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Words":
        """What `to_json` and `tensors` gave."""
        names = ("terms", "rarity", "weights", "offsets")
        scores = {
            column: WordScores(*(tensors[f"{number}.{name}"].numpy() for name in names))
            for number, column in enumerate(plain["columns"])
        }
        return Words(scores, FeatureMap.from_json(plain["numbers"]))


def fit_words(table: pl.DataFrame, columns: Sequence[str], labels: NDArray[np.int64]) -> Words | None:
    """Scores for these columns of texts, fitted on rows of the past, oldest first; None where words tell nothing."""
    fitted = {name: fit_word_scores(_texts(table, name), labels) for name in columns}
    scores = {name: found for name, found in fitted.items() if found is not None}
    if not scores:
        return None
    some = np.linspace(0, table.height - 1, min(table.height, SCALED_BY)).astype(np.int64)
    made = _scored(scores, table[some])
    numbers = fit_features(made, TableSchema(numeric=tuple(made.columns)))
    return Words(scores, numbers) if numbers.numeric else None


def _scored(
    scores: Mapping[str, WordScores], table: pl.DataFrame, advance: Callable[[int], None] | None = None
) -> pl.DataFrame:
    """A column for each score."""
    columns = [scored(_texts(table, name), advance) for name, scored in scores.items()]
    return pl.DataFrame(np.concatenate(columns, axis=1))


def _texts(table: pl.DataFrame, name: str) -> list[str | None]:
    return column_of(table, name).cast(pl.String).to_list()
