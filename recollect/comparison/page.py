"""The report of a comparison as one HTML file: it opens offline, and asks nothing of any network.

Style, scripts and figures are all inside. What is only read is written here; what can be played with, plots and sorted
tables, is drawn by the scripts in assets/ from the report as JSON. Texts of the data are escaped in either; a policy in
the page lets its own scripts run and nothing else, and forbids every request.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from string import Template
from typing import Any

from recollect.evaluation.results import BLUE, COLUMNS, GREEN, LESS_IS_BETTER, OURS, PURPLE, STYLES
from recollect.plain_json import without_nan

DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
"""Lines as matplotlib breaks them, and the same for SVG."""

EXACT_IN_JAVASCRIPT = 2**53

MEASURES = {
    "accuracy": ("accuracy", "share of answers that were right; higher is better"),
    "balanced_accuracy": ("balanced accuracy", "the same, every class counting alike; higher is better"),
    "auc": ("AUC", "how often a row of a class is given more of it than one of another; higher is better"),
    "nll": ("log loss", "how surprising the truth was; lower is better"),
    "brier": ("Brier score", "squared distance of the probabilities from the truth; lower is better"),
    "ece": ("calibration error", "gap between confidence and accuracy; lower is better"),
    "kappa": ("kappa", "accuracy beyond that of random answers of the same frequencies; higher is better"),
    "coverage": ("coverage", "how often the truth is among the classes given 90% together; .9 is ideal"),
}
COLUMN_NAMES = {
    "auc": "AUC",
    "nll": "log loss",
    "ece": "calibration error",
    "first_bin": "first period",
    "worst_bin": "worst period",
    "in_distribution": "before the cutoff",
}
ABOUT = {
    "recollect": "our model: weights frozen at the cutoff, history growing with every label",
    "no_context": "our model without precedents, frozen at the cutoff",
    "majority": "always the most common label of the past",
    "previous_label": "always the label that became known last",
    "recent_neighbours": "a vote of the nearest rows among the newest",
    "finetuned": "a small network, trained further period by period",
    "arf": "adaptive random forest, learning from every label",
    "leveraging_bagging": "leveraging bagging, learning from every label",
    "hoeffding_adaptive": "adaptive Hoeffding tree, learning from every label",
} | {
    f"{short}_{kind}": f"{family}, {how}"
    for short, family in (("logreg", "logistic regression"), ("lightgbm", "LightGBM"))
    for kind, how in (
        ("frozen", "fitted once, before the cutoff"),
        ("refit_period", "fitted anew each period, on the last period"),
        ("refit_year", "fitted anew each period, on the last year"),
    )
}
"""Of models that a report says nothing about itself."""


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
        verdict=_verdict(report),
        facts=_facts(_told(report)),
        about=_about(report),
        cost=_cost(report.get("cost") or {}),
        settings=_settings(report),
        style=style,
        charts=charts,
        sections=sections,
        report=_as_data(report),
        words=_as_data(_words(_names(report), _said_of(report))),
    )
    path.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")


def _asset(name: str) -> str:
    return (files("recollect.comparison") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a policy knows an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _as_data(value: Any) -> str:
    """JSON that may stand inside a script element: no text can end the element early."""
    return json.dumps(_exact(without_nan(value)), default=str, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _exact(value: Any) -> Any:
    """The same, as JavaScript can hold it: long whole numbers are texts, digit by digit."""
    if isinstance(value, Mapping):
        return {str(key): _exact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_exact(each) for each in value]
    if isinstance(value, int) and abs(value) > EXACT_IN_JAVASCRIPT:
        return str(value)
    return value


def _verdict(report: Mapping[str, Any]) -> str:
    verdict = report.get("verdict")
    if not verdict:
        return ""
    kind = "verdict helps" if verdict.get("helps") else "verdict"
    return (
        f'<div id="verdict" class="{kind}"><h2>{_text(verdict.get("headline"))}</h2>{_list(verdict.get("lines"))}</div>'
    )


def _told(report: Mapping[str, Any]) -> dict[str, str | None]:
    """The frame of the comparison."""
    rows, cutoff = report.get("rows") or {}, report.get("cutoff")
    return {
        "training ends (cutoff)": cutoff.replace("T", " ").removesuffix(" 00:00:00")
        if isinstance(cutoff, str)
        else _number(cutoff),
        "rows before": _number(rows.get("past")),
        "rows asked after": _number(rows.get("asked")),
        "label delay": report.get("label_delay"),
        "recollect": report.get("recollect"),
    }


def _said_of(report: Mapping[str, Any]) -> Mapping[str, str]:
    """What a model is, by name: where the report knows better, such as the real span of a refit, as it says."""
    return {**ABOUT, **(report.get("about") or {})}


def _about(report: Mapping[str, Any]) -> str:
    said = _said_of(report)
    rows = [(name, said[name]) for name in report.get("models") or () if name in said]
    return _folded("What these models are", ("model", "what it is"), rows)


def _cost(cost: Mapping[str, Any]) -> str:
    answer, memory = _number(cost.get("answer_ms")), _number(cost.get("peak_memory_mb"), digits=0)
    facts = _facts(
        {
            "training": _duration(cost.get("train_seconds")),
            "one answer": answer and f"{answer} ms",
            "peak memory": memory and f"{memory} MB",
        }
    )
    seconds = {name: value for name, value in (cost.get("seconds") or {}).items() if _duration(value)}
    longest = max(seconds.values(), default=0) or 1
    rows = "".join(
        f'<tr><th scope="row">{_text(name)}</th><td>{_duration(value)}</td>'
        f'<td><svg class="bar" aria-hidden="true"><rect width="{100 * value / longest:.2f}%" height="100%"/></svg></td>'
        "</tr>"
        for name, value in sorted(seconds.items(), key=lambda each: -each[1])
    )
    head = '<tr><th scope="col">model</th><th scope="col">time, all seeds</th><td></td></tr>'
    table = _wide("Time of every model", f'<table class="seconds"><thead>{head}</thead><tbody>{rows}</tbody></table>')
    return _section("cost", "Cost", facts + (table if rows else ""))


def _settings(report: Mapping[str, Any]) -> str:
    schema, config, why = (report.get(part) or {} for part in ("schema", "config", "why"))
    columns = [(name, role, why.get(name)) for name, role in schema.items()]
    return _section(
        "settings",
        "Data and settings",
        _list(report.get("notes"))
        + _folded("Columns", ("column", "used as", "why"), columns)
        + _folded("Settings", ("setting", "value"), list(_flat(config))),
    )


def _flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _section(name: str, title: str, content: str) -> str:
    """A part of the page, or nothing where it would be empty."""
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}{content}</section>' if content else ""


def _facts(facts: Mapping[str, str | None]) -> str:
    """Single figures, each below its name; those unknown are left out."""
    known = [f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items() if value]
    return f'<dl class="facts">{"".join(known)}</dl>' if known else ""


def _list(lines: Iterable[str] | None) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines or ())
    return f"<ul>{items}</ul>" if items else ""


def _folded(title: str, heads: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """A table of texts that opens when pressed."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<table class="texts"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<details class="plain"><summary>{title} ({len(rows)})</summary>{_wide(title, table)}</details>'


def _wide(label: str, table: str) -> str:
    """What is wider than a phone scrolls by itself, by keys too."""
    return f'<div class="wide" role="region" aria-label="{label}" tabindex="0">{table}</div>'


def _text(value: Any) -> str:
    return html.escape("-" if value is None else str(value))


def _number(value: Any, digits: int = 3) -> str | None:
    """Three digits of a fraction, all of a whole number; None for what is no number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return f"{value:,.{digits}g}" if digits and abs(value) < 100 and isinstance(value, float) else f"{value:,.0f}"


def _duration(seconds: Any) -> str | None:
    if _number(seconds) is None:
        return None
    size, unit = (1, "s") if seconds < 120 else (60, "min") if seconds < 7200 else (3600, "h")
    return f"{_number(seconds / size)} {unit}"


def _names(report: Mapping[str, Any]) -> list[str]:
    """Every model that is mentioned anywhere, in order."""
    over_time, cost = report.get("over_time") or {}, report.get("cost") or {}
    parts = (report.get("models"), over_time.get("models"), report.get("calibration"), cost.get("seconds"))
    return list(dict.fromkeys(name for part in parts for name in part or ()))


def _words(names: Iterable[str], said: Mapping[str, str]) -> dict[str, Any]:
    """What things are called and mean, and how models are drawn: as in our other figures."""
    others = cycle([(colour, "-.") for colour in (BLUE, GREEN, PURPLE)])
    models = {}
    for name in names:
        colour, line = STYLES.get(_like(name)) or next(others)
        # Black is the colour of the text, which is light on a dark page.
        shown = "currentColor" if colour == "#000000" else colour
        models[name] = {"colour": shown, "dash": DASHES[line], "thick": _like(name) in OURS, "about": said.get(name)}
    return {
        "models": models,
        "measures": MEASURES,
        "columns": {column: COLUMN_NAMES.get(column, column.replace("_", " ")) for column in COLUMNS},
        "less_is_better": LESS_IS_BETTER,
    }


def _like(name: str) -> str:
    """What a model is drawn like: one refitted in spans of its own like its kind."""
    family, refit, span = name.partition("_refit_")
    if not refit or span == "period":
        return name
    return f"{family}_refit" if family in OURS else f"{family}_refit_year"
