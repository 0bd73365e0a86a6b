"""Grown trees answer as LightGBM itself does, learn corners, and are left out where there is nothing to tell apart."""

import lightgbm
import numpy as np
import pytest
import torch

from recollect.records import FeatureSpec
from recollect.training import grow
from recollect.training.grow import Grown, grow_trees

SPECS = (FeatureSpec("x", "numeric", 4),)


def corners(rows: int, classes: int, seed: int = 0) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """The label is which corner of a square two of four columns are in."""
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    labels = ((x[:, 0] > 0.3).astype(np.int64) + 2 * (x[:, 1] > -0.2)) % classes
    return {"x": torch.from_numpy(x)}, labels


def grown(rows: int, classes: int, held_out: int = 60) -> tuple[Grown, dict[str, torch.Tensor]]:
    features, labels = corners(rows, classes)
    order = torch.arange(rows)
    found = grow_trees(features, labels, order[: rows - held_out], order[rows - held_out :], SPECS, classes, seed=0)
    assert found is not None
    return found, features


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_corners_are_learned(classes: int) -> None:
    found, _ = grown(500, classes)
    features, labels = corners(300, classes, seed=1)
    assert (found.trees(features).argmax(1).numpy() == labels).mean() > 0.95


def test_two_numbers_that_tell_all_are_found_behind_the_columns_of_a_text() -> None:
    def made(seed: int) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        features, labels = corners(600, 3, seed=seed)
        text = np.random.default_rng(seed).normal(size=(600, 400)).astype(np.float32)
        return features | {"text": torch.from_numpy(text)}, labels

    order, specs = torch.arange(600), (*SPECS, FeatureSpec("text", "embedded", 400))
    features, labels = made(0)
    found = grow_trees(features, labels, order[:500], order[500:], specs, 3, seed=0)
    assert found is not None
    features, labels = made(1)
    assert (found.trees(features).argmax(1).numpy() == labels).mean() > 0.9


@pytest.mark.parametrize("classes", [2, 3])
def test_answers_are_those_of_lightgbm(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    boosters: list[lightgbm.Booster] = []
    train = lightgbm.train

    def kept(*arguments: object, **others: object) -> lightgbm.Booster:
        boosters.append(train(*arguments, **others))  # type: ignore[arg-type]
        return boosters[-1]

    monkeypatch.setattr(lightgbm, "train", kept)
    found, features = grown(400, classes)
    said = found.trees(features).exp().numpy()
    expected = boosters[0].predict(features["x"].numpy(), num_iteration=boosters[0].best_iteration)
    np.testing.assert_allclose(said[:, 1] if classes == 2 else said, expected, atol=1e-5)


def test_growing_again_gives_the_same_bits() -> None:
    first, features = grown(300, 2)
    again, _ = grown(300, 2)
    assert torch.equal(first.trees(features), again.trees(features))
    assert torch.equal(first.relevance, again.relevance)


def test_columns_are_as_relevant_as_they_tell_of_the_label() -> None:
    found, _ = grown(500, 4)
    told, idle = found.relevance[:2], found.relevance[2:]
    assert float(told.min()) > 20 * float(idle.max())


def test_what_fourier_bands_tell_counts_for_their_column() -> None:
    angle = torch.rand(600, 1, generator=torch.Generator().manual_seed(0)) * 8 - 4
    idle = torch.randn(600, 1, generator=torch.Generator().manual_seed(1))
    labels = (torch.sin(torch.pi * angle[:, 0]) > 0).long().numpy()
    specs = (FeatureSpec("idle", "numeric", 1), FeatureSpec("angle", "numeric", 1, bands=4, max_frequency=8.0))
    order = torch.arange(600)
    found = grow_trees({"idle": idle, "angle": angle}, labels, order[:500], order[500:], specs, 2, seed=0)
    assert found is not None
    assert found.relevance.shape == (2,)
    assert float(found.relevance[1]) > 20 * float(found.relevance[0])


def test_labels_after_those_given_change_nothing() -> None:
    features, labels = corners(400, 2)
    order = torch.arange(400)
    before = grow_trees(features, labels, order[:240], order[240:300], SPECS, 2, seed=0)
    labels[300:] = 1 - labels[300:]
    after = grow_trees(features, labels, order[:240], order[240:300], SPECS, 2, seed=0)
    assert before is not None
    assert after is not None
    assert torch.equal(before.trees(features), after.trees(features))


def test_nothing_is_grown_where_there_is_nothing_to_tell_apart() -> None:
    features, labels = corners(50, 2)
    order, none = torch.arange(50), torch.arange(0)
    assert grow_trees(features, np.zeros(50, np.int64), order, none, SPECS, 2, seed=0) is None
    assert grow_trees(features, labels, none, none, SPECS, 2, seed=0) is None


def test_nothing_is_grown_where_nothing_would_stop_it() -> None:
    features, labels = corners(30, 2, seed=3)
    assert grow_trees(features, labels, torch.arange(30), torch.arange(0), SPECS, 2, seed=0) is None


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_that_a_model_has_no_place_for_are_left_out(classes: int) -> None:
    features, labels = corners(400, classes)
    order = torch.arange(400)
    labels[::7] = classes
    found = grow_trees(features, labels, order[:300], order[300:], SPECS, classes, seed=0)
    assert found is not None
    assert found.trees(features).shape == (400, classes)
    assert grow_trees(features, labels, order[:300], torch.tensor([301]), SPECS, classes, seed=0) is None


@pytest.mark.parametrize("rows", [3, 6, 30])
def test_few_rows(rows: int) -> None:
    features, labels = corners(rows, 2, seed=3)
    labels[:2] = [0, 1]
    order = torch.arange(rows)
    found = grow_trees(features, labels, order[:-1], order[-1:], SPECS, 2, seed=0)
    assert found is not None
    assert bool(found.trees(features).isfinite().all())


def test_of_a_class_without_rows_trees_say_what_others_say() -> None:
    features, labels = corners(200, 2)
    order = torch.arange(200)
    found = grow_trees(features, labels, order[:160], order[160:], SPECS, 3, seed=0)
    assert found is not None
    assert found.trees.known.tolist() == [True, True, False]
    others = torch.tensor([0.2, 0.3, 0.5]).log().expand(200, 3)
    said = found.trees(features)
    completed = found.trees.completed(said, others).exp()
    torch.testing.assert_close(completed.sum(1), torch.ones(200))
    torch.testing.assert_close(completed[:, 2], torch.full((200,), 0.5 / 1.5))
    torch.testing.assert_close(completed[:, 0] / completed[:, 1], (said[:, 0] - said[:, 1]).exp(), rtol=1e-3, atol=1e-6)


def test_of_very_many_rows_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grow, "MOST_ROWS", 150)
    features, labels = corners(450, 2)
    labels[:250] = 1 - labels[:250]
    found = grow_trees(features, labels, torch.arange(400), torch.arange(400, 450), SPECS, 2, seed=0)
    assert found is not None
    assert (found.trees(features).argmax(1).numpy() == labels)[300:].mean() > 0.95
