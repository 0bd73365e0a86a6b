"""JSON that every reader takes: it knows no nan and no infinity, so what is not a number is null."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def without_nan(value: Any) -> Any:
    """The same with None for every number that isn't finite: a measure that a period of one class leaves undefined."""
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(value: Any, default: Callable[[Any], Any], indent: int | None = None) -> str:
    """`default` says what becomes of a value that JSON doesn't know."""
    return json.dumps(without_nan(value), default=default, indent=indent, allow_nan=False)
