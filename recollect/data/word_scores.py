"""What the words of a text say of its label: regressions over words and pairs of words, fitted on the past.

An embedding that is the mean of its words' vectors loses much of what labels hang on, such as what a "not" stands
before. Whoever reads a score that was fitted to the very label it is to foretell trusts it too much, so there are four
regressions, each fitted without a quarter of the texts, and a text is always scored by the one that went without its
quarter. Which quarter is its own follows from the text alone: a text has one score, in training, replay and service
alike. Knows texts and labels; nothing of tables or of time.
"""

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int, Int32
from numpy.typing import NDArray

from recollect.data.terms import AT_ONCE, BUCKETS, term_counts, with_text

FOLDS = 4
MOST_TERMS = 1 << 15
LEAST_TEXTS = 2
"""A word or pair that stands in fewer texts than this can't tell anything of another one."""

STRENGTH = 4.0
STEPS, TOLERANCE = 100, 1e-5
"""Stopped earlier, regressions are something else with a row more or less."""

LEAST_ROWS = 40
MOST_CELLS = 1 << 20
MOST_ROWS = 100_000
"""The newest rows are enough, and fewer of them where there are many classes: rows times classes cost time."""

MOST_CLASSES = 100


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
        for first in range(0, len(texts), AT_ONCE):
            some = texts[first : first + AT_ONCE]
            rows, written = with_text(some)
            if written:
                folds, terms = _folds(written), _weighed(term_counts(written), self.terms, self.rarity)
                for fold in np.unique(folds):
                    mine = np.flatnonzero(folds == fold)
                    scores[first + rows[mine]] = terms[mine] @ self.weights[fold] + self.offsets[fold]
            if advance is not None:
                advance(len(some))
        return scores


def fit_word_scores(texts: Sequence[str | None], labels: Int[np.ndarray, " rows"]) -> WordScores | None:
    """Regressions fitted to rows of the past, oldest first.

    None where there are too few texts, where no word comes twice, and where there is one class alone, or more than can
    have a score each.
    """
    rows, written = with_text(texts[-MOST_ROWS:])
    folds, labels = _folds(written), labels[-MOST_ROWS:][rows]
    told = _told(folds, labels)
    if len(rows) < LEAST_ROWS or not 2 <= len(told) <= MOST_CLASSES:
        return None
    use = np.flatnonzero(np.isin(labels, told))[-MOST_CELLS // len(told) :]
    told = _told(folds[use], labels[use])  # a class may have been in older rows alone
    use = use[np.isin(labels[use], told)]
    if len(told) < 2:
        return None
    counts, folds, labels = term_counts([written[row] for row in use]), folds[use], labels[use]
    found = np.bincount(counts.indices, minlength=BUCKETS)
    terms = np.flatnonzero(found >= LEAST_TEXTS)
    if not len(terms):
        return None
    terms = np.sort(terms[np.argsort(-found[terms], kind="stable")[:MOST_TERMS]]).astype(np.int32)
    rarity = (1 + np.log((1 + len(use)) / (1 + found[terms]))).astype(np.float32)
    made = _weighed(counts, terms, rarity)
    fits = [_fit(made[folds != fold], labels[folds != fold]) for fold in range(FOLDS)]
    weights, offsets = (np.stack([fit[part] for fit in fits]).astype(np.float32) for part in (0, 1))
    return WordScores(terms, rarity, np.ascontiguousarray(weights), offsets)


def _told(folds: NDArray[np.int64], labels: NDArray[np.int64]) -> list[int]:
    """The classes that each regression meets: not those that are in one quarter alone."""
    return [code for code in np.unique(labels).tolist() if len(np.unique(folds[labels == code])) > 1]


def _fit(rows: Any, labels: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    fitted = regression(rows, labels, C=STRENGTH, max_iter=STEPS, tol=TOLERANCE)
    return fitted.coef_.T, fitted.intercept_


def regression(rows: Any, labels: NDArray[np.int64], **settings: int | float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # by then the rest is in the last digits
        return LogisticRegression(**settings).fit(rows, labels)


def _weighed(counts: Any, terms: Int32[np.ndarray, " terms"], rarity: Float32[np.ndarray, " terms"]) -> Any:
    """Counts of the terms alone, each text as long as the others: how often they come, by how rare they are.

    Lengths by hand: scikit-learn's `normalize` looks at its input for longer than one text takes.
    """
    from scipy.sparse import csr_array

    place = np.searchsorted(terms, counts.indices).clip(max=len(terms) - 1)
    known = terms[place] == counts.indices
    starts = np.concatenate([[0], np.cumsum(known)])[counts.indptr]
    place = place[known]
    values = (np.log1p(counts.data[known]) * rarity[place]).astype(np.float64)
    shape = (counts.shape[0], len(terms))
    squared = csr_array((np.square(values), place, starts), shape=shape) @ np.ones(len(terms))
    lengths = np.repeat(np.sqrt(squared), np.diff(starts))
    return csr_array(((values / lengths).astype(np.float32), place, starts), shape=shape)


def _folds(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([zlib.crc32(text.encode()) % FOLDS for text in texts], np.int64)
