"""Names: labels, ids and categories as texts that are compared, the same however a file or a program wrote them.

5, 5.0 and "5.0" are one name, and so are true, True and TRUE: JSON, Parquet and pandas each have a way of their own.
"""

import re

import polars as pl

WHOLE = r"^(-?\d+)\.0+$"
TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
LONGEST_TRUTH = max(map(len, TRUTH))
FEW = 1000


def folded(texts: pl.Series) -> pl.Series:
    """Texts as names; an empty one is missing. Looks first: most columns hold none of it, and looking is quicker."""
    # Each question to polars takes as long as looking at hundreds of texts here, and a service asks them of one.
    if len(texts) <= FEW // 4 and all(text is None or _is_name(text) for text in texts.to_list()):
        return texts
    if texts.str.ends_with(".0").any():
        texts = texts.str.replace(WHOLE, "$1")
    shortest = texts.str.len_bytes().min()
    if shortest == 0:
        texts = texts.set(texts == "", None)
    if isinstance(shortest, int) and shortest <= LONGEST_TRUTH and any((texts == each).any() for each in TRUTH):
        texts = texts.replace(TRUTH)
    return texts


def of_whole_numbers(values: pl.Series) -> pl.Series:
    """Whole numbers as names. Writing is slow: where many rows are of few numbers, such as classes, once for each."""
    low, high = (values.min(), values.max()) if len(values) > FEW else (None, None)
    if not (isinstance(low, int) and isinstance(high, int)) or high - low >= FEW or max(-low, high) >= 2**62:
        return values.cast(pl.String)
    written = pl.int_range(low, high + 1, eager=True).cast(pl.String)
    return written.gather(values.cast(pl.Int64) - low).alias(values.name)


def _is_name(text: str) -> bool:
    return bool(text) and not text.endswith(".0") and text not in TRUTH


def name_of(text: str) -> str:
    """One text as a name."""
    return TRUTH.get(text) or re.sub(WHOLE, r"\1", text)
