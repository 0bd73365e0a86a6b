"""What was computed of items, kept on disk: used where it fits, ignored where anything differs."""

import shutil
from pathlib import Path

import torch

from recollect.client import Client, NewItem
from recollect.deployed import Deployed
from recollect.history.writer import HistoryWriter
from recollect.serving.record import FORMAT, HeadsRecord
from tests.serving.server import served
from tests.serving.test_service import ROW


def scored(deployed: Deployed) -> int:
    return len(deployed.live.record()["rows"])


def test_a_record_is_used_where_it_fits(place: Path, tmp_path: Path) -> None:
    deployed = Deployed.open(place / "model", place / "history")
    deployed.live.catch_up(torch.tensor([deployed.now()]))
    assert scored(deployed) > 40
    record = HeadsRecord(deployed, tmp_path)
    record.save()
    again = Deployed.open(place / "model", place / "history")
    assert scored(again) == 0
    assert HeadsRecord(again, tmp_path).load()
    assert scored(again) == scored(deployed)
    for name, tensor in deployed.live.record().items():
        torch.testing.assert_close(again.live.record()[name], tensor, rtol=0, atol=0, equal_nan=True)
    data = record.path.read_bytes()
    for damaged in (
        data[:-1],
        data[:-1] + b"x",
        b"{}\n" + data,
        b"",
        data.replace(f'"format": {FORMAT}'.encode(), b'"format": 2'),
    ):
        record.path.write_bytes(damaged)
        assert not HeadsRecord(Deployed.open(place / "model", place / "history"), tmp_path).load()
    record.path.write_bytes(data)
    # Another history in the same place: its items are others.
    with HistoryWriter.open(place / "history") as writer:
        writer.erase(["row-359"])
        writer.compact()
    assert not HeadsRecord(Deployed.open(place / "model", place / "history"), tmp_path).load()


def test_a_service_starts_from_what_it_had_computed(place: Path) -> None:
    with served(place) as (url, _), Client(url) as client:
        client.add([NewItem("a", ROW, "1")])
        before = client.predict([ROW])[0]
    files = list((place / "state").glob("record-*.bin"))
    assert len(files) == 1
    with served(place) as (url, service), Client(url) as client:
        assert client.predict([ROW], as_of=before.as_of)[0].probabilities == before.probabilities
        assert service.engine.unscored == 0
    shutil.rmtree(place / "state")
    with served(place) as (url, _), Client(url) as client:
        assert client.predict([ROW], as_of=before.as_of)[0].probabilities == before.probabilities
