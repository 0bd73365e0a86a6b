"""Keys made anew while training: by what the network has learned, from the past alone, and without touching an item."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.config import TrainSettings, recipe_named
from recollect.data.key_fitting import fit_pca
from recollect.errors import SettingError
from recollect.evaluation.replay import replay
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.key_table import KeyTable
from recollect.history.reader import History
from recollect.history.writer import HistoryWriter
from recollect.inputs import Lookup
from recollect.training.batches import BatchSource
from recollect.training.fit import fit
from recollect.training.key_refresh import learned_keys, reading_weights, train_refreshing
from recollect.training.loop import Run, train
from recollect.training.slots import select_beforehand
from tests.tiny import SPECS, make_objective, make_rows, make_system
from tests.training.test_fit import SIZES, stream


def test_keys_are_near_where_the_classifier_reads_alike() -> None:
    system = make_system()
    rows = make_rows(60)
    features = rows.lookup.features_at(torch.arange(60))
    # Without its Fourier bands the amount is one column.
    plain = torch.cat(
        [features["text"], features["amount"], torch.nn.functional.one_hot(features["shop"], 3).float()], dim=1
    )
    read = plain.double() @ reading_weights(system, SPECS)
    keys = learned_keys(system, features, SPECS, key_dim=9)
    assert keys.mean is not None
    assert keys.projection is not None
    flat = (plain.double() - keys.mean) @ keys.projection
    torch.testing.assert_close(
        torch.pdist(flat) / torch.pdist(flat).mean(), torch.pdist(read) / torch.pdist(read).mean()
    )
    assert keys(features).shape == (60, 9)


def test_what_is_read_of_a_column_itself_comes_after_its_bands() -> None:
    system = make_system()
    weights = reading_weights(system, SPECS)
    layer = system.classifier.embed_input
    assert isinstance(layer, torch.nn.Linear)
    one = {"text": torch.zeros(1, 4), "amount": torch.zeros(1, 1), "shop": torch.tensor([3])}  # a shop never met
    other = {**one, "amount": torch.full((1, 1), 2.0)}  # whole periods of both bands further
    moved = layer(system.encode(other)) - layer(system.encode(one))
    torch.testing.assert_close(moved, (2.0 * weights[4]).float().unsqueeze(0), atol=1e-5, rtol=1e-4)


def test_other_architectures_have_no_such_layer() -> None:
    with pytest.raises(SettingError, match="which only precedents have"):
        reading_weights(make_system("mlp"), SPECS)


def parts(refreshes: int) -> tuple[dict[str, Tensor], int]:
    rows, settings = make_rows(), TrainSettings(patience=3)
    run = Run(7, 8, seed=1, validate_every=2, validation_size=8)
    objective = make_objective()
    count = iter(range(10))

    def with_keys(state: int) -> tuple[BatchSource, BatchSource]:
        return rows.between(0, 40), rows.between(40, 60)

    best, _ = train_refreshing(objective, next(count), lambda: next(count), with_keys, refreshes, settings, run)
    return objective.state_dict(), best


@pytest.mark.parametrize("refreshes", [1, 2, 6])
def test_training_in_parts_is_one_training(refreshes: int) -> None:
    whole, _ = parts(0)
    divided, best = parts(refreshes)
    assert all(torch.equal(tensor, divided[name]) for name, tensor in whole.items())
    assert 0 <= best <= refreshes


def test_the_keys_that_are_kept_are_those_of_the_best_weights() -> None:
    rows = make_rows()
    objective = make_objective()
    run = Run(6, 8, seed=1, validate_every=1, validation_size=8)
    settings = TrainSettings(patience=10)
    best_step = train(make_objective(), rows, rows, settings, run).best_step
    count = iter(range(10))
    best, progress = train_refreshing(
        objective, next(count), lambda: next(count), lambda state: (rows, rows), 5, settings, run
    )
    assert progress.best_step == best_step
    assert best == best_step - 1  # one step with each


def test_a_fit_with_refreshed_keys_answers_by_them() -> None:
    rows = stream(rows=300, cutoff=200)
    sizes = replace(SIZES, steps=20, validate_every=5)
    fitted = fit(rows, recipe_named("default"), sizes=sizes, key_refreshes=3)
    before = fit(rows, recipe_named("default"), sizes=sizes).model.keys
    assert fitted.model.keys.fingerprint != before.fingerprint
    assert torch.equal(fitted.lookup.view.items.key, fitted.model.keys({"x": rows.features["x"]}))
    assert 0 < fitted.held_out_loss < 10
    assert torch.isfinite(replay(fitted.live()).log_probs).all()
    again = select_beforehand(fitted.objective.system, fitted.lookup, 200)
    assert torch.equal(
        fitted.model.predictor.predict(fitted.lookup.inputs_at(torch.tensor([150]))).positions[0], again[150]
    )


def test_nothing_known_after_the_cutoff_reaches_refreshed_keys() -> None:
    rows = stream(rows=300, cutoff=200, late=30.0)
    unknown = rows.known_at >= rows.cutoff
    features = rows.features["x"].clone()
    features[torch.from_numpy(rows.time >= rows.cutoff)] += 100.0
    changed = replace(rows, labels=np.where(unknown, 1 - rows.labels, rows.labels), features={"x": features})
    sizes = replace(SIZES, steps=6, validate_every=2)
    one, other = (fit(each, recipe_named("default"), sizes=sizes, key_refreshes=2) for each in (rows, changed))
    assert one.model.keys.fingerprint == other.model.keys.fingerprint
    assert one.held_out_loss == other.held_out_loss


def test_a_history_on_disk_gets_new_keys_and_keeps_its_items(tmp_path: Path) -> None:
    rows = stream(rows=200, cutoff=150)
    x = rows.features["x"]
    specs = rows.specs
    first = fit_pca({"x": x[:150]}, specs, 4, sphere=True)
    schema = Schema(Key(4, "float32", first.fingerprint), (Column("x", "float32", (3,)),), time="number")
    system = fit(rows, recipe_named("default"), sizes=replace(SIZES, steps=4)).objective.system
    keys = learned_keys(system, {"x": x[:150]}, specs, first.key_dim)
    with HistoryWriter.create(tmp_path / "history", schema) as writer:
        names = [str(number) for number in range(200)]
        writer.append({"id": names, "time": rows.time, "label": rows.labels, "key": first({"x": x}), "x": x.numpy()})
        writer.seal()
        items = {path: path.stat().st_ino for path in (tmp_path / "history").rglob("*feature.x*")}
        writer.rekey(Key(keys.key_dim, "float32", keys.fingerprint), keys)
    assert items
    assert all(path.exists() and path.stat().st_ino == inode for path, inode in items.items())
    snapshot = History.open(tmp_path / "history").snapshot
    view = KeyTable(key_function=keys.fingerprint).follow(snapshot)
    assert torch.equal(view.items.key, keys({"x": x}))
    assert torch.equal(Lookup(view).features_at(torch.arange(200))["x"], x)
