"""A model comes back from its directory as it was, and not at all if anything in it changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recollect.config import recipe_named
from recollect.data.features import WORDS
from recollect.data.intake import fit_intake
from recollect.data.schema import TableSchema
from recollect.errors import CheckpointError, OutputExistsError
from recollect.trained import KEYS, MODEL, TREES, WEIGHTS, WORDS_FILE, Trained
from recollect.training.fit import Fitted, fit
from tests.data.test_word_scores import praise
from tests.training.test_fit import SIZES, stream


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit(stream(rows=240, cutoff=200), recipe_named("default"), sizes=replace(SIZES, steps=3))


def test_a_loaded_model_answers_with_the_same_bits(fitted: Fitted, tmp_path: Path) -> None:
    table = pl.DataFrame({"x": [1.0, 2.0, 3.0]})
    intake = fit_intake(table, np.arange(3), TableSchema(label="y", numeric=("x",)), None, {}, *[np.arange(3)] * 3)
    model = replace(fitted.model, classes=("no", "yes"), intake=intake)
    model.save(tmp_path / "model")
    again = Trained.load(tmp_path / "model")
    assert again.classes == ("no", "yes")
    assert again.recipe == model.recipe
    assert again.intake == intake
    assert again.fingerprint() == model.fingerprint()
    live, expected = again.live(), fitted.live()
    live.follow(fitted.lookup.view.source)
    assert live.untrained_from == expected.untrained_from
    rows = torch.arange(180, 240)
    assert torch.equal(live.answer_items(rows).log_probs, expected.answer_items(rows).log_probs)


def test_words_come_back_too_and_are_checked(fitted: Fitted, tmp_path: Path) -> None:
    texts, labels = praise(120)
    table, schema = pl.DataFrame({"text": texts}), TableSchema(label="y", text=("text",))
    embeddings = {"text": np.random.default_rng(0).normal(size=(120, 4))}
    intake = fit_intake(table, np.arange(120), schema, None, embeddings, labels, np.arange(120), np.arange(120))
    replace(fitted.model, intake=intake).save(tmp_path / "model")
    again = Trained.load(tmp_path / "model").intake
    assert again is not None
    assert torch.equal(again(table, embeddings)[WORDS], intake(table, embeddings)[WORDS])
    of_words = tmp_path / "model" / WORDS_FILE
    of_words.write_bytes(of_words.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="does not match its checksums"):
        Trained.load(tmp_path / "model")


def test_a_model_is_not_overwritten_unasked(fitted: Fitted, tmp_path: Path) -> None:
    fitted.model.save(tmp_path / "model")
    with pytest.raises(OutputExistsError, match="choose another place"):
        fitted.model.save(tmp_path / "model")
    fitted.model.save(tmp_path / "model", force=True)


@pytest.mark.parametrize("stopped_before", [0, 1])
def test_a_model_that_is_being_replaced_is_never_lost(
    fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_before: int
) -> None:
    folder, old = tmp_path / "model", replace(fitted.model, classes=("old", "older"))
    old.save(folder)
    rename, renamed = Path.rename, []

    def stop(path: Path, target: Path) -> Path:
        if len(renamed) == stopped_before:
            raise KeyboardInterrupt
        renamed.append(path)
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            fitted.model.save(folder, force=True)
    left = folder if folder.exists() else tmp_path / ".model.old"
    assert Trained.load(left).classes == ("old", "older")
    fitted.model.save(folder, force=True)
    assert Trained.load(folder).classes == fitted.model.classes
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, KEYS, TREES])
def test_a_changed_file_is_not_loaded(fitted: Fitted, tmp_path: Path, name: str) -> None:
    fitted.model.save(tmp_path / "model")
    path = tmp_path / "model" / name
    data = bytearray(path.read_bytes())
    place = data.find(b'"window": ') + 10 if name == MODEL else len(data) - 1
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="checksums"):
        Trained.load(tmp_path / "model")
    path.unlink()
    with pytest.raises(CheckpointError):
        Trained.load(tmp_path / "model")


def test_what_is_no_model_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="recollect train"):
        Trained.load(tmp_path)


def test_a_model_without_trees_answers_by_its_network_alone(fitted: Fitted, tmp_path: Path) -> None:
    model = replace(fitted.model, trees=None)
    assert model.fingerprint() != fitted.model.fingerprint()
    model.save(tmp_path / "model")
    again = Trained.load(tmp_path / "model")
    assert again.trees is None
    live = again.live()
    live.follow(fitted.lookup.view.source)
    answers = live.answer_items(torch.arange(180, 240))
    assert torch.equal(answers.head("trees"), answers.head("no_context"))
