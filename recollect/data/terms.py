"""Which words and pairs of words stand in a text, and which values columns of categories have, by their hashes. Nothing
is fitted: what nobody knew when a model was trained has its hash too. Knows no labels, nor what any of it tells.
"""

import re
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int32, Int64
from numpy.typing import NDArray

from recollect.data.columns import texts_of
from recollect.data.embedding_cache import clean_text
from recollect.data.names import Coded
from recollect.errors import SettingError
from recollect.records import FIRST_VALUE

BUCKETS = FIRST_VALUE
"""Words, pairs and values are known by so many hashes: few enough of them meet in one."""

MOST_WORDS = 128
"""Of a text its first words are kept, so many or fewer: all rows have the same width."""

AT_ONCE = 8192
"""Of so many texts counts are made together: those of all would take more memory than the texts."""

_WORD = r"\w+"


def num_terms(words: int) -> int:
    """How many words and pairs the first so many words have at most."""
    return 2 * words - 1


def first_terms(texts: Sequence[str | None], words: int) -> Int32[np.ndarray, "texts terms"]:
    """Each term once, in order of their hashes; -1 where there are no more."""
    found = np.full((len(texts), num_terms(words)), -1, np.int32)
    rows, written = with_text(texts)
    if written:
        counts = term_counts([_beginning(text, words) for text in written])
        each = np.diff(counts.indptr)
        place = np.arange(counts.nnz) - np.repeat(counts.indptr[:-1], each)
        found[np.repeat(rows, each), place] = counts.indices
    return found


def value_terms(values: pl.Series) -> Int32[np.ndarray, " rows"]:
    """The value of each row in a column of categories; one that is missing is a value as well."""
    if values.dtype == pl.Categorical:
        coded = Coded(values)
        found = coded.each(_terms_of(values.name, texts_of(coded.names).to_list()))
        return found.astype(np.int32)
    texts = texts_of(values)
    different = texts.unique()
    terms = _terms_of(values.name, different.to_list())
    return texts.replace_strict(different, terms, return_dtype=pl.Int32).to_numpy()


def value_terms_by(
    codes: Int64[np.ndarray, " rows"], categories: Sequence[str], values: pl.Series
) -> Int32[np.ndarray, " rows"]:
    """`value_terms` where each row's place among some categories is known already, which spares looking at most texts;
    those of no place have a code behind them all."""
    others = codes >= len(categories)
    if len(codes) <= len(categories) or others.all():
        return value_terms(values)
    found = _terms_of(values.name, categories).take(codes, mode="clip").astype(np.int32)
    if others.any():
        found[others] = value_terms(values.filter(others))
    return found


def _terms_of(name: str, values: Sequence[str]) -> NDArray[np.int64]:
    hashes = [zlib.crc32(f"{name}={value}".encode()) % BUCKETS for value in values]
    return FIRST_VALUE + np.array(hashes, np.int64)


def term_counts(texts: Sequence[str]) -> Any:
    """How often each word and each pair stands in each text, by their hashes."""
    return _hashing().transform(texts)


def with_text(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """The rows that have a text, and these."""
    cleaned = [clean_text(text or "", row) for row, text in enumerate(texts)]
    found = [(row, text) for row, text in enumerate(cleaned) if text is not None]
    return np.array([row for row, _ in found], np.int64), [text for _, text in found]


def _beginning(text: str, words: int) -> str:
    text = text.lower()  # as the hashing does first: of some capitals it makes two letters
    last = next(islice(re.finditer(_WORD, text), words - 1, None), None)
    return text if last is None else text[: last.end()]


@cache
def _hashing() -> Any:
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ModuleNotFoundError as error:
        raise SettingError(f"texts need the package {error.name}: pip install 'recollect[text]'") from error
    return HashingVectorizer(
        token_pattern=_WORD,
        ngram_range=(1, 2),
        n_features=BUCKETS,
        alternate_sign=False,
        norm=None,
        dtype=np.float32,
    )
