"""A model sees texts through the embedder it was trained with, from wherever it is loaded, or not at all."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recollect.data.embedding import EmbedderSpec
from recollect.data.features import WORDS
from recollect.data.intake import Intake, _loaded, embed_now, embed_texts, fit_intake
from recollect.data.schema import TableSchema
from recollect.data.splits import held_out_from
from recollect.data.terms import value_terms
from recollect.errors import SettingError
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS
from tests.data.hashing_embedder import HashingEmbedder
from tests.data.test_word_scores import praise
from tests.data.tiny_qwen import save_tiny_qwen

SCHEMA = TableSchema(text=("words",))
TABLE = pl.DataFrame({"words": ["great camera", "the battery died", "great pictures", "died after days"]})
TIMES = np.tile(np.arange(10), (2, 1))
"""When rows happened, and when they were known."""


def fitted(embedder: str | EmbedderSpec) -> Intake:
    return fit_intake(
        TABLE, np.arange(4), SCHEMA, embedder, embed_now(TABLE, SCHEMA, embedder), np.zeros(4, np.int64), *TIMES[:, :4]
    )


def as_saved(intake: Intake) -> Intake:
    tensors = None if intake.words is None else intake.words.tensors
    return Intake.from_json(json.loads(json.dumps(intake.to_json())), tensors)


def test_all_of_an_embedder_is_remembered() -> None:
    intake = fitted(EmbedderSpec("wordllama", width=64))
    assert as_saved(intake) == intake
    assert as_saved(intake).embed(TABLE)["words"].shape == (4, 64)
    plain = fitted("wordllama")
    assert plain.embedder == EmbedderSpec("wordllama")
    assert plain.fingerprint != intake.fingerprint


def test_a_table_without_texts_needs_no_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pl.DataFrame({"x": [1.0, 2.0, 3.0]})
    schema = TableSchema(numeric=("x",))
    intake = fit_intake(numbers, np.arange(3), schema, "never/loaded", {}, np.zeros(3, np.int64), *TIMES[:, :3])
    assert intake.words is None
    assert intake.fingerprint is None
    assert as_saved(intake).embed(numbers) == {}


def test_values_of_categories_are_terms_for_a_few_classes() -> None:
    table = pl.DataFrame({"shop": list("aabbc"), "x": [1.0, 2.0, 3.0, 4.0, 5.0]})
    schema = TableSchema(numeric=("x",), categorical=("shop",))
    intake = fit_intake(table, np.arange(4), schema, None, {}, np.arange(4) % 2, *TIMES[:, :5])
    assert as_saved(intake) == intake
    assert intake.num_terms == 1
    shops = intake(table)[TERMS][:, 0].tolist()
    assert len({*shops}) == 3  # that of the last row was never met before the cutoff
    many = np.arange(MOST_CLASSES_OF_TERMS + 1)
    tall = pl.concat([table] * 3)[: len(many)]
    times = np.tile(many, (2, 1))
    assert TERMS not in fit_intake(tall, many, schema, None, {}, many, *times)(table)


def test_terms_of_texts_and_of_categories_stand_side_by_side() -> None:
    texts, labels = praise(200, seed=0)
    table = pl.DataFrame({"words": texts, "shop": ["a", "b"] * 100})
    schema = TableSchema(text=("words",), categorical=("shop",))
    with_words = fit_intake(
        table,
        np.arange(200),
        schema,
        "wordllama",
        embed_now(table, schema, "wordllama"),
        labels,
        *np.tile(np.arange(200), (2, 1)),
    )
    assert with_words.words is not None
    terms = with_words(table[:2])[TERMS]
    assert terms.shape == (2, with_words.num_terms)
    assert with_words.num_terms == with_words.words.num_terms + 1
    assert terms[:, -1].tolist() == value_terms(table["shop"][:2]).tolist()


def test_an_embedder_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save_tiny_qwen(tmp_path)
    monkeypatch.chdir(tmp_path)
    intake = as_saved(fitted("model"))
    assert intake.embedder == EmbedderSpec(str(place.resolve()))
    monkeypatch.chdir("/")
    _loaded.clear()
    assert intake.embed(TABLE)["words"].shape == (4, 32)
    save_tiny_qwen(tmp_path, seed=1)
    _loaded.clear()
    message = (
        rf"model of fingerprint {intake.fingerprint}, what is here by that name has \w{{16}}: bring the former back"
    )
    with pytest.raises(SettingError, match=message):
        intake(TABLE)


def test_a_row_of_a_request_is_what_it_would_be_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, embedder = EmbedderSpec("hashing"), HashingEmbedder()
    monkeypatch.setitem(_loaded, spec, embedder)
    table = pl.DataFrame({"words": ["a", None, "", " \n", *(f"text {number}" for number in range(6))]})
    now = embed_now(table, SCHEMA, spec)["words"]
    assert not now[1:4].any()
    assert max(len(batch) for batch in embedder.batches) == embedder.batch
    assert now.dtype == np.float32
    assert np.array_equal(now, embed_texts(table, SCHEMA, spec, tmp_path)["words"]), "to the bit"
    intake = fit_intake(table, np.arange(10), SCHEMA, spec, {"words": now}, np.zeros(10, np.int64), *TIMES[:, :10])
    for name, values in intake(table).items():
        assert torch.equal(values, intake(table, intake.embed(table, tmp_path))[name])


def test_a_request_is_not_answered_by_rows_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(HashingEmbedder):
        def embed(self, texts: list[str]) -> np.ndarray:
            return super().embed(texts) * np.float32(np.inf)

    monkeypatch.setitem(_loaded, EmbedderSpec("hashing"), Broken())
    with pytest.raises(SettingError, match="hashing gives a row that is not finite for 'great camera'"):
        embed_now(TABLE, SCHEMA, EmbedderSpec("hashing"))


def test_words_are_learned_from_what_was_known_before_the_rows_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feature that is fitted to labels must not have seen those by which a model is judged, nor later ones."""
    monkeypatch.setitem(_loaded, EmbedderSpec("hashing"), HashingEmbedder())
    texts, labels = praise(400)
    table, time = pl.DataFrame({"words": texts}), np.arange(400)
    known_at = time + np.random.default_rng(0).integers(0, 40, 400)
    past = np.flatnonzero(known_at < 300)
    embeddings = embed_now(table, SCHEMA, EmbedderSpec("hashing"))

    def made(labels: np.ndarray) -> torch.Tensor:
        intake = fit_intake(table, past, SCHEMA, EmbedderSpec("hashing"), embeddings, labels, time, known_at)
        assert intake.specs[-1].name == WORDS
        assert torch.equal(as_saved(intake)(table, embeddings)[WORDS], intake(table, embeddings)[WORDS])
        return intake(table, embeddings)[WORDS]

    held_out, later = time[past[held_out_from(len(past))]], labels.copy()
    unknown = np.flatnonzero(known_at >= held_out)
    later[unknown[::20]] = 1 - later[unknown[::20]]
    assert torch.equal(made(labels), made(later))
    newest = np.flatnonzero(known_at == held_out - 1)
    later[newest] = 1 - later[newest]
    assert not torch.equal(made(labels), made(later))
