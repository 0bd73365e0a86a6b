"""The page of a comparison: complete in one file, safe with any text, and alive in a browser where there is one."""

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.comparison.page import write_page
from recollect.evaluation.results import COLUMNS, LESS_IS_BETTER, STYLES
from tests.comparison.browser import Browser, chromium, chromium_or_skip

NASTY = """</script><script>document.title="taken"</script><img src=x onerror="alert(1)"> & 'q' "q" <!-- \u2028 é"""
PERIODS = 24
PARTS = (
    "verdict",
    "models",
    "over_time",
    "calibration",
    "label_rates",
    "precedents",
    "cost",
    "config",
    "rows",
    "schema",
    "notes",
)
SECTIONS = {"over-time", "results", "calibration", "precedents", "examples", "drift", "cost", "settings"}


def sample_report(text: str = "north") -> dict[str, Any]:
    """What a comparison writes, with made-up figures; `text` stands wherever people may have written something."""
    rng = np.random.default_rng(0)
    names = [name for name in STYLES if name not in ("recollect_items", "similarity")] + ["something_else"]
    starts = [f"{2014 + place // 4}-{1 + 3 * (place % 4):02}-01T00:00:00" for place in range(PERIODS)]
    over: dict[str, Any] = {"starts": starts, "rows": rng.integers(200, 900, PERIODS).tolist(), "models": {}}
    models: dict[str, dict[str, Any]] = {}
    calibration = {}
    for place, name in enumerate(names):
        fall = 0.0 if name.startswith("recollect") else 0.012 * (place % 5)
        level = 0.94 - 0.012 * place - fall * np.arange(PERIODS)
        values = np.clip(level + rng.normal(0, 0.012, PERIODS), 0.05, 1.0)
        band = 0.015 if name.startswith("recollect") else 0.0
        over["models"][name] = {
            measure: {
                "mean": [
                    None if measure == "kappa" and place == 3 else float(each) for place, each in enumerate(curve)
                ],
                "low": (curve - band).tolist(),
                "high": (curve + band).tolist(),
            }
            for measure, curve in (("accuracy", values), ("nll", 2.2 * (1.1 - values)), ("kappa", 2 * values - 1))
        }
        seeds = [float(values.mean()) + each for each in ((-0.004, 0.0, 0.004) if band else (0.0,))]
        mean: dict[str, Any] = {"mean": seeds[len(seeds) // 2], "std": 0.004 if band else 0.0, "seeds": seeds}
        models[name] = {column: mean for column in COLUMNS if column not in LESS_IS_BETTER}
        models[name] |= {column: {**mean, "mean": 1.1 - mean["mean"]} for column in LESS_IS_BETTER}
        if not name.endswith("_frozen"):
            models[name]["in_distribution"] = None
        confidence = np.linspace(0.35, 0.98, 10)
        calibration[name] = [
            {"confidence": each, "accuracy": each - 0.006 * place, "rows": int(9000 * each**3)}
            for each in confidence.tolist()
        ]
    rates = 0.5 + 0.3 * np.sin(np.arange(40) / 6)
    edges = [0.0, *np.geomspace(0.02, 2000, 24).tolist()]
    shown = (800 * np.exp(-(((np.arange(24) - 14) / 4) ** 2))).astype(int)
    return {
        "data": text,
        "recollect": "0.1.0",
        "cutoff": "2013-12-31T00:00:00",
        "label_delay": "7 days",
        "rows": {"past": 12345, "asked": 23456},
        "schema": {"price": "number", text: "category"},
        "notes": ["1 column left out: it is a copy of the label", text],
        "verdict": {
            "helps": True,
            "headline": "Yes: with its weights frozen and its history growing, Recollect was right 12.3 points more "
            "often than the best frozen model (lightgbm_frozen).",
            "lines": [
                "Recollect 0.931, lightgbm_frozen 0.808: a difference of +12.3 points, 95% interval +11.1 to +13.4.",
                "Refitting would have bought +6.0 points over that frozen model (lightgbm_refit_year, 0.868).",
                text,
            ],
        },
        "models": models,
        "over_time": over,
        "calibration": calibration,
        "label_rates": {
            "starts": [f"{2004 + place // 2}-{1 + 6 * (place % 2):02}-01T00:00:00" for place in range(40)],
            "classes": {text: rates.tolist(), "other": (1 - rates).tolist()},
        },
        "precedents": {
            "unit": "days",
            "ages": {"edges": edges, "shown": shown.tolist(), "attention": (shown * np.linspace(1, 0.1, 24)).tolist()},
            "entropy": rng.uniform(0.6, 1.9, PERIODS).tolist(),
            "median_age": [None, *rng.uniform(20, 60, PERIODS - 1).tolist()],
            "examples": [sample_example(place, text) for place in range(6)],
        },
        "cost": {
            "train_seconds": 412.3,
            "answer_ms": 1.84,
            "peak_memory_mb": 812.0,
            "seconds": {name: float(4 ** (place % 6)) for place, name in enumerate(names)},
        },
        "config": {"model": {"num_retrieved": 4, "recipe": text, "empty": {}}, "seeds": [0, 1, 2]},
    }


def sample_example(place: int, text: str) -> dict[str, Any]:
    row = {"price": 12.5 + place, "number": 2**60 + 1, "where": text, "gone": None}
    return {
        "id": f"row-{place}",
        "time": "2016-05-04T12:30:00",
        "input": row,
        "label": "up" if place % 2 else text,
        "predicted": "up",
        "probability": 0.83,
        "precedents": [
            {"id": f"old-{each}", "age": 0.3 * 9**each, "label": "up", "weight": 0.5 / each, "input": row}
            for each in range(1, 4)
        ],
    }


class Elements(HTMLParser):
    """Every element that a browser would make of a file, and the text of its scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data[self.inside] = self.data.get(self.inside, "") + data


def written(report: dict[str, Any], folder: Path) -> str:
    write_page(report, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def test_one_file_that_names_no_other(tmp_path: Path) -> None:
    page = written(sample_report(), tmp_path)
    elements = Elements(page)
    linked = [
        value for _, given in elements.found for name, value in given.items() if name in ("src", "href", "srcset")
    ]
    assert linked == ["data:,"]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(", page)
    # The one address is the name of SVG, which nobody asks for.
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_policy_that_forbids_requests_and_foreign_scripts(tmp_path: Path) -> None:
    elements = Elements(written(sample_report(), tmp_path))
    (policy,) = [given["content"] for _, given in elements.found if given.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert policy.count("'sha256-") == 3
    assert "unsafe" not in policy
    assert "http" not in policy


def test_texts_cannot_become_html(tmp_path: Path) -> None:
    def skeleton(report: dict[str, Any]) -> list[tuple[str, list[str]]]:
        return [(tag, sorted(given)) for tag, given in Elements(written(report, tmp_path)).found]

    nasty = sample_report(NASTY)
    nasty["verdict"]["headline"] = NASTY
    assert skeleton(nasty) == skeleton(sample_report())
    data = Elements(written(nasty, tmp_path)).data["report"]
    assert "<" not in data
    assert json.loads(data)["data"] == NASTY
    assert json.loads(data)["verdict"]["lines"][-1] == NASTY


def test_the_report_is_inside_as_it_is(tmp_path: Path) -> None:
    report = sample_report()
    data = json.loads(Elements(written(report, tmp_path)).data["report"])
    assert data["over_time"] == report["over_time"]
    # JavaScript would round so large a number.
    assert data["precedents"]["examples"][0]["input"]["number"] == str(2**60 + 1)


def test_what_json_does_not_know_is_undefined_or_text(tmp_path: Path) -> None:
    report = {
        "cost": {"train_seconds": math.nan, "answer_ms": math.inf},
        "config": {"out": Path("a/b"), "lone": "\ud800"},
    }
    data = json.loads(Elements(written({**report, "data": "\ud800"}, tmp_path)).data["report"])
    assert data["cost"] == {"train_seconds": None, "answer_ms": None}
    assert data["config"] == {"out": "a/b", "lone": "\ud800"}


def test_models_look_as_in_the_figures(tmp_path: Path) -> None:
    models = json.loads(Elements(written(sample_report(), tmp_path)).data["words"])["models"]
    assert (models["recollect"]["colour"], models["recollect"]["dash"], models["recollect"]["thick"]) == (
        "#D55E00",
        "",
        True,
    )
    refitted = models["logreg_refit_period"]
    assert (refitted["colour"], refitted["dash"], refitted["thick"]) == ("#0072B2", "2 3", False)
    assert "logistic regression" in refitted["about"]
    assert models["no_context"]["colour"] == "currentColor"
    assert models["something_else"]["dash"]


@pytest.mark.parametrize("missing", [*PARTS, "all of it"])
@pytest.mark.parametrize("none", [True, False])
def test_any_part_may_be_missing(tmp_path: Path, missing: str, none: bool) -> None:
    report: dict[str, Any] = sample_report()
    for part in list(report) if missing == "all of it" else [missing]:
        report[part] = None
        if not none:
            del report[part]
    assert written(report, tmp_path).endswith("</html>\n")


# In a browser.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(chromium_or_skip(), tmp_path_factory.mktemp("profile")) as started:
        yield started


LINES = '[...document.querySelectorAll("#over-time .plot svg[role=img] g[data-series] polyline")]'
DRAWING = 'document.querySelector("#over-time .plot svg[role=img]").outerHTML'
SECTIONS_SHOWN = '[...document.querySelectorAll("section:not([hidden])")].map((each) => each.id)'


def opened(browser: Browser, report: dict[str, Any], folder: Path, **how: Any) -> None:
    write_page(report, folder / "page.html")
    browser.open(folder / "page.html", **how)


def check_calm(browser: Browser, folder: Path) -> None:
    """Nothing went wrong, and nothing but the page itself was asked for."""
    assert browser.errors == []
    asked = [url for url in browser.requests if url not in ((folder / "page.html").as_uri(), "data:,")]
    assert asked == []


def test_everything_is_shown(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    opened(browser, report, tmp_path)
    assert set(browser.evaluate(SECTIONS_SHOWN)) == SECTIONS
    assert browser.evaluate('document.querySelector("#verdict h2").textContent') == report["verdict"]["headline"]
    assert browser.evaluate(f"{LINES}.length") == len(report["models"])
    assert browser.evaluate('document.querySelectorAll("#over-time .cutoff, #drift .cutoff").length') == 2
    assert browser.evaluate('document.querySelectorAll(".example.right").length') == 3
    assert browser.evaluate('document.querySelectorAll(".example.wrong").length') == 3
    check_calm(browser, tmp_path)


def test_another_measure_is_another_drawing(browser: Browser, tmp_path: Path) -> None:
    opened(browser, sample_report(), tmp_path)
    before = browser.evaluate(DRAWING)
    browser.evaluate('{ const choose = document.getElementById("measure"); choose.value = "kappa";'
                     ' choose.dispatchEvent(new Event("change")); }')  # fmt: skip
    after = browser.evaluate(DRAWING)
    assert before != after
    assert "kappa over time" in after
    # Where a value is undefined, the line is broken.
    assert browser.evaluate(f"{LINES}.length") == 2 * len(sample_report()["models"])
    check_calm(browser, tmp_path)


def test_models_can_be_hidden(browser: Browser, tmp_path: Path) -> None:
    opened(browser, sample_report(), tmp_path)
    every = browser.evaluate(f"{LINES}.length")
    button = '[...document.querySelectorAll("#over-time .legend button")].find((b) => b.textContent === "majority")'
    browser.evaluate(f"{button}.focus()")
    browser.press("Enter")
    assert browser.evaluate(f"{LINES}.length") == every - 1
    assert browser.evaluate(f'{button}.getAttribute("aria-pressed")') == "false"
    names = 'document.querySelector("#over-time .plot g[data-series=majority]")'
    assert browser.evaluate(names) is None
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(f"{LINES}.length") == every
    browser.evaluate('document.querySelector("[data-show=none]").click()')
    assert browser.evaluate(f"{LINES}.length") == 0
    check_calm(browser, tmp_path)


def test_values_are_told_to_pointer_and_keys(browser: Browser, tmp_path: Path) -> None:
    opened(browser, sample_report(), tmp_path)
    chart = 'document.querySelector("#over-time .plot svg[role=img]")'
    tip = 'document.querySelector("#over-time .plot .tip").innerText'
    browser.evaluate(f'{chart}.scrollIntoView({{block: "center"}})')
    box = browser.evaluate(f"{chart}.getBoundingClientRect().toJSON()")
    browser.move_to(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = browser.evaluate(tip)
    assert "recollect_refit" in told
    assert " rows" in told
    browser.evaluate(f"{chart}.focus()")
    browser.press("End")
    assert browser.evaluate(tip).startswith("2019-10-01")
    browser.press("ArrowLeft")
    assert browser.evaluate(tip).startswith("2019-07-01")
    browser.press("Escape")
    assert browser.evaluate('document.querySelector("#over-time .plot .tip").hidden') is True
    check_calm(browser, tmp_path)


def test_the_table_sorts_and_marks_the_best(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    opened(browser, report, tmp_path)
    first = 'document.querySelector("#results tbody th").textContent'
    head = 'document.querySelector("#results th[data-column=nll]")'
    assert browser.evaluate(first) == max(report["models"], key=lambda name: report["models"][name]["accuracy"]["mean"])
    best = browser.evaluate(first)
    browser.evaluate(f'{head}.querySelector("button").click()')
    assert browser.evaluate(first) == best  # the least log loss
    assert browser.evaluate(f"{head}.ariaSort") == "ascending"
    browser.evaluate(f'{head}.querySelector("button").click()')
    assert browser.evaluate(first) != best
    last = browser.evaluate('document.querySelector("#results tbody tr:last-child").innerHTML')
    assert last.count("<b>") == len(COLUMNS) - 1  # no figure from before the cutoff
    check_calm(browser, tmp_path)


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_never_scrolls_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    opened(browser, sample_report("x" * 300), tmp_path, width=width)
    browser.evaluate('document.querySelectorAll("details").forEach((each) => { each.open = true; })')
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    check_calm(browser, tmp_path)


def test_dark_and_light(browser: Browser, tmp_path: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    toggle = 'document.getElementById("theme")'
    opened(browser, sample_report(), tmp_path)
    light = browser.evaluate(paper)
    opened(browser, sample_report(), tmp_path, dark=True)
    dark = browser.evaluate(paper)
    assert light != dark
    browser.evaluate(f"{toggle}.click()")
    assert browser.evaluate(paper) == light
    browser.evaluate(f"{toggle}.click()")
    assert browser.evaluate(paper) == dark
    check_calm(browser, tmp_path)


def test_nasty_texts_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    report = sample_report(NASTY)
    report["verdict"]["headline"] = NASTY
    opened(browser, report, tmp_path)
    assert browser.evaluate("document.title") == f"Recollect on {NASTY}"
    assert browser.evaluate('document.querySelector("#verdict h2").textContent') == NASTY
    assert browser.evaluate('document.querySelectorAll("img").length') == 0
    check_calm(browser, tmp_path)


def test_the_policy_holds(browser: Browser, tmp_path: Path) -> None:
    opened(browser, sample_report(), tmp_path)
    browser.evaluate('document.body.append(Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}))')
    browser.evaluate(
        'document.body.insertAdjacentHTML("beforeend", "<b onclick=\\"document.title = 1\\" id=\\"evil\\">")'
    )
    browser.evaluate('document.getElementById("evil").click()')
    assert browser.evaluate("document.title") == "Recollect on north"
    assert browser.evaluate('fetch("http://127.0.0.1:9/").then(() => "sent", () => "refused")') == "refused"
    assert all("Content Security Policy" in error for error in browser.errors)
    assert len(browser.errors) >= 3


DRAWN = {
    "models": {"results"},
    "over_time": {"over-time"},
    "calibration": {"calibration"},
    "label_rates": {"drift"},
    "precedents": {"precedents", "examples"},
}


@pytest.mark.parametrize("missing", [*DRAWN, "all of it"])
def test_missing_parts_leave_the_rest(browser: Browser, tmp_path: Path, missing: str) -> None:
    report: dict[str, Any] = sample_report()
    for part in list(report) if missing == "all of it" else [missing]:
        report[part] = None
    opened(browser, report, tmp_path)
    assert set(browser.evaluate(SECTIONS_SHOWN)) == SECTIONS - DRAWN.get(missing, SECTIONS)
    check_calm(browser, tmp_path)


def test_times_may_be_plain_numbers_and_few(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    report["cutoff"] = 0.5
    report["over_time"] = {
        "starts": [0.5],
        "rows": [7],
        "models": {"recollect": {"accuracy": {"mean": [0.9], "low": [0.9], "high": [0.9]}}},
    }
    report["label_rates"] = {"starts": [0.0, 0.5, 0.9], "classes": {"a": [0.1, 0.2, 0.3]}}
    report["precedents"] = {"unit": "", "entropy": [0.5, 0.6], "median_age": [None, 2.0]}
    report["cost"] = {"answer_ms": 2.0, "peak_memory_mb": None}
    opened(browser, report, tmp_path)
    assert browser.evaluate('document.querySelectorAll("#over-time .plot svg[role=img] circle").length') == 1
    assert set(browser.evaluate(SECTIONS_SHOWN)) == SECTIONS - {"examples"}
    assert "NaN" not in browser.evaluate('document.querySelector("main").innerHTML')
    check_calm(browser, tmp_path)
