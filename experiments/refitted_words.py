"""What refitting a regression over reviews would give if what it reads of their words were fitted anew with it.

    python experiments/refitted_words.py --reviews FILE --cutoff 2012

The peers of `recollect reproduce reviews` read scores of words that were fitted before the cutoff, as ours does.
Whoever refits a classifier of texts every quarter would fit these anew as well: at the start of each quarter, here, to
the same rows of the last year as the regression. Beside it the regression as it is in the tables. It looks past the
cutoff, so nothing is chosen by it. Prints one JSON object as its last line.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.cli_options import default_cache
from recollect.data.embedding import EmbedderSpec, load_embedder
from recollect.data.embedding_cache import embed_column
from recollect.data.features import WORDS
from recollect.data.reviews import Rule, read_reviews, start_of
from recollect.data.word_scores import fit_word_scores
from recollect.evaluation.metrics import MEASURES, accuracy, mean_over_bins, per_bin
from recollect.evaluation.refitted_peers import fit_logistic_regression
from recollect.evaluation.simple_peers import by_period
from recollect.evaluation.stream import Stream
from recollect.reproduction.reviews_stream import reviews_stream

YEAR = 365 * 24 * 3600 * 10**9


def answers(stream: Stream, texts: pl.Series, *, refit_words: bool) -> NDArray[np.float64]:
    """Log-probabilities of the asked rows, by a regression fitted to the last year at the start of each quarter."""
    table = (stream.without(WORDS) if refit_words else stream).table
    found = np.empty((len(stream.asked), stream.num_classes))
    for places in by_period(stream, None):
        rows = stream.asked[places]
        moment = stream.time[rows[0]].item()
        window = stream.known_before(moment, moment - YEAR)
        read = {"window": table[window], "rows": table[rows]}
        if refit_words:
            words = fit_word_scores(texts.gather(window).to_list(), stream.labels[window])
            assert words is not None
            for name, part in (("window", window), ("rows", rows)):
                read[name] = np.hstack([read[name], np.nan_to_num(words(texts.gather(part).to_list()))])
        model = fit_logistic_regression(read["window"], stream.labels[window])
        found[places] = np.log(model.predict_proba(read["rows"]))
        print(f"quarter {stream.bins[rows[0]]}: {accuracy(found[places], stream.labels[rows]):.3f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--cutoff", type=int, default=2014)
    arguments = parser.parse_args()
    rows, _ = read_reviews(arguments.reviews)
    embeddings = embed_column(rows.text.to_list(), load_embedder(EmbedderSpec("wordllama")), default_cache())
    stream = reviews_stream(rows, embeddings, Rule(start_of(arguments.cutoff)), words=True)
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    result = {}
    for name, refit_words in (("as in the tables", False), ("words fitted anew", True)):
        found = answers(stream, rows.text, refit_words=refit_words)
        means = {measure: mean_over_bins(MEASURES[measure], found, labels, bins) for measure in MEASURES}
        means["first_bin"] = float(per_bin(accuracy, found, labels, bins)[0])
        result[name] = {measure: round(value, 4) for measure, value in means.items()}
        print(name, result[name])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
