"""The report of a comparison as one HTML file: it opens offline, and asks nothing of any network.

Style, scripts and figures are all inside. Texts of the data reach the page as JSON and are set as text, never as HTML;
a policy in the page lets its own scripts run and nothing else, and forbids every request.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from string import Template
from typing import Any

from recollect.evaluation.results import BLUE, COLUMNS, GREEN, LESS_IS_BETTER, OURS, PURPLE, STYLES

DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
"""Lines as matplotlib breaks them, and the same for SVG."""

EXACT_IN_JAVASCRIPT = 2**53


def write_page(report: Mapping[str, Any], path: Path) -> None:
    """Write what report.json holds as a page; parts that are missing or None are left out of it."""
    style, charts, sections = (_asset(name) for name in ("page.css", "charts.js", "page.js"))
    policy = {
        "default-src": "'none'",
        "script-src": f"{_digest(charts)} {_digest(sections)}",
        "style-src": _digest(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    page = Template(_asset("page.html")).substitute(
        policy="; ".join(f"{name} {allowed}" for name, allowed in policy.items()),
        title=html.escape(f"Recollect on {report.get('data') or 'your data'}"),
        headline=html.escape(str((report.get("verdict") or {}).get("headline", ""))),
        style=style,
        charts=charts,
        sections=sections,
        report=_as_data(report),
        drawing=_as_data(_drawing(_names(report))),
    )
    path.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")


def _asset(name: str) -> str:
    return (files("recollect.comparison") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a policy knows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _as_data(value: Any) -> str:
    """JSON that may stand inside a script element: no text can end the element early."""
    return json.dumps(_plain(value), default=str, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    """The same, as JavaScript can hold it: no nan or infinity, and long whole numbers as text, digit by digit."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > EXACT_IN_JAVASCRIPT:
        return str(value)
    return value


def _names(report: Mapping[str, Any]) -> list[str]:
    """Every model that is mentioned anywhere, in order."""
    over_time, cost = report.get("over_time") or {}, report.get("cost") or {}
    parts = (report.get("models"), over_time.get("models"), report.get("calibration"), cost.get("seconds"))
    return list(dict.fromkeys(name for part in parts for name in part or ()))


def _drawing(names: Iterable[str]) -> dict[str, Any]:
    """Colours and dashes as in our other figures, and how the table is to be read."""
    others = cycle([(colour, "-.") for colour in (BLUE, GREEN, PURPLE)])
    models = {}
    for name in names:
        colour, line = STYLES.get(name) or next(others)
        # Black is the colour of the text, which is light on a dark page.
        shown = "currentColor" if colour == "#000000" else colour
        models[name] = {"colour": shown, "dash": DASHES[line], "ours": name in OURS}
    return {"models": models, "columns": COLUMNS, "less_is_better": LESS_IS_BETTER}
