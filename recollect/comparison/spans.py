"""Spans of time as people write them, 7d or 12h, and as the data count: nanoseconds, or plain numbers."""

import re

from recollect.errors import SettingError

SECOND = 10**9
UNITS = {"s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND, "w": 7 * 86_400 * SECOND}
YEAR = 365 * UNITS["d"]


def span_from(text: str, plain: bool, option: str) -> int | float:
    """7d, 12h, 30m, 90s or 2w as nanoseconds; a number where times are plain numbers."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw]?)\s*", text)
    if found is None:
        raise SettingError(f"{option} {text!r} can't be read: write a span such as 7d, 12h or 30m, or a plain number")
    number, unit = float(found[1]), found[2]
    if number == 0:
        return 0
    if plain:
        if unit:
            raise SettingError(f"{option} {text!r} has a unit, but the times are plain numbers: give a plain number")
        return number
    if not unit:
        raise SettingError(f"{option} {text!r} has no unit: write a span such as 7d, 12h or 30m")
    return round(number * UNITS[unit])


def length_from(text: str, plain: bool, option: str) -> int | float:
    """The same of a span that has some length."""
    length = 0 if text.strip().startswith("-") else span_from(text, plain, option)
    if length == 0:
        example = "a number above 0" if plain else "a span above 0, such as 90d"
        raise SettingError(f"{option} {text!r} has no length: give {example}")
    return length


def span_text(span: int | float, plain: bool) -> str:
    """As `span_from` reads it, in the largest unit that needs no fraction; weeks are told as days."""
    if plain:
        return f"{span:.12g}"
    for unit in ("d", "h", "m"):
        if span % UNITS[unit] == 0:
            return f"{span // UNITS[unit]:.0f}{unit}"
    return f"{span / SECOND:.12g}s"


def rough_text(span: int | float, plain: bool) -> str:
    """A span that nobody wrote, to three digits."""
    if plain:
        return f"{span:.3g}"
    unit = next((unit for unit in ("d", "h", "m") if span >= UNITS[unit]), "s")
    return f"{span / UNITS[unit]:.3g}{unit}"
