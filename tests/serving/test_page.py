"""The page in a real browser: ask, look at precedents, append an item, and see the answer change."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.serving.settings import Tokens
from tests.comparison.browser import Browser, chromium, find_chromium
from tests.serving.server import served, wait_for
from tests.serving.test_service import ROW

TOKEN = "a-token-for-the-page"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("there is no Chromium here")
    with chromium(binary, tmp_path_factory.mktemp("profile")) as running:
        yield running


def until(browser: Browser, script: str) -> Any:
    return wait_for(lambda: browser.evaluate(script))


def ask(browser: Browser) -> None:
    for name, value in ROW.items():
        browser.evaluate(f"document.getElementById('field-{name}').value = {value}")
    browser.evaluate("document.querySelector('#input button[type=submit]').click()")
    until(browser, "!document.getElementById('precedents').hidden")


def test_append_an_item_and_see_the_answer_change(place: Path, browser: Browser) -> None:
    with served(place) as (url, _):
        browser.open(url)
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        assert "360" in browser.evaluate("document.getElementById('facts').textContent")
        ask(browser)
        before = browser.evaluate("document.getElementById('probabilities').textContent")
        assert browser.evaluate("document.querySelectorAll('#precedents tbody tr').length") == 9
        browser.evaluate(
            "document.getElementById('truth').value = 'something new';document.querySelector('#teach button').click()"
        )
        until(browser, "document.getElementById('taught').textContent.includes('is an item now')")
        after = browser.evaluate("document.getElementById('probabilities').textContent")
        assert "something new" in after
        assert "+" in after
        assert "something new" not in before
        until(browser, "document.getElementById('facts').textContent.includes('361')")
        assert until(browser, "document.querySelector('#over-time svg') !== null")
        # A precedent becomes the input.
        browser.evaluate("document.querySelector('#precedents tbody tr:nth-child(2) button').click()")
        until(browser, "document.getElementById('pick').value !== ''")
        assert browser.errors == []
        assert all(each.startswith((url, "data:")) for each in browser.requests)


def test_pasting_and_mistakes(place: Path, browser: Browser) -> None:
    with served(place) as (url, _):
        browser.open(url, width=400)
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        browser.evaluate(
            "const box = document.getElementById('json'); box.value = '{\"feat_1\": 0.25}';"
            "box.dispatchEvent(new Event('input'))"
        )
        until(browser, "document.getElementById('field-feat_1').value === '0.25'")
        browser.evaluate(
            "document.getElementById('field-feat_2').value = 'much';"
            "document.querySelector('#input button[type=submit]').click()"
        )
        until(browser, "document.getElementById('error').textContent === 'feat_2 is not a number'")
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_token_is_asked_for(place: Path, browser: Browser) -> None:
    with served(place, tokens=Tokens.from_environment({"RECOLLECT_PREDICT_TOKEN": TOKEN})) as (url, _):
        browser.open(url)
        until(browser, "!document.getElementById('sign-in').hidden")
        browser.evaluate(
            f"document.getElementById('token').value = '{TOKEN}';document.querySelector('#sign-in button').click()"
        )
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        assert browser.evaluate("document.getElementById('sign-in').hidden")
        ask(browser)
        assert browser.evaluate("document.getElementById('teach').hidden")  # it may not write
        assert browser.evaluate("document.querySelectorAll('#precedents th').length") == 5  # nor see payloads
