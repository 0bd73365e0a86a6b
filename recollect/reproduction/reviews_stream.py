"""Reviews as the stream that all models compared on them are given: labels by a rule that changes, quarters as bins."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.reviews import Reviews, Rule, review_features
from recollect.data.splits import quarters
from recollect.errors import SettingError
from recollect.evaluation.stream import Stream


def reviews_stream(reviews: Reviews, embeddings: NDArray[Any], rule: Rule, *, out: Path | None = None) -> Stream:
    """`embeddings` has a row for each review; `out` keeps the standardised ones in a file, where they outgrow memory.

    A rating is known at the moment of its review.
    """
    past = np.flatnonzero(reviews.time < rule.cutoff)
    if len(past) in (0, len(reviews)):
        raise SettingError(
            f"{len(past)} of {len(reviews)} reviews are before the cutoff: choose a year with reviews on both sides"
        )
    features, specs = review_features(reviews, embeddings, past, out=out)
    return Stream(
        features,
        specs,
        reviews.labels(rule),
        reviews.time,
        reviews.time,
        quarters(reviews.time),
        rule.cutoff,
        num_classes=2,
    )
