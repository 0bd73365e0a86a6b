"""What the service does, asked over real connections: predicting, writing, correcting, erasing, looking, reloading."""

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.client import Client, NewItem, ServiceError
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from recollect.serving.app import make_app
from recollect.serving.engine import Asked
from recollect.serving.problems import Problem
from recollect.serving.rows import Given
from recollect.serving.service import Service
from recollect.serving.settings import Limits, Settings, Tokens
from tests.serving.server import served

ROW = {"feat_1": 0.3, "feat_2": 0.05, "feat_3": 0.4, "feat_4": 0.003, "feat_5": 0.42, "feat_6": 0.41}
OTHER = {**ROW, "feat_1": 0.9, "feat_2": None}


@pytest.fixture
def running(place: Path) -> Iterator[tuple[Client, Service]]:
    with served(place) as (url, service), Client(url, retries=0) as client:
        yield client, service


def refused(status: int, kind: str, call: object, *arguments: object, **named: object) -> ServiceError:
    with pytest.raises(ServiceError) as found:
        call(*arguments, **named)  # type: ignore[operator]
    assert (found.value.status, found.value.kind) == (status, kind), found.value
    return found.value


def test_an_item_counts_in_the_next_prediction(running: tuple[Client, Service]) -> None:
    client, _ = running
    before = client.predict([ROW, OTHER], precedents=3)
    assert [len(each.precedents) for each in before] == [3, 3]
    assert sum(before[0].probabilities.values()) == pytest.approx(1, abs=1e-5)
    assert before[0].precedents[0].row is not None
    news = [NewItem(f"new-{number}", ROW, "never seen") for number in range(20)]
    assert client.add(news) == ["added"] * 20
    assert client.add(news[:3]) == ["there"] * 3
    after = client.predict([ROW], precedents=64)[0]
    assert after.version == before[0].version + 1
    assert after.probabilities["never seen"] > 0
    assert {f"new-{number}" for number in range(20)} & {each.id for each in after.precedents}
    assert all(each.age >= 0 for each in after.precedents)


def test_the_same_id_with_another_label_is_refused_as_a_whole(running: tuple[Client, Service]) -> None:
    client, service = running
    client.add([NewItem("a", ROW, "1")])
    told = refused(409, "other-label", client.add, [NewItem("b", ROW, "1"), NewItem("a", ROW, "0")])
    assert "PATCH" in told.detail
    assert told.errors[0]["pointer"] == "#/items/1"
    assert client.item("b") is None
    refused(409, "other-label", client.add, [NewItem("c", ROW, "1"), NewItem("c", ROW, "0")])
    assert client.add([NewItem("c", ROW, 1), NewItem("c", ROW, "1.0")]) == ["added", "there"]  # 1 is 1.0
    assert service.writing.snapshot().find(["a", "b", "c"]).tolist() == [360, -1, 361]


def test_what_is_sent_again_is_compared(running: tuple[Client, Service]) -> None:
    client, _ = running
    moment = "2000-01-01T00:00:00Z"
    first = NewItem("a", ROW, "1", moment)
    assert client.add([first]) == ["added"]
    assert client.correct("a", "0")
    assert client.add([first, NewItem("a", ROW, "0"), NewItem("b", ROW, "1")]) == ["there", "there", "added"]
    told = refused(409, "other-content", client.add, [NewItem("a", OTHER, "1", moment)])
    assert "'a' is there with another row" in told.detail
    assert "PATCH" in told.detail
    told = refused(409, "other-content", client.add, [NewItem("a", ROW, "1", "2000-01-02T00:00:00Z")])
    assert "another time" in told.detail
    told = refused(409, "other-content", client.add, [NewItem("a", ROW, "0", moment, moment)])
    assert "another known_at" in told.detail
    refused(409, "other-content", client.add, [NewItem("c", ROW, "1"), NewItem("c", OTHER, "1")])
    assert client.item("c") is None
    assert client.add([NewItem("a", ROW, "0")]) == ["there"]


def test_ids_are_kept_as_they_are(running: tuple[Client, Service]) -> None:
    client, _ = running
    client.add([NewItem("17.0", ROW, "1"), NewItem("17", ROW, "0")])
    found = [client.item(name) for name in ("17.0", "17")]
    assert [each.label for each in found if each] == ["1", "0"]
    client.predict([ROW], ids=["18.0"])
    assert client.label({"18.0": "1"}) == ["added"]
    assert client.erase("18.0")
    assert client.erase("17.0")
    assert client.item("17") is not None


def test_what_is_stored_is_acknowledged_even_if_it_can_not_be_counted(running: tuple[Client, Service]) -> None:
    client, service = running
    client.predict([ROW, ROW], ids=["a", "b"])
    service.kept.flush()
    lock = sqlite3.connect(service.kept.path)
    service.kept._database.execute("pragma busy_timeout = 10")
    lock.execute("begin immediate")
    assert client.label({"a": "1"}) == ["added"]
    assert client.add([NewItem("b", ROW, "1")]) == ["added"]
    lock.close()
    assert client.label({"a": "1"}) == ["there"]


def test_a_label_alone_makes_an_item_of_what_was_predicted(running: tuple[Client, Service]) -> None:
    client, service = running
    (said,) = client.predict([OTHER], ids=["asked-1"])
    assert client.label({"asked-1": "1"}) == ["added"]
    assert client.label({"asked-1": "1"}) == ["there"]
    refused(409, "other-label", client.label, {"asked-1": "0"})
    item = client.item("asked-1")
    assert item is not None
    assert (item.label, item.row, item.time) == ("1", OTHER, said.as_of)
    assert item.known_at > item.time
    told = refused(404, "no-such-input", client.label, {"asked-2": "1", "asked-1": "1"})
    assert "/items" in told.detail
    (unnamed,) = client.predict([ROW])
    assert client.label({unnamed.id: "0"}) == ["added"]
    hours = client.status()["hours"]
    assert (sum(each["predictions"] for each in hours), sum(each["labelled"] for each in hours)) == (2, 2)
    right = (said.label == "1") + (unnamed.label == "0")
    assert service.metrics.registry.get_sample_value("recollect_running_accuracy") == right / 2


def test_what_was_sent_with_known_at_may_be_sent_again(running: tuple[Client, Service]) -> None:
    client, _ = running
    (said,) = client.predict([ROW], ids=["asked"])
    soon = datetime.fromisoformat(said.as_of) + timedelta(milliseconds=1)
    time.sleep(0.05)
    for status in ("added", "there"):
        assert client.label({"asked": "1"}, known_at=soon.isoformat()) == [status]
    ahead = (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    for status in ("added", "there"):
        assert client.add([NewItem("ahead", ROW, "1", None, ahead)]) == [status]
        time.sleep(0.6)


def test_a_label_for_an_id_that_was_asked_again_with_another_row(running: tuple[Client, Service]) -> None:
    client, service = running
    client.predict([ROW], ids=["a"])
    assert client.label({"a": "1"}) == ["added"]
    client.predict([OTHER], ids=["a"])
    told = refused(409, "other-content", client.label, {"a": "1"})
    assert "another row" in told.detail
    client.predict([ROW], ids=["a"])
    assert client.label({"a": "1"}) == ["there"]
    assert sum(each["labelled"] for each in client.status()["hours"]) == 1
    assert service.metrics.registry.get_sample_value("recollect_labels_total") in (None, 1)


def test_what_was_asked_as_of_the_future_can_be_labelled(running: tuple[Client, Service]) -> None:
    client, _ = running
    client.predict([ROW], ids=["a"], as_of="2100-01-01T00:00:00Z")
    assert client.label({"a": "1"}) == ["added"]
    item = client.item("a")
    assert item is not None
    assert item.time <= item.known_at < "2100"


def test_answers_as_of_now_are_those_of_a_replay_also_while_items_arrive(place: Path) -> None:
    """What an answer doesn't see yet must not have become known before it."""
    said: list[dict[str, Any]] = []
    stop = threading.Event()

    def add(url: str) -> None:
        with Client(url) as client:
            while not stop.is_set():
                client.add([NewItem(uuid4().hex, OTHER, "1")])

    def ask(url: str) -> None:
        with Client(url) as client:
            said.extend(client._send("POST", "/predict", {"inputs": [{"row": ROW}]}) for _ in range(12))

    with served(place) as (url, _), Client(url) as client:
        adding, asking = ([threading.Thread(target=work, args=(url,)) for _ in range(2)] for work in (add, ask))
        for thread in (*adding, *asking):
            thread.start()
        for thread in asking:
            thread.join()
        stop.set()
        for thread in adding:
            thread.join()
        scored = [each for each in said if each["unscored"] == 0]
        assert len({each["version"] for each in scored}) > 3
        for each in scored:
            (again,) = client.predict([ROW], as_of=each["as_of"])
            assert again.probabilities == each["predictions"][0]["probabilities"]


def test_corrections_count_from_a_moment_on(running: tuple[Client, Service]) -> None:
    client, service = running
    client.add([NewItem("a", ROW, "1", "2000-01-01T00:00:00Z", "2000-01-02T00:00:00Z")])
    assert client.correct("a", "0", at="2001-01-01T00:00:00Z")
    assert not client.correct("a", "0")
    item = client.item("a")
    assert item is not None
    assert (item.label, item.known_at) == ("0", "2001-01-01T00:00:00.000000000Z")
    refused(409, "impossible-time", client.correct, "a", "1", at="1999-01-01T00:00:00Z")
    refused(409, "impossible-time", client.correct, "a", "1", at="2200-01-01T00:00:00Z")
    refused(404, "no-such-item", client.correct, "nothing", "1")
    old = service.writing.snapshot().as_of(service.rows.moment("2000-06-01T00:00:00Z", "#"))
    assert old.snapshot.classes[old.column("label")[-1]] == "1"


def test_what_was_erased_stays_away(running: tuple[Client, Service]) -> None:
    client, service = running
    client.predict([ROW], ids=["a"])
    client.label({"a": "1"})
    client.predict([ROW], ids=["a"])  # kept once more
    service.kept.flush()
    assert client.erase("a")
    assert client.item("a") is None
    refused(404, "no-such-input", client.label, {"a": "1"})
    assert not client.erase("a")
    assert "a" not in {each.id for each in client.predict([ROW], precedents=64)[0].precedents}
    assert b'"a"' not in service.kept.path.read_bytes()


def test_answers_as_of_a_moment_see_nothing_newer(running: tuple[Client, Service]) -> None:
    client, _ = running
    moment = "1996-05-10T00:00:00Z"
    before = client.predict([ROW], as_of=moment)[0]
    client.add([NewItem("late", ROW, "1", "1996-05-09T00:00:00Z")])  # known when it arrives
    assert client.predict([ROW], as_of=moment)[0].probabilities == before.probabilities
    client.add([NewItem("at", ROW, "1", moment, moment)])
    assert client.predict([ROW], as_of=moment)[0].precedents == before.precedents


def test_times_that_can_not_be_are_refused(running: tuple[Client, Service]) -> None:
    client, _ = running
    refused(409, "impossible-time", client.add, [NewItem("a", ROW, "1", "2000-01-02", "2000-01-01")])
    told = refused(409, "impossible-time", client.add, [NewItem("a", ROW, "1", "2200-01-02")])
    assert told.errors == [{"pointer": "#/items/0/time", "detail": "is in the future: give a moment that has come"}]
    refused(422, "invalid", client.add, [NewItem("a", ROW, "1", "yesterday")])
    refused(422, "invalid", client.add, [NewItem("a", ROW, "1", 17.0)])
    refused(422, "invalid", client.predict, [ROW], as_of="1500-01-01")


def test_bad_rows_are_named(running: tuple[Client, Service]) -> None:
    client, _ = running
    told = refused(422, "invalid", client.predict, [ROW, {**ROW, "feat_9": 1}])
    assert told.errors[0]["pointer"] == "#/inputs/1/row/feat_9"
    assert "feat_1" in told.detail
    told = refused(422, "invalid", client.predict, [{"target": "1"}])
    assert "label beside the row" in told.detail
    told = refused(422, "invalid", client.predict, [{"feat_1": "much"}])
    assert "number" in told.detail
    refused(422, "invalid", client.predict, [])
    refused(422, "invalid", client.add, [NewItem("", ROW, "1")])
    refused(422, "invalid", client.add, [NewItem("a\x00", ROW, "1")])
    refused(422, "invalid", client.add, [NewItem("a", ROW, "")])


def test_scopes(place: Path) -> None:
    tokens = Tokens.from_environment(
        {
            "RECOLLECT_TOKEN": "everything-everything",
            "RECOLLECT_PREDICT_TOKEN": "only-predicting-please both-of-these-scopes",
            "RECOLLECT_WRITE_TOKEN": "only-writing-please",
            "RECOLLECT_PAYLOADS_TOKEN": "both-of-these-scopes",
        }
    )
    with served(place, tokens=tokens) as (url, _):
        every, predicting, both, writing, wrong, none = (
            Client(url, token=token, retries=0)
            for token in (
                "everything-everything",
                "only-predicting-please",
                "both-of-these-scopes",
                "only-writing-please",
                "everything-everything2",
                None,
            )
        )
        assert every.add([NewItem("a", ROW, "1")]) == ["added"]
        assert every.predict([ROW])[0].precedents[0].row is not None
        assert both.predict([ROW])[0].precedents[0].row is not None
        assert predicting.predict([ROW])[0].precedents[0].row is None
        item = predicting.item("a")
        assert item is not None
        assert (item.label, item.row) == ("1", None)
        assert predicting.status()["scopes"] == ["predict"]
        refused(403, "no-scope", predicting.add, [NewItem("b", ROW, "1")])
        refused(403, "no-scope", predicting.reload)
        refused(403, "no-scope", writing.predict, [ROW])
        refused(403, "no-scope", writing.item, "a")
        for nobody in (wrong, none):
            refused(401, "no-token", nobody.predict, [ROW])
            refused(401, "no-token", nobody.status)
            assert nobody.ready()
        for each in (every, predicting, both, writing, wrong, none):
            each.close()


def test_a_read_only_service_never_takes_the_lock(place: Path) -> None:
    with served(place, read_only=True) as (url, _), Client(url, retries=0) as client:
        with HistoryWriter.open(place / "history"):
            assert client.predict([ROW])
        refused(403, "read-only", client.add, [NewItem("a", ROW, "1")])
        assert client.status()["writes"] == "never"


def test_two_services_follow_one_history(place: Path) -> None:
    with (
        served(place) as (one, _),
        served(place) as (two, follower),
        Client(one) as writer,
        Client(two, retries=0) as client,
    ):
        assert client.status()["writes"] == "elsewhere"
        told = refused(503, "not-the-writer", client.add, [NewItem("a", ROW, "1")])
        assert "process" in told.detail
        for number in range(3):
            writer.add([NewItem(f"new-{number}", ROW, "new")])
            seen = client.predict([ROW], precedents=64)[0]
            assert f"new-{number}" in {each.id for each in seen.precedents}
        client.predict([ROW], ids=["asked-there"])
        follower.kept.flush()
        assert writer.label({"asked-there": "1"}) == ["added"]


def test_whoever_is_left_becomes_the_writer(place: Path) -> None:
    with served(place) as (url, _), Client(url):
        second = served(place)
        two, _ = second.__enter__()
    with Client(two) as client:
        assert client.add([NewItem("a", ROW, "1")]) == ["added"]
    second.__exit__(None, None, None)


def test_a_full_queue_sends_people_away(place: Path) -> None:
    with served(place, limits=Limits(queue=4, batch=3)) as (url, service), Client(url, retries=0) as client:
        refused(413, "too-many-at-once", client.predict, [ROW] * 4)
        outcomes = []

        def ask() -> None:
            with Client(url, retries=0) as own:
                try:
                    outcomes.append(own.predict([ROW] * 3)[0].label)
                except ServiceError as error:
                    outcomes.append(f"{error.status} {error.kind}")

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "429 queue-full" in outcomes
        assert len(outcomes) == 12
        assert {each for each in outcomes if each not in ("0", "1")} == {"429 queue-full"}
        assert client.predict([ROW])
        assert service.engine.waiting_rows == 0


def test_what_takes_too_long_is_given_up(place: Path) -> None:
    with served(place, limits=Limits(request_seconds=1e-4)) as (url, _), Client(url, retries=0) as client:
        refused(503, "too-late", client.predict, [ROW])
        assert client.ready()


def test_the_model_is_loaded_anew_without_a_dropped_request(running: tuple[Client, Service]) -> None:
    client, service = running
    url = f"http://127.0.0.1:{client._connection.port}"
    going, answers = threading.Event(), []

    def ask() -> None:
        with Client(url, retries=0) as own:
            while not going.is_set():
                answers.append(own.predict([ROW], as_of="1996-05-14T00:00:00Z")[0].probabilities)

    thread = threading.Thread(target=ask)
    thread.start()
    before = service.engine.deployed
    assert client.reload() == service.fingerprint
    assert service.engine.deployed is not before
    going.set()
    thread.join()
    assert answers
    assert all(each == answers[0] for each in answers)
    weights = service.settings.model / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    told = refused(409, "not-loaded", client.reload)
    assert "checksums" in told.detail
    assert client.predict([ROW])


def test_metrics_and_the_contract(running: tuple[Client, Service]) -> None:
    client, service = running
    client.predict([ROW, ROW], ids=["a", "b"])
    client.label({"a": "1"})
    client.predict([ROW])
    text = service.metrics_text().decode()
    for name in ("request_seconds", "batch_rows", "visible_lag_seconds", "attention_entropy_nats", "precedent_age"):
        assert f"recollect_{name}_count" in text
    assert "recollect_history_items 361.0" in text
    assert service.metrics.registry.get_sample_value("recollect_visible_lag_seconds_count") == 1
    client.correct("row-0", "other")
    client.erase("a")
    assert not client.erase("nothing")
    client.predict([ROW], precedents=0)
    assert client.status()["items"] == 360
    assert "recollect_history_items 360.0" in service.metrics_text().decode()
    value = service.metrics.registry.get_sample_value
    assert value("recollect_visible_lag_seconds_count") == 3
    shown = value("recollect_precedent_age_count")
    client.predict([ROW], precedents=0)
    assert shown is not None
    assert value("recollect_precedent_age_count") == shown * 5 / 4  # of all precedents, shown or not
    assert "recollect_predictions_total 3.0" in text
    assert "recollect_is_writer 1.0" in text
    contract = client._send("GET", "/openapi.json")
    assert set(contract["components"]["schemas"]["Row"]["properties"]) == set(ROW)
    assert json.dumps(contract).count("HTTPValidationError") == 0


def test_nothing_is_lost_by_stopping(place: Path) -> None:
    with served(place) as (url, _), Client(url) as client:
        client.predict([ROW], ids=["asked"])
        client.add([NewItem("a", ROW, "1")])
    assert History.open(place / "history").snapshot.find(["a"]).tolist() == [360]
    with served(place) as (url, _), Client(url) as client:
        assert client.label({"asked": "0"}) == ["added"]


def test_a_model_trained_anew_takes_over(made: Path, place: Path) -> None:
    with served(place) as (url, service), Client(url, retries=0) as client:
        before = service.fingerprint
        again = ["train", made / "all.csv", "--model", place / "model", "--force", "--steps", 5]
        retrain(*again, "--label", "target", "--id", "id")
        told = refused(409, "not-loaded", client.reload)
        assert "keys" in told.detail
        assert client._send("POST", "/predict", {"inputs": [{"row": ROW}]})["model"] == before
        service.settings.model.rename(place / "other")
        shutil.copytree(made / "model", place / "model")
        retrain(*again, "--keys-of", place / "model")
        contract = client._send("GET", "/openapi.json")
        after = client.reload()
        assert after != before
        assert client._send("POST", "/predict", {"inputs": [{"row": ROW}]})["model"] == after
        assert client._send("GET", "/ready")["model"] == after
        assert client._send("GET", "/openapi.json")["components"] == contract["components"]


def retrain(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_a_signal_renews_the_contract(place: Path) -> None:
    settings = Settings(place / "model", str(place / "history"), place / "state")
    service = Service(settings)
    contract = make_app(service).openapi
    service.start()
    try:
        before = contract()
        assert contract() is before
        service.reload_now()
        assert contract() is not before
    finally:
        service.close()


def test_answers_as_of_now_come_before_those_of_the_past(place: Path) -> None:
    service = Service(Settings(place / "model", str(place / "history"), place / "state"))
    engine, columns = service.engine, service.rows.inputs([Given(ROW)], "#")
    past = [service.rows.moment(f"1996-05-{day}T00:00:00Z", "#") for day in (13, 14)]
    asked = [Asked(columns, moment, 1, False) for moment in (*past, None)]
    order: list[int | float | None] = []
    for each in asked:
        each.answer.add_done_callback(lambda _, moment=each.as_of: order.append(moment))
    while asked:
        asked = engine._answer(asked)
    assert order == [None, *past]
    other = Asked(columns.rename({"feat_1": "feat_0"}), None, 1, False)
    engine._answer([other])
    with pytest.raises(Problem, match="another table"):
        other.answer.result()
    service.kept.close()
