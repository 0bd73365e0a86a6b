"""Columns of texts as features: one for all scores, kept and restored, judged by newer rows, with terms beside them."""

import numpy as np
import polars as pl
import pytest
from safetensors.torch import load, save

from recollect.data import words
from recollect.data.features import WORDS
from recollect.data.terms import first_terms
from recollect.data.word_scores import FOLDS, fit_word_scores
from recollect.data.words import Words, fit_words
from recollect.errors import DataError
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS
from tests.data.test_word_scores import fruit, praise


def test_where_there_are_no_scores_there_is_no_feature() -> None:
    texts, labels = praise(30)
    assert fitted_words(pl.DataFrame({"a": texts}), ["a"], labels) is None


def test_rows_that_are_too_rare_to_be_judged_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = praise(400)
    monkeypatch.setattr(words, "SOME_ROWS", 20)
    spread = words._spread(320)
    rare = np.zeros(400, np.int64)
    rare[[row for row in range(320) if row not in spread][:20]] = 1
    assert fitted_words(pl.DataFrame({"a": texts}), ["a"], rare) is None
    sparse = [None if row in spread else text for row, text in enumerate(texts)]
    assert fitted_words(pl.DataFrame({"a": sparse}), ["a"], labels) is None


def fitted_words(table: pl.DataFrame, columns: list[str], labels: np.ndarray) -> Words | None:
    """Judged by the newest fifth."""
    first = 4 * table.height // 5
    return fit_words(table, columns, labels, np.arange(first), np.arange(first, table.height))


def test_columns_become_one_feature_that_can_be_kept() -> None:
    texts, labels = praise(400)
    table = pl.DataFrame({"a": texts, "b": [None, *texts[1:]], "c": [None] * 400}, schema_overrides={"c": pl.String})
    found = fitted_words(table, ["a", "b", "c"], labels)
    assert found is not None
    assert list(found.columns) == ["a", "b"]
    values = found(table, progress=True)[WORDS]
    assert values.shape == (400, found.spec.width)
    assert found.spec.width == 3  # the second says where it is missing, too
    assert abs(float(values[:320, 0].mean())) < 1e-3
    assert values[:2, 1:].tolist() == [[0.0, 1.0], [values[1, 1].item(), 0.0]]
    back = Words.restored(found.to_json(), found.tensors)
    assert np.array_equal(back(table)[WORDS], values)
    assert back.columns["a"].scores.weights.shape[0] == FOLDS
    with pytest.raises(DataError, match="the column a is missing"):
        found(table.drop("a"))


def test_what_is_missing_is_told_once_however_many_classes_there_are() -> None:
    texts, labels = fruit(300)
    found = fitted_words(pl.DataFrame({"a": texts}), ["a"], labels)
    assert found is not None
    assert found.spec.width == 4
    kept = save(found.tensors)
    assert np.array_equal(
        Words.restored(found.to_json(), load(kept))(pl.DataFrame({"a": texts}))[WORDS],
        found(pl.DataFrame({"a": texts}))[WORDS],
    )


def test_words_far_from_all_that_was_seen_are_drawn_back() -> None:
    texts, labels = praise(400)
    found = fitted_words(pl.DataFrame({"a": texts}), ["a"], labels)
    assert found is not None
    seen = found(pl.DataFrame({"a": texts[:320]}))[WORDS]
    extreme = found(pl.DataFrame({"a": ["it is not good", "not bad not bad", "it is good", "w1"]}))[WORDS]
    assert bool((extreme >= seen.min()).all())
    assert bool((extreme <= seen.max()).all())


def test_bursts_that_foretell_themselves_alone_are_not_read() -> None:
    """Eight texts on end share a name and a label: out of fold the name tells all, and of the next burst nothing."""
    generator = np.random.default_rng(0)
    labels = np.repeat(generator.integers(0, 2, 200), 8)
    fillers = generator.integers(0, 30, (1600, 3))
    texts = [f"case{row // 8} " + " ".join(f"w{number}" for number in fillers[row]) for row in range(1600)]
    scores = fit_word_scores(texts[:1280], labels[:1280])
    assert scores is not None
    assert ((scores(texts[:1280])[:, 0] > 0) == labels[:1280]).mean() > 0.9
    assert fitted_words(pl.DataFrame({"a": texts}), ["a"], labels) is None


def test_each_column_has_its_part_of_the_terms_and_words_of_its_own() -> None:
    texts, labels = praise(200)
    table = pl.DataFrame({"title": texts, "said": texts})
    found = fit_words(table, ["title", "said"], labels, np.arange(150), np.arange(150, 200))
    assert found is not None
    terms = found(table)[TERMS].numpy()
    assert terms.shape == (200, found.num_terms)
    first, second = np.split(terms, 2, axis=1)
    assert np.array_equal(first, first_terms(texts, 64))
    assert np.array_equal(first < 0, second < 0)
    assert not np.isin(second[second >= 0], first[first >= 0]).any()


def test_of_many_classes_there_are_scores_and_no_terms() -> None:
    classes = MOST_CLASSES_OF_TERMS + 1
    labels = np.arange(900) % classes
    texts = [f"word{label} and w{row % 7}" for row, label in enumerate(labels)]
    table = pl.DataFrame({"said": texts})
    found = fit_words(table, ["said"], labels, np.arange(700), np.arange(700, 900))
    assert found is not None
    assert list(found(table)) == [WORDS]
    assert Words.restored(found.to_json(), found.tensors).num_terms == 0
