"""Small streams for tests of evaluation: two columns, labels that follow them, a rule that turns after the cutoff."""

import numpy as np
import torch

from recollect.evaluation.stream import Stream
from recollect.records import FeatureSpec

SPECS = (FeatureSpec("numbers", "numeric", 2),)


def make_stream(
    *,
    rows: int = 600,
    classes: int = 2,
    delay: float = 0.0,
    seed: int = 0,
    labels: np.ndarray | None = None,
    known_at: np.ndarray | None = None,
    turning: bool = True,
) -> Stream:
    """Times are 0 to 6 in equal steps, the cutoff is at 3, bins are halves; at 4 the classes change places."""
    generator = np.random.default_rng(seed)
    time = np.arange(rows) * 6 / rows
    numbers = generator.standard_normal((rows, 2)).astype(np.float32)
    if labels is None:
        labels = np.digitize(numbers[:, 0], np.linspace(-0.8, 0.8, classes - 1) if classes > 2 else [0.0])
        if turning:
            labels = np.where(time >= 4, (labels + 1) % classes, labels)
    return Stream(
        {"numbers": torch.from_numpy(numbers)},
        SPECS,
        labels.astype(np.int64),
        time,
        time + delay if known_at is None else known_at,
        np.floor(time * 2).astype(np.int64),
        3.0,
        classes,
    )
