"""Which embedder and which keys serve the reviews best? Measured on rows from before the cutoff only.

    python experiments/keys.py --reviews FILE [--rows 7500] [--cutoff 2012] [--embedder wordllama --embedder minilm]

A sample of the reviews of 2009 to 2014 is embedded (cached), those before the cutoff are kept, and the newest fifth of
these is answered from the others: by logistic regression on the whole embedding, without and with scores of words, and
by a vote of the 32 nearest under each kind of key; under the best of them newer items are preferred as well. Prints one
JSON object as its last line.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.cli_options import default_cache
from recollect.data.embedding import EmbedderSpec, load_embedder
from recollect.data.embedding_cache import embed_column
from recollect.data.key_fitting import fit_pca
from recollect.data.keys import first_columns
from recollect.data.reviews import read_reviews, start_of
from recollect.data.word_scores import fit_word_scores
from recollect.evaluation.metrics import accuracy, balanced_accuracy
from recollect.evaluation.refitted_peers import fit_logistic_regression
from recollect.model.neighbours import kernel, vote
from recollect.records import Clock, Features, FeatureSpec, Visible
from recollect.retrieval.keys import SharedKeys
from recollect.retrieval.top import top

KEY_DIM = 64
NEIGHBOURS = 32
BEST = "pca, on a sphere"
RECENCY = (0.1, 0.5)
"""What the newest of the older rows has before the oldest, as a part of what an item with the input's own key has."""


def key_kinds(features: Features, old: int, width: int) -> dict[str, Callable[[], Tensor]]:
    """Keys of all rows by kind; what is fitted, is fitted on the older ones."""
    specs = [FeatureSpec("text", "embedded", width)]
    before = {"text": features["text"][:old]}

    def by_pca(**how: bool) -> Tensor:
        keys: Tensor = fit_pca(before, specs, KEY_DIM, fewer=True, **how)(features)
        return keys

    def unit(keys: Tensor) -> Tensor:
        return keys / keys.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def standardised() -> Features:
        return {"text": features["text"] - before["text"].mean(0)}  # one deviation for all columns: a length, no more

    first = first_columns("text", width, KEY_DIM)
    return {
        "first 64 columns, unit length": lambda: unit(first(features)),
        "first 64 columns, standardised, unit length": lambda: unit(first(standardised())),
        "pca": by_pca,
        BEST: lambda: by_pca(sphere=True),
        "pca, whitened": lambda: by_pca(whiten=True),
        "pca, whitened, on a sphere": lambda: by_pca(whiten=True, sphere=True),
        "all columns, unit length": lambda: unit(features["text"].float()),
    }


def voted(keys: Tensor, recency: Tensor, worth: float, labels: Tensor, old: int) -> Tensor:
    """Answers to the newer rows. `worth` is what queries ask for along the recency coordinate: with 0 the items are the
    nearest. The weights of those found go by their keys alone, as they do in the library."""
    own, table = keys[old:], SharedKeys(keys, recency)
    visible = Visible(torch.zeros(len(own), dtype=torch.long), torch.full((len(own),), old))
    positions = top(F.pad(own, (0, 1), value=worth), table, visible, NEIGHBOURS)
    return vote(labels[positions], kernel(own, table, positions), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=7500)
    parser.add_argument("--cutoff", type=int, default=2012)
    parser.add_argument("--embedder", action="append")
    arguments = parser.parse_args()
    cache = default_cache()
    reviews, _ = read_reviews(arguments.reviews)
    rows = np.flatnonzero((reviews.time >= start_of(2009)) & (reviews.time < start_of(2015)))
    rows = np.sort(np.random.default_rng(0).permutation(rows)[: arguments.rows])
    rows = rows[reviews.time[rows] < start_of(arguments.cutoff)]
    labels = (reviews.rating[rows] > 3).astype(np.int64)
    old = int(0.8 * len(rows))
    texts = reviews.text.gather(rows).to_list()
    by_words = fit_word_scores(texts[:old], labels[:old])
    assert by_words is not None, "too few reviews for scores of words: give more --rows"
    words = by_words(texts)
    times = torch.from_numpy(reviews.time[rows])
    recency = Clock(times[0].item(), (times[old - 1] - times[0]).item()).model_time(times).float()
    found: dict[str, dict[str, list[float]]] = {}
    for name in arguments.embedder or ["wordllama", "minilm"]:
        embedder = load_embedder(EmbedderSpec(name, max_tokens=None if name == "wordllama" else 128))
        raw = embed_column(texts, embedder, cache).astype(np.float32)
        table = (raw - raw[:old].mean(0)) / raw[:old].std()
        scores = {}
        for what, columns in (("logistic regression", table), ("the same and words", np.hstack([table, words]))):
            model = fit_logistic_regression(columns[:old], labels[:old])
            said = np.log(np.clip(model.predict_proba(columns[old:]), 1e-9, 1))
            scores[what] = _scores(said, labels[old:])
        features = {"text": torch.from_numpy(raw)}
        for kind, make in key_kinds(features, old, raw.shape[1]).items():
            keys = make()
            for part in (0.0, *RECENCY) if kind == BEST else (0.0,):
                said = voted(keys, recency, part * KEY_DIM, torch.from_numpy(labels), old).numpy()
                scores[f"{kind}, recency {part}" if part else kind] = _scores(said, labels[old:])
        found[name] = scores
        print(name, *(f"\n  {kind}: accuracy {a:.3f}, balanced {b:.3f}" for kind, (a, b) in scores.items()))
    print(json.dumps({"rows": len(rows), "asked": len(rows) - old, "scores": found}))


def _scores(log_probs: np.ndarray, labels: np.ndarray) -> list[float]:
    return [round(measure(log_probs, labels), 4) for measure in (accuracy, balanced_accuracy)]


if __name__ == "__main__":
    main()
