"""Weights of words against plain minimising over a table with a column for each; which words count and which don't."""

import pytest
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits
from torch import Tensor

from recollect.model import regression, word_regression
from recollect.model.neighbours import centred
from recollect.model.regression import Regression, regress
from recollect.model.word_regression import LEAST_TEXTS, SHRINKAGE, WordWeights
from recollect.records import FIRST_VALUE

WORDS, PLACES = 12, 5


def said(items: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and plain answers that tell nothing, and texts of a few of twelve words, the first few of which tell all."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(items, 3, generator=generator)
    plain = F.log_softmax(torch.randn(items, classes, generator=generator), dim=1)
    labels = torch.randint(0, classes, (items,), generator=generator)
    others = torch.randint(classes, WORDS, (items, PLACES - 1), generator=generator)
    words = torch.cat([labels.unsqueeze(1), others], dim=1)
    terms = torch.full((items, PLACES), -1, dtype=torch.int32)
    for row, each in enumerate(words):
        different = each.unique() * 1000 + 7
        terms[row, : len(different)] = different.int()
    return keys, plain, labels, terms


def as_table(terms: Tensor, fit: WordWeights) -> Tensor:
    """Naively: a column for each word, by how rare it is, rows of one length."""
    table = (terms[:, :, None] == fit.terms).any(1) * fit.rarity
    return table / table.norm(dim=1, keepdim=True).clamp(min=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_it_comes_to_where_plain_minimising_does(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, plain, labels, terms = said(200, classes)
    monkeypatch.setattr(word_regression, "STEPS", 1000)
    fit = regress(keys, plain, labels, classes, terms)
    assert fit.words is not None
    apart = (keys - fit.mean) / fit.scale
    columns = torch.cat([apart, centred(plain), torch.ones(200, 1), as_table(terms, fit.words)], dim=1).double()
    target = torch.cat([torch.zeros(3, classes), torch.eye(classes), torch.zeros(1 + len(fit.words.terms), classes)])
    held = torch.tensor([regression.SHRINKAGE] * 3 + [1.0] * (classes + 1) + [SHRINKAGE] * len(fit.words.terms))
    weights = target.double().requires_grad_()
    minimiser = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        minimiser.zero_grad()
        penalty = 0.5 * (held.double().unsqueeze(1) * (weights - target.double()).square()).sum()
        loss = F.cross_entropy(columns @ weights, labels, reduction="sum") + penalty
        loss.backward()
        return loss

    minimiser.step(closure)  # type: ignore[arg-type]
    by_hand = F.log_softmax(columns @ weights.detach(), dim=1)
    torch.testing.assert_close(fit(keys, plain, terms).double(), by_hand, atol=2e-2, rtol=0)


@pytest.mark.parametrize("classes", [2, 3])
def test_words_that_tell_all_are_learned_and_keys_alone_would_not_do(classes: int) -> None:
    keys, plain, labels, terms = said(800, classes)
    fit = regress(keys[:600], plain[:600], labels[:600], classes, terms[:600])
    without = regress(keys[:600], plain[:600], labels[:600], classes)
    right = [
        float((answer.argmax(1) == labels[600:]).float().mean())
        for answer in (fit(keys[600:], plain[600:], terms[600:]), without(keys[600:], plain[600:]))
    ]
    assert right[0] > 0.97
    assert right[1] < 0.7


def test_a_class_that_the_plain_answer_does_not_know_is_told_by_its_words() -> None:
    keys, plain, labels, terms = said(600, 3)
    fit = regress(keys, plain[:, :2].log_softmax(1), labels, 3, terms)
    assert float((fit(keys, plain[:, :2].log_softmax(1), terms).argmax(1) == labels).float().mean()) > 0.95


def test_a_word_of_one_text_tells_nothing_and_none_at_all_leave_the_rest_as_it_is() -> None:
    keys, plain, labels, _ = said(50, 2)
    alone = torch.arange(50, dtype=torch.int32).unsqueeze(1)
    nothing = torch.full((50, 3), -1, dtype=torch.int32)
    plainly = regress(keys, plain, labels, 2)
    for terms in (alone, nothing):
        fit = regress(keys, plain, labels, 2, terms)
        assert fit.words is None
        assert torch.equal(fit(keys, plain, terms), plainly(keys, plain))
    twice = torch.cat([alone[: 50 - LEAST_TEXTS + 1], torch.full((LEAST_TEXTS - 1, 1), 0, dtype=torch.int32)])
    fit = regress(keys, plain, labels, 2, twice)
    assert fit.words is not None
    assert fit.words.terms.tolist() == [0]


def test_words_that_are_not_known_add_nothing() -> None:
    keys, plain, labels, terms = said(300, 2)
    fit = regress(keys, plain, labels, 2, terms)
    assert fit.words is not None
    assert torch.equal(fit.words(torch.full((4, PLACES), 999_999)), torch.zeros(4, 2))
    assert torch.equal(fit.words(torch.full((4, PLACES), -1)), torch.zeros(4, 2))


def test_the_most_frequent_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, plain, labels, terms = said(300, 2)
    monkeypatch.setattr(word_regression, "MOST_TERMS", 2)
    fit = regress(keys, plain, labels, 2, terms)
    assert fit.words is not None
    assert fit.words.terms.tolist() == [7, 1007]  # the two labels' own: each in half of the texts


def test_bits_depend_neither_on_company_nor_on_when_it_is_fitted() -> None:
    keys, plain, labels, terms = said(300, 3)
    fit, again = (regress(keys, plain, labels, 3, terms) for _ in range(2))
    tile = slice(0, 64)

    def answers(fit: Regression, rows: slice | Tensor) -> Tensor:
        return fit(keys[rows], plain[rows], terms[rows])

    assert torch.equal(answers(fit, tile), answers(again, tile))
    for row in (0, 5, 63):
        assert torch.equal(answers(fit, torch.full((64,), row))[0], answers(fit, tile)[row])


def test_bits_don_t_depend_on_the_threads_of_linear_algebra() -> None:
    """Of a number of items that no vector instruction divides."""
    keys, plain, labels, terms = said(4093, 5)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            fit = regress(keys, plain, labels, 5, terms)
        assert fit.words is not None
        found.append((fit.weights, fit.words.weights))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("words", [0, 3, 60])
def test_a_value_counts_in_full_however_many_words_stand_beside_it(words: int) -> None:
    """Forty values decide the label, words tell nothing."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 40, (800, 1), generator=generator)
    labels, others = values[:, 0] % 2, torch.randint(0, 400, (800, words), generator=generator)
    terms = torch.cat([others.sort(1).values, FIRST_VALUE + values], dim=1).int()
    keys, plain = torch.zeros(800, 1), torch.full((800, 2), 0.5).log()
    fit = regress(keys[:400], plain[:400], labels[:400], 2, terms[:400])
    said = fit(keys[400:], plain[400:], terms[400:])
    assert float((said.argmax(1) == labels[400:]).float().mean()) > 0.98


def test_rare_values_are_not_crowded_out_by_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_regression, "MOST_TERMS", 3)
    terms = torch.tensor([[0, 1, 2, 3, FIRST_VALUE + row // 2] for row in range(8)], dtype=torch.int32)
    fit = regress(torch.zeros(8, 1), torch.full((8, 2), 0.5).log(), torch.arange(8) % 2, 2, terms)
    assert fit.words is not None
    assert fit.words.terms.tolist() == [0, 1, 2, *(FIRST_VALUE + each for each in range(3))]
