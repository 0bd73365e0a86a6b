"""Lookups over a history on disk: the same as in memory, and blind to the future, however items came."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.config import RehearsalMix, StepSettings, TrainSettings
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.key_table import KeyTable
from recollect.history.reader import History, Snapshot
from recollect.history.visibility import Window
from recollect.history.writer import HistoryWriter
from recollect.inputs import Lookup
from recollect.predictor import Predictions, Predictor
from recollect.records import Clock
from recollect.training.batches import HistoryRows, known_before
from recollect.training.loop import Run, train
from tests.checks import assert_same
from tests.tiny import KEY_DIM, make_history, make_objective, make_rows, make_system, seeded

SCHEMA = Schema(
    Key(KEY_DIM),
    (Column("text", shape=(KEY_DIM,)), Column("amount", shape=(1,)), Column("shop", "int64")),
    time="number",
    id="integer",
)


def items_of(order: Tensor) -> dict[str, Any]:
    """Items of the small history, in an order of choice; ids say which is which."""
    history = make_history()
    columns = {name: value[order] for name, value in history.features.items()}
    columns |= {"key": history.keys[order], "label": history.labels[order], "id": order}
    return columns | {"time": history.times[order], "known_at": history.known_at[order]}


def stored(folder: Path, order: Tensor, parts: int = 1) -> Snapshot:
    with HistoryWriter.create(folder, SCHEMA) as writer:
        for part in order.chunk(parts):
            writer.append(items_of(part))
    return History.open(folder).snapshot


def test_training_on_disk_and_in_memory_gives_the_same_bits(tmp_path: Path) -> None:
    weights = []
    on_disk = Lookup(KeyTable().follow(stored(tmp_path / "history", torch.arange(60), parts=7)))
    for lookup in (make_rows().lookup, on_disk):
        objective = make_objective(StepSettings(samples=2, rehearsal=RehearsalMix(0.5)))
        rows = HistoryRows(lookup, known_before(lookup.view, 20.0))
        train(objective, rows.between(5, 30), rows.between(30, 40), TrainSettings(), Run(5, 8, validate_every=2))
        weights.append(objective.state_dict())
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


@pytest.mark.parametrize("parts", [1, 4, 60])
@pytest.mark.parametrize("window", [Window(), Window(items=9), Window(time=7.0)])
def test_the_order_in_which_items_came_changes_no_answer(tmp_path: Path, parts: int, window: Window) -> None:
    predictor, history = Predictor(make_system()), make_history()
    inputs = replace(make_rows().lookup, window=window)
    expected = predictor.predict(inputs.inputs(history.features, history.keys, history.times))
    shuffled = torch.randperm(60, generator=seeded(parts))
    for moment in history.known_at.unique():  # what became known at the same moment stays in its order
        tied = history.known_at[shuffled] == moment
        shuffled[tied] = shuffled[tied].sort().values
    table = KeyTable()
    with HistoryWriter.create(tmp_path / "history", SCHEMA) as writer:
        reader = History.open(tmp_path / "history")
        for part in shuffled.chunk(parts):
            writer.append(items_of(part))
            view = table.follow(reader.refresh())
    assert (len(view.tail) > 0) == (parts > 1)
    found = predictor.predict(Lookup(view, window=window).inputs(history.features, history.keys, history.times))
    # The sum of probabilities may be taken in another order; positions are names that each view gives anew.
    torch.testing.assert_close(found.probability, expected.probability)
    ids = torch.from_numpy(view.source.column("id"))[view.at("row", found.positions)]
    ids = torch.where(found.positions >= 0, ids, -1)
    assert_same(replace(found, positions=ids, probability=expected.probability), expected)


def test_half_precision_and_nanoseconds(tmp_path: Path) -> None:
    schema = Schema(Key(2, "bfloat16"), (Column("x", "float16", (3,)), Column("kind", "int8")))
    start = 1_700_000_000_000_000_000
    with HistoryWriter.create(tmp_path / "history", schema) as writer:
        writer.append(
            {
                "id": ["a", "b", "c"],
                "time": np.array([start, start + 10**9, start + 2 * 10**9]),
                "label": [0, 1, 1],
                "key": torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
                "x": np.ones((3, 3), dtype=np.float16),
                "kind": [0, 1, 2],
            }
        )
    view = KeyTable(Clock(start, 10**9)).follow(History.open(tmp_path / "history").snapshot)
    assert view.items.key.dtype == torch.bfloat16
    assert view.items.recency.tolist() == [0.0, 1.0, 2.0]
    lookup = Lookup(view, columns=("x", "kind"))
    inputs = lookup.inputs({}, torch.zeros(2, 2), torch.tensor([start + 2 * 10**9, start + 2 * 10**9 + 1]))
    assert inputs.visible.stop.tolist() == [2, 3]
    assert inputs.as_of.tolist() == [2.0, 2.000000001]
    fetched = inputs.fetch(inputs.rows, torch.tensor([[[0, 1]], [[2, -1]]]))
    assert fetched.features["x"].dtype == torch.float32
    assert fetched.features["kind"].tolist()[0] == [[0, 1]]
    assert fetched.times is not None
    assert fetched.times[0].tolist() == [[0.0, 1.0]]
    less = Lookup(view, columns=("x",), of_inputs=("kind",))
    assert list(less.fetch(inputs.rows, torch.tensor([[[0, 1]], [[2, -1]]])).features) == ["x"]
    assert list(less.inputs_at(torch.tensor([0, 2])).features) == ["x", "kind"]


def test_excluded_ids_are_not_retrieved(tmp_path: Path) -> None:
    history = make_history()
    snapshot = stored(tmp_path / "history", torch.arange(60))
    lookup, predictor = Lookup(KeyTable().follow(snapshot)), Predictor(make_system())
    inputs = lookup.inputs(history.features, history.keys, history.times)
    best = predictor.predict(inputs).positions
    excluded = torch.where(best >= 0, torch.from_numpy(snapshot.find(best.clamp(min=0).flatten())).view_as(best), -1)
    less = predictor.predict(lookup.inputs(history.features, history.keys, history.times, excluded)).positions
    assert not bool(((less.unsqueeze(2) == best.unsqueeze(1)) & (best.unsqueeze(1) >= 0)).any())
    assert bool((less >= 0).any())


# Leaks: what is done to items that were not known yet changes no bit, on disk as it is there.


@dataclass(frozen=True)
class Future:
    """What happens after the moment: items added with labels known then or later, old ones corrected then."""

    add: int
    correct: int
    seed: int

    def happen(self, writer: HistoryWriter, moment: float) -> None:
        generator = seeded(self.seed)
        late = torch.randint(9, (self.add,), generator=generator)
        # They may have happened long ago: what counts is when they became known.
        times = moment - torch.randint(9, (self.add,), generator=generator).double()
        for index in range(self.add):  # one by one, so that some come out of order
            writer.append(
                {
                    "id": [1000 + index],
                    "time": times[index : index + 1],
                    "known_at": moment + late[index : index + 1].double(),
                    "label": [7],
                    "key": torch.full((1, KEY_DIM), 1e6),
                    "text": torch.full((1, KEY_DIM), torch.nan),
                    "amount": torch.full((1, 1), torch.inf),
                    "shop": [10**9],
                }
            )
        history = make_history()
        known = (history.known_at < moment).nonzero().squeeze(1)
        for index in known[torch.randperm(len(known), generator=generator)][: self.correct].tolist():
            writer.correct([index], [8], moment + 1)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    future=st.builds(Future, st.integers(0, 6), st.integers(0, 5), st.integers(0, 2**32)),
    moment=st.sampled_from([3.0, 12.0, 20.0, 28.0]),
    reopened=st.booleans(),
)
def test_the_future_changes_no_bit_of_a_prediction(
    tmp_path_factory: pytest.TempPathFactory, future: Future, moment: float, reopened: bool
) -> None:
    folder = tmp_path_factory.mktemp("leak") / "history"
    predictor, history, table = Predictor(make_system()), make_history(), KeyTable()
    as_of = torch.full((60,), moment, dtype=torch.float64)
    # Only what was known before the moment is there at first.
    order = torch.arange(60)[history.known_at < moment]
    order = order[torch.randperm(len(order), generator=seeded(future.seed))]
    with HistoryWriter.create(folder, SCHEMA) as writer:
        if len(order):
            writer.append(items_of(order))
        reader = History.open(folder)

        def answer(table: KeyTable) -> Predictions:
            lookup = Lookup(table.follow(reader.refresh()))
            return predictor.predict(lookup.inputs(history.features, history.keys, as_of))

        before = answer(table)
        future.happen(writer, moment)
        assert_same(answer(KeyTable() if reopened else table), before)


@pytest.mark.parametrize("erased", [[0], [0, 1, 2], list(range(60))])
def test_an_empty_slot_needs_no_item_that_was_erased(tmp_path: Path, erased: list[int]) -> None:
    stored(tmp_path / "history", torch.arange(60))
    with HistoryWriter.open(tmp_path / "history") as writer:
        writer.erase(erased)
    lookup = Lookup(KeyTable().follow(History.open(tmp_path / "history").snapshot))
    there = 59 if len(erased) < 60 else -1
    found = lookup.features_at(torch.tensor([[-1, there]]))
    assert {name: value.shape[:2] for name, value in found.items()} == dict.fromkeys(found, (1, 2))
    assert all(value.isfinite().all() for value in found.values())
