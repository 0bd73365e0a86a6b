"""A stream posted to the service and the same stream replayed offline give the same probabilities, bit for bit."""

from pathlib import Path

import numpy as np
import polars as pl
import torch

from recollect.client import Client, NewItem
from recollect.data.reading import read_all
from recollect.deployed import Deployed, append_events, create_history
from recollect.trained import Trained
from tests.serving.conftest import TRAINED
from tests.serving.server import served


def test_what_is_replayed_is_what_was_served(made: Path, place: Path, tmp_path: Path) -> None:
    model = Trained.load(made / "model")
    assert model.intake is not None
    events, _ = read_all(made / "all.csv", model.intake.schema)
    raw = pl.read_csv(made / "all.csv").select(model.intake.schema.features).to_dicts()
    assert events.label is not None
    said = []
    with served(place) as (url, service), Client(url) as client:
        for row in range(TRAINED, len(events)):
            moment = service.rows.shown(events.time[row].item())
            said += client.predict([raw[row]], as_of=moment)
            known_at = service.rows.shown(events.known_at[row].item())
            new = NewItem(events.id[row], raw[row], events.label[row], moment, known_at)
            assert client.add([new]) == ["added"]
        # All at once, and in company, it is the same still.
        again = client.predict([raw[TRAINED]] * 3, as_of=said[0].as_of)
        assert [each.probabilities for each in again] == [said[0].probabilities] * 3
    # Offline: the same rows from a file into another history.
    with create_history(tmp_path / "offline", model) as writer:
        append_events(writer, model, events)
    deployed = Deployed.open(made / "model", tmp_path / "offline")
    replayed = np.exp(deployed.live.answer_items(torch.arange(TRAINED, len(events))).log_probs.numpy())
    names = deployed.classes
    expected = [dict(zip(names, map(float, row), strict=True)) for row in replayed]
    assert [each.probabilities for each in said] == expected
    assert len({str(each) for each in expected}) > 10  # they do differ from one another
