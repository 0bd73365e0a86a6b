"""Reviews as the stream that all models compared on them are given: labels by a rule that changes, quarters as bins."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.reviews import Reviews, Rule, review_features
from recollect.data.splits import draw_from_bins, equal_bins, known_before_the_newest, quarters
from recollect.data.words import fit_words
from recollect.errors import SettingError
from recollect.evaluation.stream import Stream

PER_BIN = 10_000
"""How many reviews of an equal bin are asked at most: the paper's number."""


def reviews_stream(
    reviews: Reviews,
    embeddings: NDArray[Any],
    rule: Rule,
    *,
    bins: int | None = None,
    folder: Path | None = None,
    words: bool = False,
) -> Stream:
    """`embeddings` has a row for each review; with `folder` the standardised ones are mapped from a file there.

    A rating is known at the moment of its review. Bins are quarters, of which all reviews may be asked, or so many of
    equal length over all time, of which some are drawn. With `words` their scores are a feature, as in any table with
    texts.
    """
    past = np.flatnonzero(reviews.time < rule.cutoff)
    if len(past) in (0, len(reviews)):
        raise SettingError(
            f"{len(past)} of {len(reviews)} reviews are before the cutoff: choose a year with reviews on both sides"
        )
    features, specs = review_features(reviews, embeddings, past, folder=folder)
    labels = reviews.labels(rule)
    if words:
        texts = reviews.text.alias("text").to_frame()
        found = fit_words(texts, ["text"], labels, *known_before_the_newest(past, reviews.time, reviews.time))
        if found is not None:
            features, specs = features | found(texts, progress=True, folder=folder), (*specs, found.spec)
    periods = quarters(reviews.time) if bins is None else equal_bins(reviews.time, bins)
    drawn = None
    if bins is not None:
        drawn = draw_from_bins(periods, np.random.default_rng(0), per_bin=PER_BIN)
    return Stream(
        features,
        specs,
        labels,
        reviews.time,
        reviews.time,
        periods,
        rule.cutoff,
        num_classes=2,
        drawn=drawn,
    )
