"""What memory depends on, and numbers as people write them: 1.9M, 16G.

Knows no arithmetic of memory.
"""

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from recollect.config import ModelSettings
from recollect.errors import SettingError

KeyType = Literal["float32", "float16", "bfloat16"]
FeatureType = Literal["float32", "float16"]
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

BLOCK = 256
"""Items per block of keys, as in `retrieval.keys`, which would bring torch with it; a test compares the two."""

DEFAULT_MODEL = ModelSettings()

_UNITS = {"T": 10**12, "G": 10**9, "M": 10**6, "k": 10**3, "": 1}


@dataclass(frozen=True)
class Sizes:
    """Everything that memory depends on; the paper's K, B, kappa, d and D first.

    `chains` are classified per input and step, each with `retrieved` items. `model` says what the networks are like,
    but for its `num_retrieved`; `parameters` overrides the number of weights that follows from it. `validation` is the
    number of inputs validated with now and then, 0 for none.
    """

    items: int
    batch: int
    retrieved: int
    key_dim: int
    feature_width: int
    chains: int = 2
    key_type: KeyType = "float32"
    feature_type: FeatureType = "float16"
    classes: int = 2
    parameters: int | None = None
    validation: int = 0
    model: ModelSettings = DEFAULT_MODEL

    def __post_init__(self) -> None:
        least = {"items": 0, "validation": 0}
        for name in ("items", "batch", "retrieved", "key_dim", "feature_width", "chains", "classes", "validation"):
            value = getattr(self, name)
            if value < least.get(name, 1):
                raise SettingError(f"{name} is {value}: give {least.get(name, 1)} or more")

    @property
    def recency(self) -> bool:
        return self.model.recency is not None

    @property
    def query_width(self) -> int:
        """Of keys with their recency coordinate."""
        return self.key_dim + self.recency

    @property
    def blocks(self) -> int:
        return max(1, -(-self.items // BLOCK))

    @property
    def queries(self) -> int:
        return self.batch * self.retrieved

    @property
    def rows(self) -> int:
        """What the classifier answers in one step: every chain of every input."""
        return self.batch * self.chains

    @property
    def fetched(self) -> int:
        """Items fetched in one step, counted as often as they are fetched."""
        return self.rows * self.retrieved

    @property
    def shows_features(self) -> bool:
        return self.model.retrieve == "items"


def parse_number(text: str) -> int:
    """A whole number, perhaps with k, M, G or T behind it: "1.9M" is 1,900,000, and 16G of bytes are 16 * 10 ** 9."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?([kKMGT]?)", text.strip().removesuffix("B"))
    if found is None:
        raise SettingError(f"{text!r} is not a number: write digits with k, M, G or T behind them, as in 1.9M")
    number = Decimal(found[1]) * _UNITS[found[2].replace("K", "k")]
    if number != int(number):
        raise SettingError(f"{text!r} is not a whole number: leave out the digits behind the point")
    return int(number)


def round_down(number: int, digits: int = 2) -> int:
    """To a few leading digits, never up: what is said to fit must fit."""
    unit = int(10 ** max(0, len(str(number)) - digits))
    return number // unit * unit


def show_number(number: int) -> str:
    """Three digits and a suffix: 1.9M."""
    value, suffix = _in_units(number)
    text = _three_digits(value)
    return (text.rstrip("0").rstrip(".") if "." in text else text) + suffix


def exact_number(number: int) -> str:
    """With a suffix where that says it all, so that it can be read back."""
    text = show_number(number)
    return text if parse_number(text) == number else str(number)


def show_bytes(number: int) -> str:
    """Three digits and a unit: 1.23 GB."""
    value, suffix = _in_units(number)
    return f"{_three_digits(value)} {suffix}B"


def _in_units(number: int) -> tuple[float, str]:
    for suffix, unit in _UNITS.items():
        if number >= unit:
            return number / unit, suffix
    return float(number), ""


def _three_digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    return f"{value:.{max(0, 2 - int(math.log10(value)))}f}"
