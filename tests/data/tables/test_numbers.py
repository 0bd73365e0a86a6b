"""Texts that are numbers, that say there is none, or that only look like numbers."""

import polars as pl

from recollect.data.tables.numbers import as_numbers, says_missing


def test_what_is_written_decides_the_type() -> None:
    assert as_numbers(pl.Series(["1", " 2 ", "NA", None])).to_list() == [1, 2, None, None]
    assert as_numbers(pl.Series(["1", "2.5", "-", "1e3", "x"])).to_list() == [1.0, 2.5, None, 1000.0, None]
    assert as_numbers(pl.Series([str(2**63), "1", "x"])).to_list() == [None] * 3


def test_many_words_say_missing() -> None:
    texts = pl.Series(["", "NA", " n/a ", "NaN", "NULL", "None", "?", "-", "0", "no", None])
    assert says_missing(texts).to_list() == [True] * 8 + [False, False, None]
