"""What /openapi.json shows: examples of the very table that is served, which work; and the scope of each operation."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from jsonschema_rs import Draft202012Validator

from recollect.client import Client
from recollect.serving.settings import Tokens
from tests.serving.server import served
from tests.serving.test_service import ROW, refused

TOKEN, PAYLOADS = "a-token-for-everything", "a-token-for-rows-alone"
SCOPES = {
    ("/predict", "post"): "predict",
    ("/items", "post"): "write",
    ("/labels", "post"): "write",
    ("/items/{id}", "get"): "predict",
    ("/items/{id}", "patch"): "write",
    ("/items/{id}", "delete"): "write",
    ("/health", "get"): None,
    ("/ready", "get"): None,
    ("/status", "get"): "predict",
    ("/metrics", "get"): "predict",
    ("/admin/reload", "post"): "write",
}


def sent(url: str, method: str = "get", body: Any = None) -> Any:
    """What comes back for it; an error if that is no success."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method.upper())
    with urlopen(request, timeout=60) as response:
        return json.load(response)


def operations(contract: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(path, method): each for path, methods in contract["paths"].items() for method, each in methods.items()}


def check(contract: dict[str, Any], content: dict[str, Any]) -> Any:
    """The example of a body, which is as its schema says."""
    Draft202012Validator({**content["schema"], "components": contract["components"]}).validate(content["example"])
    return content["example"]


@pytest.mark.parametrize("table", ["place", "tickets"])
def test_examples_are_of_the_table_and_work(table: str, request: pytest.FixtureRequest) -> None:
    with served(request.getfixturevalue(table)) as (url, service):
        contract = sent(f"{url}/openapi.json")
        found = operations(contract)
        answers: dict[tuple[str, str], Any] = {}
        for name, operation in found.items():
            for code, response in operation["responses"].items():
                for content in response["content"].values():
                    example = check(contract, content)
                    if code == "200":
                        answers[name] = example
        said = answers["/predict", "post"]["predictions"][0]
        assert set(said["probabilities"]) == set(service.engine.deployed.snapshot.classes)
        assert set(said["precedents"][0]["row"]) == set(service.rows.schema.features)
        for name in [("/predict", "post"), ("/items", "post"), ("/labels", "post"), ("/items/{id}", "patch")]:
            body = check(contract, found[name]["requestBody"]["content"]["application/json"])
            assert set(sent(url + name[0].format(id="order-17"), name[1], body)) == set(answers[name])


def test_scopes_are_named(place: Path) -> None:
    tokens = Tokens.from_environment({"RECOLLECT_TOKEN": TOKEN, "RECOLLECT_PAYLOADS_TOKEN": PAYLOADS})
    with served(place, tokens=tokens) as (url, _), Client(url, token=PAYLOADS, retries=0) as rows_alone:
        found = operations(sent(f"{url}/openapi.json"))
        assert set(found) == set(SCOPES)
        for name, scope in SCOPES.items():
            said = f"Needs the scope `{scope}`." if scope else "Needs no token."
            assert found[name]["description"].endswith(said), name
            assert found[name].get("security") == ([{"HTTPBearer": [scope]}] if scope else None)
        for call in (rows_alone.predict, rows_alone.label):
            refused(403, "no-scope", call, [ROW] if call == rows_alone.predict else {"a": "1"})
        refused(403, "no-scope", rows_alone.item, "row-1")


def test_an_id_given_twice_is_refused(place: Path) -> None:
    with served(place) as (url, _), Client(url, retries=0) as client:
        told = refused(422, "invalid", client.predict, [ROW, ROW, ROW], ids=["a", "b", "a"])
        assert told.errors[0]["pointer"] == "#/inputs/2/id"
        assert "the id a stands in this request twice" in told.detail
        assert len(client.predict([ROW, ROW])) == 2  # those without an id get one each
        refused(404, "no-such-input", client.label, {"a": "1"})
