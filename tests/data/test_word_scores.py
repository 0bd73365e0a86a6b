"""Scores of words: a text's own label is not in them, they are the same for ever, and they know what a "not" is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.data import word_scores
from recollect.data.word_scores import WordScores, fit_word_scores


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
    many = [f"rare w{number}" for number in range(word_scores.MOST_CLASSES)]  # each of a class of its own
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
    monkeypatch.setattr(word_scores, "MOST_CLASSES", 1)
    assert fit_word_scores(texts, labels) is None


def test_of_many_rows_the_newest_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = praise(400)
    monkeypatch.setattr(word_scores, "MOST_ROWS", 200)
    newest, same = fit_word_scores(texts, labels), fit_word_scores(texts[200:], labels[200:])
    assert newest is not None
    assert same is not None
    assert np.array_equal(newest(texts), same(texts))


def test_a_class_of_older_rows_alone_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many classes make the rows fewer: of the class that is left in one text alone three regressions know nothing."""
    texts, labels = fruit(300)
    labels = np.where(np.arange(300) < 100, labels, labels % 2)
    labels[-1] = 2
    monkeypatch.setattr(word_scores, "MOST_CELLS", 3 * 150)
    scores = fit_word_scores([*texts[:-1], "plum"], labels)
    assert scores is not None
    assert scores(texts).shape == (300, 1)
    labels[100:] = 0
    assert fit_word_scores(texts, labels) is None  # one class is left
