"""The part of a regression that reads words and values of categories: one weight for each of them, and class, fitted
together with the weights of the other columns. What is new since training is told apart here, and by nothing else in a
model.

Knows hashes, columns and labels; not the texts, nor when they were written.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numpy.typing import NDArray
from torch import Tensor

from recollect.model.blocks import row_sums
from recollect.records import FIRST_VALUE

MOST_TERMS = 1 << 13
"""Of words, and of values. The most frequent ones are enough: with four times as many words fits take twice as long and
foretell no better."""

LEAST_TEXTS = 2
SHRINKAGE = 0.5
"""How strongly the weight of a word is held at nothing: a rare word tells by few items."""

STEPS = 30


@dataclass(frozen=True)
class WordWeights:
    """Class logits by words: `terms` are the hashes that count, in order, `rarity` how much each does. All texts are of
    one length, as vectors; a value counts 1, whatever text there is beside it."""

    terms: Int[Tensor, " terms"]
    rarity: Float[Tensor, " terms"]
    weights: Float[Tensor, "classes terms"]

    def __call__(self, terms: Int[Tensor, "batch words"]) -> Float[Tensor, "batch classes"]:
        place = torch.searchsorted(self.terms, terms.to(self.terms.dtype).contiguous()).clamp(max=len(self.terms) - 1)
        counting = torch.where(self.terms[place] == terms, self.rarity[place], 0.0)
        words = counting.masked_fill(terms >= FIRST_VALUE, 0.0)
        lengths, weights = row_sums(words.square()).sqrt().clamp(min=1e-12), self.weights[:, place]
        of_words = row_sums(words * weights).T / lengths.unsqueeze(1)
        return of_words + row_sums((counting - words) * weights).T


def fit_with_words(
    columns: Float[Tensor, "items columns"],
    start: Float[Tensor, "columns classes"],
    target: Float[Tensor, "columns classes"],
    held: Float[Tensor, " columns"],
    terms: Int[Tensor, "items words"],
    labels: Int[Tensor, " items"],
) -> tuple[Float[Tensor, "columns classes"], WordWeights] | None:
    """Weights of the columns, begun at `start` and held at `target` as if `held` items spoke for each, and of words.

    None where no word stands in two texts. Stopped after STEPS, in double precision, by one thread: the same items give
    the same bits.
    """
    from scipy.optimize import minimize
    from scipy.sparse import csr_array

    known, rarity, rows, places = _vocabulary(terms.cpu().numpy())
    if not len(known):
        return None
    dense, aim, hold, begun = (part.double().cpu().numpy() for part in (columns, target, held.unsqueeze(1), start))
    values, is_word = rarity[places], known[places] < FIRST_VALUE
    lengths = np.sqrt(np.bincount(rows[is_word], values[is_word] ** 2, minlength=len(dense)))
    values[is_word] /= lengths[rows[is_word]]
    words = csr_array((values, (rows, places)), shape=(len(dense), len(known)))
    by_word, classes, told = words.T.tocsr(), start.shape[1], labels.cpu().numpy()
    each = np.arange(len(dense))

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        of_columns, of_words = _parts(flat, dense.shape[1], classes)
        logits = dense @ of_columns + words @ of_words
        logits -= logits.max(1, keepdims=True)
        said = np.exp(logits)
        total = said.sum(1, keepdims=True)
        nll = (np.log(total[:, 0]) - logits[each, told]).sum()
        said /= total
        said[each, told] -= 1.0
        apart = of_columns - aim
        penalty = 0.5 * (hold * apart**2).sum() + 0.5 * SHRINKAGE * (of_words**2).sum()
        uphill = (dense.T @ said + hold * apart, by_word @ said + SHRINKAGE * of_words)
        return float(nll + penalty), np.concatenate([part.ravel() for part in uphill])

    first = np.concatenate([begun.ravel(), np.zeros(len(known) * classes)])
    with _linear_algebra().limit(limits=1, user_api="blas"):
        found = minimize(loss_and_gradient, first, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    of_columns, of_words = (torch.from_numpy(part).to(start) for part in _parts(found, dense.shape[1], classes))
    where = start.device
    weights = WordWeights(
        torch.from_numpy(known).to(where), torch.from_numpy(rarity).to(start), of_words.T.contiguous()
    )
    return of_columns, weights


@cache
def _linear_algebra() -> Any:
    """The libraries of numpy and scipy, which torch's own number of threads doesn't reach: with two threads sums have
    other bits, and products as small as these take ten times as long."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _parts(flat: NDArray[np.float64], columns: int, classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return flat[: columns * classes].reshape(-1, classes), flat[columns * classes :].reshape(-1, classes)


def _vocabulary(
    terms: Int[np.ndarray, "items words"],
) -> tuple[NDArray[np.int32], Float64[np.ndarray, " known"], NDArray[np.int64], NDArray[np.int64]]:
    """The terms that count, in order, and how much each does; and for each place where one stands its item and its
    number."""
    rows, places = np.nonzero(terms >= 0)
    found, number, texts = np.unique(terms[rows, places].astype(np.int32), return_inverse=True, return_counts=True)
    often = np.flatnonzero(texts >= LEAST_TEXTS)
    of_words, of_values = often[found[often] < FIRST_VALUE], often[found[often] >= FIRST_VALUE]
    often = np.sort(np.concatenate([_most_frequent(each, texts) for each in (of_words, of_values)]))
    rarity = np.where(found[often] < FIRST_VALUE, 1.0 + np.log((1 + len(terms)) / (1 + texts[often])), 1.0)
    place_of = np.full(len(found), -1, np.int64)
    place_of[often] = np.arange(len(often))
    counts = place_of[number] >= 0
    return found[often], rarity, rows[counts], place_of[number[counts]]


def _most_frequent(some: NDArray[np.int64], texts: NDArray[np.int64]) -> NDArray[np.int64]:
    return some[np.argsort(-texts[some], kind="stable")[:MOST_TERMS]]
