"""Numbers that are written as texts: which texts say that one is missing, and whether the others are numbers at all."""

import polars as pl

NO_NUMBER = ("", "na", "n/a", "nan", "null", "none", "?", "-")
"""How people write, in any case of letters, that a number is missing."""

WHOLE = r"^\s*[+-]?\d+\s*$"


def says_missing(texts: pl.Series) -> pl.Series:
    """Which texts stand for a number that is not there."""
    return texts.str.strip_chars().str.to_lowercase().is_in(NO_NUMBER)


def as_numbers(texts: pl.Series) -> pl.Series:
    """Int64 or Float64; null where there is none. Whole numbers that 64 bits can't hold name something: none is read.

    As floats they would be rounded, and two that differ would be one.
    """
    there = texts.set(says_missing(texts), None).str.strip_chars()
    whole = there.cast(pl.Int64, strict=False)
    if whole.null_count() == there.null_count():
        return whole
    numbers = there.cast(pl.Float64, strict=False)
    if (whole.is_null() & numbers.is_not_null() & there.str.contains(WHOLE)).any():
        return whole.clear(len(texts))
    return numbers
