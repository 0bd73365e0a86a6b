"""Columns of texts as what their words say: scores that were fitted to the past, as one numeric feature, and the terms
themselves for what is fitted anew later. Scores that don't foretell newer labels are not read.

Knows tables and labels; nothing of time: the caller says which rows are fitted to and which newer ones judge.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float32, Float64
from numpy.typing import NDArray
from torch import Tensor

from recollect.data.columns import needed_column
from recollect.data.embedding_cache import text_progress
from recollect.data.features import WORDS
from recollect.data.mapped import mapped_rows
from recollect.data.terms import AT_ONCE, BUCKETS, MOST_WORDS, first_terms, num_terms
from recollect.data.word_scores import WordScores, fit_word_scores, regression
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS, Features, FeatureSpec

SOME_ROWS = 20_000
"""By so many rows scores are standardised and judged."""

_APART = 0x9E3779
"""So far the hashes of a column's words are from those of the column before."""


@dataclass(frozen=True)
class WordColumn:
    """Scores of one column of texts, standardised by what was seen and drawn back to its range; `flagged`: some texts
    were missing, so that is a signal."""

    scores: WordScores
    mean: Float64[np.ndarray, " scores"]
    deviation: Float64[np.ndarray, " scores"]
    low: Float64[np.ndarray, " scores"]
    high: Float64[np.ndarray, " scores"]
    flagged: bool

    @property
    def width(self) -> int:
        return len(self.mean) + self.flagged

    def __call__(
        self, texts: Sequence[str | None], advance: Callable[[int], None] | None = None
    ) -> Float32[np.ndarray, "texts width"]:
        scores = self.scores(texts, advance)
        parts = [self.standard(scores), np.isnan(scores[:, :1])] if self.flagged else [self.standard(scores)]
        return np.hstack(parts).astype(np.float32)

    def standard(self, scores: Float64[np.ndarray, "texts scores"]) -> Float64[np.ndarray, "texts scores"]:
        """0 where there is no text."""
        return np.where(np.isnan(scores), 0.0, (scores.clip(self.low, self.high) - self.mean) / self.deviation)


@dataclass(frozen=True)
class Words:
    """The scores of columns of texts as one numeric feature, and which words these are of: TERMS, no feature of a
    network, for regressions that are fitted anew as the history grows. Each column has its part of them; without
    `terms` there are none."""

    columns: Mapping[str, WordColumn]
    terms: bool = True
    spec: FeatureSpec = field(init=False)

    def __post_init__(self) -> None:
        width = sum(column.width for column in self.columns.values())
        object.__setattr__(self, "spec", FeatureSpec(WORDS, "numeric", width))

    @property
    def num_terms(self) -> int:
        return len(self.columns) * num_terms(self._words_of_each) if self.terms else 0

    @property
    def _words_of_each(self) -> int:
        return max(1, MOST_WORDS // len(self.columns))

    def __call__(
        self, table: pl.DataFrame, *, progress: bool = False, folder: Path | None = None, room: int = 0
    ) -> Features:
        """With `progress` there is a bar; with `folder` terms are mapped from a file there. Behind the terms is `room`
        for so many others."""
        if not progress:
            return self._read(table, folder, room)
        with text_progress("reading words", (1 + self.terms) * table.height * len(self.columns)) as advance:
            return self._read(table, folder, room, advance)

    def _read(
        self, table: pl.DataFrame, folder: Path | None, room: int, advance: Callable[[int], None] | None = None
    ) -> Features:
        scores = {WORDS: self._values(table, advance)}
        return scores | {TERMS: self._terms(table, folder, room, advance)} if self.terms else scores

    def _values(self, table: pl.DataFrame, advance: Callable[[int], None] | None = None) -> Tensor:
        parts = [column(_texts(table, name), advance) for name, column in self.columns.items()]
        return torch.from_numpy(np.hstack(parts))

    def _terms(
        self, table: pl.DataFrame, folder: Path | None, room: int, advance: Callable[[int], None] | None = None
    ) -> Tensor:
        found = mapped_rows(table.height, self.num_terms + room, folder, np.int32)
        width = num_terms(self._words_of_each)
        for number, name in enumerate(self.columns):
            texts = _texts(table, name)
            for first in range(0, len(texts), AT_ONCE):
                some = texts[first : first + AT_ONCE]
                own = slice(number * width, (number + 1) * width)
                # A word of another column is another word.
                terms = first_terms(some, self._words_of_each)
                found[first : first + len(some), own] = np.where(terms < 0, -1, (terms + number * _APART) % BUCKETS)
                if advance is not None:
                    advance(len(some))
        return torch.from_numpy(found)

    def to_json(self) -> dict[str, Any]:
        """All but the tensors."""
        return {
            "columns": {name: {"flagged": each.flagged} for name, each in self.columns.items()},
            "terms": self.terms,
        }

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for number, column in enumerate(self.columns.values()):
            for owner, names in ((column.scores, _OF_SCORES), (column, _OF_COLUMN)):
                found |= {f"{number}.{name}": torch.from_numpy(getattr(owner, name)) for name in names}
        return found

    @staticmethod
    def restored(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "Words":
        """What `to_json` and `tensors` gave."""
        columns = {}
        for number, (name, settings) in enumerate(plain["columns"].items()):
            found: dict[str, Any] = {each: tensors[f"{number}.{each}"].numpy() for each in (*_OF_SCORES, *_OF_COLUMN)}
            scores = WordScores(**{each: found.pop(each) for each in _OF_SCORES})
            columns[name] = WordColumn(scores, **found, **settings)
        return Words(columns, plain["terms"])


_OF_SCORES = tuple(each.name for each in fields(WordScores))
_OF_COLUMN = ("mean", "deviation", "low", "high")


def fit_words(
    table: pl.DataFrame,
    columns: Sequence[str],
    labels: NDArray[np.int64],
    fitted_to: NDArray[np.int64],
    judged_by: NDArray[np.int64],
) -> Words | None:
    """Scores for those of the columns of texts whose words foretell newer labels; None where there are none.

    `fitted_to` are rows of the past, oldest first, and `judged_by` newer ones, known to nobody when the others were.
    """
    found = {}
    for name in columns:
        scores = fit_word_scores(_texts(table[fitted_to], name), labels[fitted_to])
        if scores is None:
            continue
        some, newer = (rows[_spread(len(rows))] for rows in (fitted_to, judged_by))
        made = scores(_texts(table[some], name))
        if np.isnan(made).all():
            continue  # texts are so rare that none of them is among these
        column = _standardised(scores, made)
        if _foretells(column, made, labels[some], scores(_texts(table[newer], name)), labels[newer]):
            found[name] = column
    return Words(found, terms=len(np.unique(labels[fitted_to])) <= MOST_CLASSES_OF_TERMS) if found else None


def _standardised(scores: WordScores, made: Float64[np.ndarray, "rows scores"]) -> WordColumn:
    there = made[~np.isnan(made[:, 0])]
    deviation = there.std(0)
    return WordColumn(
        scores,
        there.mean(0),
        np.where(deviation > 0, deviation, 1.0),
        there.min(0),
        there.max(0),
        flagged=len(there) < len(made),
    )


def _foretells(
    column: WordColumn,
    made: Float64[np.ndarray, "rows scores"],
    labels: NDArray[np.int64],
    newer: Float64[np.ndarray, "newer scores"],
    foretold: NDArray[np.int64],
) -> bool:
    """Whether scores, read as a model learns to read them, tell newer labels better than the shares of the classes do:
    by two standard errors.

    Where texts come in bursts of one label, the others of a burst tell a text's label, and whoever learns from that
    trusts scores that know nothing of the next burst.
    """
    known = np.isin(foretold, labels)
    if known.sum() < 2 or (labels == labels[0]).all():
        return False
    reading = regression(column.standard(made), labels)
    codes = np.searchsorted(reading.classes_, foretold[known])
    said = reading.predict_log_proba(column.standard(newer[known]))[np.arange(len(codes)), codes]
    shares = np.log(np.bincount(np.searchsorted(reading.classes_, labels)) / len(labels))
    gains = said - shares[codes]
    return bool(gains.mean() > 2 * gains.std(ddof=1) / np.sqrt(len(gains)))


def _spread(count: int) -> NDArray[np.int64]:
    """Some of so many rows, from the first to the last."""
    return np.linspace(0, count - 1, min(count, SOME_ROWS), dtype=np.int64)


def _texts(table: pl.DataFrame, name: str) -> list[str | None]:
    return needed_column(table, name).cast(pl.String).to_list()
