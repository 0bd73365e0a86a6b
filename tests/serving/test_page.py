"""The page in a real browser: ask, look at precedents, append an item, and see the answer change."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recollect.client import Client
from recollect.serving.settings import Tokens
from tests.comparison.browser import Browser, chromium, chromium_or_skip
from tests.serving.server import served, wait_for
from tests.serving.test_service import ROW

TOKEN = "a-token-for-the-page"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(chromium_or_skip(), tmp_path_factory.mktemp("profile")) as running:
        yield running


def until(browser: Browser, script: str) -> Any:
    return wait_for(lambda: browser.evaluate(script))


def submit(browser: Browser) -> None:
    browser.evaluate("document.querySelector('#input button[type=submit]').click()")


def ask(browser: Browser) -> None:
    for name, value in ROW.items():
        browser.evaluate(f"document.getElementById('field-{name}').value = {value}")
    submit(browser)
    until(browser, "!document.getElementById('precedents').hidden")


def append(browser: Browser, label: str) -> None:
    browser.evaluate(
        f"document.getElementById('truth').value = '{label}';document.querySelector('#teach button').click()"
    )
    until(browser, "document.getElementById('taught').textContent.includes('is an item now')")


def paste(browser: Browser, text: str) -> None:
    browser.evaluate(
        f"document.getElementById('json').value = {json.dumps(text)};"
        "document.getElementById('json').dispatchEvent(new Event('input'))"
    )


def said(browser: Browser, id: str) -> str:
    """What is to be seen there."""
    found = browser.evaluate(
        f"document.getElementById('{id}').hidden ? '' : document.getElementById('{id}').textContent"
    )
    return str(found)


def test_append_an_item_and_see_the_answer_change(place: Path, browser: Browser) -> None:
    with served(place) as (url, _):
        browser.open(url)
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        assert "360" in browser.evaluate("document.getElementById('facts').textContent")
        ask(browser)
        before = browser.evaluate("document.getElementById('probabilities').textContent")
        assert browser.evaluate("document.querySelectorAll('#precedents tbody tr').length") == 9
        append(browser, "something new")
        after = browser.evaluate("document.getElementById('probabilities').textContent")
        assert "something new" in after
        assert "+" in after
        assert "something new" not in before
        until(browser, "document.getElementById('facts').textContent.includes('361')")
        assert "running accuracy 0.0% of 1 label" in until(browser, "document.querySelector('.legend')?.textContent")
        # A precedent becomes the input, which can be asked as it is.
        browser.evaluate("document.querySelector('#precedents tbody tr:nth-child(2) button').click()")
        until(browser, "document.getElementById('pick').value !== ''")
        submit(browser)
        until(browser, "document.getElementById('taught').textContent === '' && answer.precedents.length === 8")
        assert said(browser, "error") == ""
        assert browser.errors == []
        assert all(each.startswith((url, "data:")) for each in browser.requests)


def test_an_input_that_is_not_kept_becomes_an_item_all_the_same(place: Path, browser: Browser) -> None:
    with served(place, keep_seconds=0.0) as (url, _):
        browser.open(url)
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        ask(browser)
        append(browser, "1")
        assert "the running accuracy doesn't count it" in said(browser, "taught")
        until(browser, "document.getElementById('facts').textContent.includes('361')")


def test_mistakes_are_shown_until_the_next_action(place: Path, browser: Browser) -> None:
    with served(place) as (url, _):
        browser.open(url, width=400)
        until(browser, "document.querySelectorAll('#fields input').length === 6")
        paste(browser, '{"feat_1": 0.25}')
        until(browser, "document.getElementById('field-feat_1').value === '0.25'")
        browser.evaluate("document.getElementById('field-feat_2').value = 'much'")
        submit(browser)
        until(browser, "document.getElementById('error').textContent === 'feat_2 is not a number'")
        browser.evaluate("keepUp()")  # as every few seconds
        assert said(browser, "error") == "feat_2 is not a number"
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        paste(browser, '{"feat_1": ')
        assert said(browser, "error").startswith("what was pasted is not JSON")
        submit(browser)  # nothing else is sent in its place
        assert said(browser, "error").startswith("what was pasted is not JSON")
        assert browser.evaluate("document.getElementById('answer').hidden")
        paste(browser, '{"feat_1": 0.25, "feat_9": 1, "target": "1"}')
        assert said(browser, "error") == ""
        assert said(browser, "strangers").endswith("refuses them: feat_9, target")
        submit(browser)
        until(browser, "document.getElementById('error').textContent.includes('feat_9: is no feature of this model')")
        paste(browser, "")
        assert said(browser, "error") == said(browser, "strangers") == ""


def test_a_pasted_row_goes_as_it_is(tickets: Path, browser: Browser) -> None:
    row = {"text": "two lines:\nthis is  the other ", "place": [0.25, -1.5], "price": 0.1, "shop": None}
    with served(tickets) as (url, _), Client(url) as client:
        browser.open(url)
        until(browser, "document.querySelectorAll('#fields [data-column]').length === 4")
        paste(browser, json.dumps(row))
        submit(browser)
        until(browser, "!document.getElementById('precedents').hidden")
        assert browser.evaluate("asked") == row
        first = browser.evaluate("answer.id")
        append(browser, "sorry")
        item = client.item(first)
        assert item is not None
        stored = {name: value for name, value in row.items() if name != "place"}  # lists are not shown again
        assert (item.label, item.row) == ("sorry", stored)
        # Among all that the model looked at: which of it is shown on the page is for its attention to say.
        (looked_at,) = client.predict([row], precedents=64)
        (same,) = [each for each in looked_at.precedents if each.id == first]
        assert same.similarity > 0.999
        # What is typed over it counts, the rest stays.
        browser.evaluate("document.getElementById('field-price').value = '3'")
        browser.evaluate("document.getElementById('field-place').value = '[1, 2]'")
        submit(browser)
        until(browser, "asked.price === 3 && document.getElementById('taught').textContent === ''")
        assert browser.evaluate("asked") == {**row, "price": 3, "place": [1, 2]}
        assert "of 1 label" in until(browser, "document.querySelector('.legend')?.textContent")


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
