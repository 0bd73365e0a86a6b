"""Scores of words: a text's own label is not in them, they are the same for ever, and they know what a "not" is for."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from recollect.data import words
from recollect.data.features import WORDS
from recollect.data.terms import first_terms
from recollect.data.words import FOLDS, Words, WordScores, fit_word_scores, fit_words
from recollect.errors import DataError
from recollect.records import MOST_CLASSES_OF_TERMS, TERMS


def praise(rows: int, seed: int = 0) -> tuple[list[str | None], np.ndarray]:
    """Texts in which only "not" before the word tells good from bad: each word by itself tells nothing."""
    generator = np.random.default_rng(seed)
    texts, labels = [], generator.integers(0, 2, rows)
    for label in labels:
        word = str(generator.choice(["good", "bad"]))
        other = {"good": "bad", "bad": "good"}[word]
        negated = (word == "good") != bool(label)
        filler = " ".join(f"w{number}" for number in generator.integers(0, 40, 6))
        texts.append(f"it is {'not ' if negated else ''}{word} {filler} {'' if negated else 'not '}{other}")
    return texts, labels


def fitted(rows: int = 400) -> tuple[WordScores, list[str | None], np.ndarray]:
    texts, labels = praise(rows)
    found = fit_word_scores(texts, labels)
    assert found is not None
    return found, texts, labels


def test_pairs_of_words_are_understood() -> None:
    scores, _, _ = fitted()
    later, labels = praise(200, seed=1)
    assert ((scores(later)[:, 0] > 0) == labels).mean() > 0.95


@pytest.mark.parametrize("row", [0, 7, 399])
def test_a_score_knows_nothing_of_its_own_label(row: int) -> None:
    scores, texts, labels = fitted()
    other = labels.copy()
    other[row] = 1 - other[row]
    again = fit_word_scores(texts, other)
    assert again is not None
    same = [place for place, text in enumerate(texts) if text == texts[row]]
    assert np.array_equal(scores(texts)[same], again(texts)[same])
    assert not np.array_equal(scores(texts), again(texts))


def test_scores_of_pure_noise_don_t_foretell_what_they_were_fitted_to() -> None:
    """Had any text been scored by a regression that learned it, this would be close to 1."""
    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in generator.integers(0, 300, 12)) for _ in range(1000)]
    labels = generator.integers(0, 2, 1000)
    scores = fit_word_scores(texts, labels)
    assert scores is not None
    assert ((scores(texts)[:, 0] > 0) == labels).mean() < 0.57


@settings(max_examples=20, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=20), st.sampled_from(["it is good", "not bad"])), max_size=12))
def test_a_text_has_one_score_whatever_its_company(texts: list[str | None]) -> None:
    scores, _, _ = fitted()
    together = scores(texts)
    assert together.shape == (len(texts), 1)
    alone = [scores([text])[0] for text in texts]
    assert np.array_equal(together, np.array(alone).reshape(-1, 1), equal_nan=True)
    empty = [text is None or not text.strip() for text in texts]
    assert np.isnan(together[:, 0]).tolist() == empty


def fruit(rows: int, seed: int = 0) -> tuple[list[str | None], np.ndarray]:
    """Three classes, told by a word; every tenth text is missing."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, rows)
    texts = [f"{('apple', 'pear', 'plum')[label]} w{generator.integers(0, 30)}" for label in labels]
    return [None if row % 10 == 9 else text for row, text in enumerate(texts)], labels


def test_more_classes_have_a_score_each_and_one_that_came_once_has_none() -> None:
    texts, labels = fruit(200)
    many = [f"rare w{number}" for number in range(words.MOST_CLASSES)]  # each of a class of its own
    scores = fit_word_scores([*texts, *many], np.append(labels, np.arange(3, 3 + len(many))))
    assert scores is not None
    found = scores(texts)
    assert found.shape == (200, 3)
    there = ~np.isnan(found[:, 0])
    assert (found[there].argmax(1) == labels[there]).mean() > 0.95


def test_where_there_is_nothing_to_learn_there_are_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = praise(400)
    assert fit_word_scores(texts[:30], labels[:30]) is None  # too few
    assert fit_word_scores([None] * 400, labels) is None
    assert fit_word_scores([f"only{row}" for row in range(400)], labels) is None  # no word comes twice
    assert fit_word_scores(texts, np.zeros(400, np.int64)) is None
    monkeypatch.setattr(words, "MOST_CLASSES", 1)
    assert fit_word_scores(texts, labels) is None
    few = pl.DataFrame({"a": texts[:30]})
    assert fit_words(few, ["a"], labels[:30], np.arange(20), np.arange(20, 30)) is None


def test_of_many_rows_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = praise(400)
    monkeypatch.setattr(words, "MOST_ROWS", 200)
    newest, same = fit_word_scores(texts, labels), fit_word_scores(texts[200:], labels[200:])
    assert newest is not None
    assert same is not None
    assert np.array_equal(newest(texts), same(texts))


def test_a_class_of_older_rows_alone_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many classes make the rows fewer: of the class that is left in one text alone three regressions know nothing."""
    texts, labels = fruit(300)
    labels = np.where(np.arange(300) < 100, labels, labels % 2)
    labels[-1] = 2
    monkeypatch.setattr(words, "MOST_CELLS", 3 * 150)
    scores = fit_word_scores([*texts[:-1], "plum"], labels)
    assert scores is not None
    assert scores(texts).shape == (300, 1)
    labels[100:] = 0
    assert fit_word_scores(texts, labels) is None  # one class is left


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
