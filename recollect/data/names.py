"""Names: labels, ids and categories as texts that are compared, the same however a file or a program wrote them.

5, 5.0 and "5.0" are one name, and so are true, True and TRUE: JSON, Parquet and pandas each have a way of their own.
"""

import re

import polars as pl

WHOLE = r"^(-?\d+)\.0+$"
TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


FEW = 256


def folded(texts: pl.Series) -> pl.Series:
    """Texts as names. Looks first: most columns hold neither, and looking is quicker by far."""
    # Each question to polars takes as long as looking at hundreds of texts here, and a service asks them of one.
    if len(texts) <= FEW and not any(text and (text.endswith(".0") or text in TRUTH) for text in texts.to_list()):
        return texts
    if texts.str.ends_with(".0").any():
        texts = texts.str.replace(WHOLE, "$1")
    if any((texts == written).any() for written in TRUTH):
        texts = texts.replace(TRUTH)
    return texts


def name_of(text: str) -> str:
    """One text as a name."""
    return TRUTH.get(text) or re.sub(WHOLE, r"\1", text)
