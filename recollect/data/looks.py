"""What a column is by its type and looks: a number, a category, a text, an embedding, or nothing to learn from.

Of a column's name it knows only whether it sounds like an identifier or the number of a row.
"""

import re

import polars as pl

from recollect.data.event_columns import read_lists
from recollect.data.tables.numbers import as_numbers, says_missing
from recollect.data.tables.times import LARGEST, MOSTLY_MOMENTS, share_of_moments

WORDS_OF_TEXT = 3  # on average; fewer is a name or a code
MISTAKES = 0.01  # where more of the texts are no numbers, they are no column of numbers
OFTEN = 0.8  # texts of which fewer than this share differ are categories: their names come again, if seldom
DIFFERENT_TEXTS = 0.2  # fewer different ones are phrases that repeat: categories too
AMONG = 1000  # of so many, the first: of more rows a smaller share differs, and texts would be something else

COUNTED = 20
"""From so many first rows on, whole numbers that go up by one are the number of the row, as programs write it beside a
table; with fewer that may be chance."""

INDICES = ("unnamed: 0", "column 1", "index", "rownames")
"""What such a column is called: where rows were left out or shuffled afterwards, its name gives it away."""

PANDAS_INDEX = r"__index_level_\d+__"
"""What pandas calls an index that has no name in a file of Parquet."""

IDENTIFIER = "an identifier, or declare it categorical"
NUMBER_TEXTS = "numbers written as texts that hardly repeat: an identifier, or declare it numeric"
A_TIME = "not the row's time: make a number of it, such as the hour or the days since, to have it read"

ODD_NUMBERS = r"^\s*[-+]?\s*[$€£]?\s*\d[\d., ]*[%€]?\s*$"


def looks_of(values: pl.Series) -> tuple[str, str]:
    """Role and reason."""
    kind = values.dtype
    present = values.drop_nulls()
    if present.is_empty():
        return "ignored", "no value in the first rows: declare what it is, to have it read"
    if kind == pl.Boolean:
        return "categorical", "true or false"
    highest = present.max() if kind.is_integer() else None
    if isinstance(highest, int) and highest > LARGEST:
        return _looks_of_texts(present.cast(pl.String))  # names, as they are to everyone who reads them as texts
    if kind.is_numeric():
        return _looks_of_numbers(present)
    if isinstance(kind, (pl.List, pl.Array)):
        return _looks_of_lists(values)
    if kind in (pl.Categorical, pl.Enum):
        return "categorical", "by its type"
    if kind == pl.String:
        return _looks_of_texts(present)
    if kind.is_temporal():
        return "ignored", A_TIME
    return "ignored", f"{kind} is not a number, a text or a list of numbers: take it apart first"


def numbers_rows(values: pl.Series) -> bool:
    if not values.dtype.is_integer() or values.null_count() or values.n_unique() < len(values) or len(values) < 2:
        return False
    if values.name.lower() in INDICES or re.fullmatch(PANDAS_INDEX, values.name):
        return True
    return len(values) >= COUNTED and bool((values.cast(pl.Int64, strict=False).diff()[1:] == 1).all())


def _looks_of_numbers(present: pl.Series) -> tuple[str, str]:
    if present.dtype.is_integer() and is_called_id(present.name):
        if present.n_unique() > OFTEN * len(present):
            return "ignored", f"numbers that name something and hardly repeat: {IDENTIFIER}"
        return "categorical", "numbers that name something"
    return "numeric", "numbers"


def _looks_of_lists(values: pl.Series) -> tuple[str, str]:
    lists = read_lists(values)
    width = width_of(values)
    wrong = lists.is_null() & values.is_not_null()
    if wrong.any() or not width or (lists.drop_nulls().list.len() != width).any():
        return "ignored", "lists, but not of numbers and one length"
    return "embedding", f"lists of {width} numbers"


def _looks_of_texts(present: pl.Series) -> tuple[str, str]:
    if present.str.contains(r"^\s*\[.*\]\s*$").all():
        role, reason = _looks_of_lists(present)
        if role == "embedding":
            return role, reason
    if not is_called_id(present.name) and (numbers := _looks_of_number_texts(present)):
        return "numeric", numbers
    some = present.head(AMONG)
    words = float(some.str.count_matches(r"\S+").mean())  # type: ignore[arg-type]
    if words >= WORDS_OF_TEXT and some.n_unique() > DIFFERENT_TEXTS * len(some):
        if share_of_moments(some) > MOSTLY_MOMENTS:
            return "ignored", A_TIME
        return "text", f"texts of {words:.0f} words on average"
    different = present.n_unique()
    odd = present.str.contains(ODD_NUMBERS) & present.str.contains(r"[,$€£%]")
    hint = ""
    if odd.mean() > DIFFERENT_TEXTS:  # type: ignore[operator]
        hint = "numbers with a comma, $, €, £ or % in them: write plain ones with a decimal point to have them read"
    if different <= max(OFTEN * len(present), 2):
        reason = f"{different} different texts in {len(present)} rows"
        return "categorical", f"{reason}; {hint}" if hint else reason
    if as_numbers(present).null_count() == 0:
        return "ignored", NUMBER_TEXTS
    if hint:
        return "ignored", hint
    if share_of_moments(some) > MOSTLY_MOMENTS:
        return "ignored", A_TIME
    return "ignored", f"short texts that hardly repeat ({different} in {len(present)} rows): {IDENTIFIER}"


def _looks_of_number_texts(present: pl.Series) -> str:
    """The reason to read texts as numbers, if there is one: that some say NA, or that a few are mistakes.

    Whole numbers without either were written as texts on purpose: they may be codes or identifiers.
    """
    numbers = as_numbers(present)
    missing = says_missing(present)
    others = numbers.is_null() & ~missing
    if missing.all():
        return ""
    if not others.any():
        return f"numbers, {missing.sum()} of them missing" if missing.any() else ""
    measured = (numbers != numbers.round()).any()
    if not measured or others.sum() > MISTAKES * len(present):
        return ""
    return f"numbers, but for {others.sum()} such as {present.filter(others)[0]!r}"


def width_of(values: pl.Series) -> int:
    """Of most lists: a single one that is wrong is named when it is read."""
    lengths = read_lists(values).drop_nulls().list.len()
    return max(lengths.mode().to_list(), default=0)


def is_called_id(name: str) -> bool:
    return name.lower() == "id" or name.lower().endswith("_id") or (name.endswith(("Id", "ID")) and len(name) > 2)
