"""Names: labels, ids and categories as texts that are compared, the same however a file or a program wrote them.

5, 5.0 and "5.000" are one name, and so are true, True and TRUE, and spaces around one are none of it: JSON, Parquet and
pandas each have a way of their own. Fractions are not touched: a text "1.50" and a number 1.5 are two names, because
the texts 3.10 and 3.1 may be two versions.
"""

import re
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

WHOLE = r"^(-?\d+)\.0+$"
POINT = ".0"
TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}
LONGEST_TRUTH = max(map(len, TRUTH))
FEW = 1000


def folded(texts: pl.Series) -> pl.Series:
    """Texts as names; an empty one is missing. Looks first: most columns hold none of it, and looking is quicker."""
    # Each question to polars takes as long as looking at hundreds of texts here, and a service asks them of one.
    if len(texts) <= FEW // 4 and all(text is None or _is_name(text) for text in texts.to_list()):
        return texts
    # Most ids have neither a space nor a point, which is seen soonest in the bytes of all texts, one after the other.
    written = _bytes_of(texts)
    if b" " in written and (texts.str.starts_with(" ").any() or texts.str.ends_with(" ").any()):
        texts = texts.str.strip_chars(" ")
    # Looking inside every text takes three times as long as looking at ends, so only those that end in 0 are searched.
    if POINT.encode() in written and texts.filter(texts.str.ends_with("0")).str.contains(POINT, literal=True).any():
        texts = texts.str.replace(WHOLE, "$1")
    shortest = texts.str.len_bytes().min()
    if shortest == 0:
        texts = texts.set(texts == "", None)
    if isinstance(shortest, int) and shortest <= LONGEST_TRUTH and any((texts == each).any() for each in TRUTH):
        texts = texts.replace(TRUTH)
    return texts


def _bytes_of(texts: pl.Series) -> bytes:
    data = texts.to_arrow(compat_level=pl.CompatLevel.oldest()).buffers()[-1]
    return data.to_pybytes() if data is not None else b""


def of_whole_numbers(values: pl.Series) -> pl.Series:
    """Whole numbers as names. Writing is slow: where many rows are of few numbers, such as classes, once for each."""
    low, high = (values.min(), values.max()) if len(values) > FEW else (None, None)
    if not (isinstance(low, int) and isinstance(high, int)) or high - low >= FEW or max(-low, high) >= 2**62:
        return values.cast(pl.String)
    written = pl.int_range(low, high + 1, eager=True).cast(pl.String)
    return written.gather(values.cast(pl.Int64) - low).alias(values.name)


def _is_name(text: str) -> bool:
    return bool(text) and text == text.strip(" ") and POINT not in text and text not in TRUTH


def name_of(text: str) -> str:
    """One text as a name."""
    text = text.strip(" ")
    return TRUTH.get(text) or re.sub(WHOLE, r"\1", text)


class Coded:
    """A Categorical column by the numbers that polars has for its texts: what is asked of each name is asked once.

    `present` are the numbers that occur, `names` what they stand for and `rows` how often they occur. Where the column
    is missing, the number is the first beyond all others.
    """

    def __init__(self, values: pl.Series) -> None:
        physical = values.to_physical()
        highest = physical.max()
        beyond = highest + 1 if isinstance(highest, int) else 0
        there = physical.cast(pl.Int64).fill_null(beyond) if physical.null_count() else physical
        self.numbers: NDArray[Any] = there.to_numpy()
        counts = np.bincount(self.numbers)
        self.present = counts.nonzero()[0]
        self.rows = counts[self.present]
        found = pl.Series(values.name, self.present, physical.dtype)
        self.names = found.set(found == beyond, None).cat.to(values.dtype).cast(pl.String)

    def each(self, of_names: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row what is given for its name."""
        table = np.zeros(self.present.max(initial=-1) + 1, np.int64)
        table[self.present] = of_names
        return table.take(self.numbers)
