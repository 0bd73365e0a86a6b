"""Trees over the newest items of a history, grown anew as it grows. Nothing of the model moves.

Thresholds and corners that a change brings are told by neither neighbours nor regressions.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.newest import NewestFits, Untrained
from recollect.model.boosting import Growth, boosted, table_of
from recollect.model.neighbours import centred
from recollect.model.trees import Trees
from recollect.records import Features, FeatureSpec, Visible

MOST_CLASSES = 32
"""With more, trees would take longer to grow than the answers they are for."""

ROUNDS, MOST_TREES = 40, 200
"""With many classes there are fewer rounds: each round has a tree for every class."""

LEAST_ROWS = 20
MANY_COLUMNS = 64
"""Of a text's columns each tree tries a part: all of them would take four times as long and find no more."""

MOST_CATEGORIES = 64
"""Of a column with more of them hardly one has the rows that a leaf takes, and a table of all takes long to read."""

PLAIN = "(plain answer)"
"""The name of a feature beside those of the items."""


class Regrown:
    """Trees over one history; to be forgotten when positions come to mean other items, or late ones come."""

    def __init__(self) -> None:
        self._fits = NewestFits[Trees]()

    def forget(self) -> None:
        self._fits.forget()

    def answers(
        self,
        features: Features,
        specs: Sequence[FeatureSpec],
        plain: Float[Tensor, "batch classes"],
        visible: Visible,
        window: int,
        untrained: Untrained,
        plain_of_items: Float[Tensor, "rows classes"],
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        """What the last trees over items that an input may see make of its features and of its plain answer; they look
        back on `window` items, and on none that were trained on. Also, for each input, of how many classes they speak.
        `plain_of_items` is by stored row."""
        if plain.shape[1] > MOST_CLASSES:
            return plain, torch.full((len(plain),), plain.shape[1])
        read_by_trees = tuple(spec for spec in specs if spec.kind != "categorical" or spec.width <= MOST_CATEGORIES)
        make = partial(_grown, read_by_trees, untrained, plain_of_items)
        read = _with_plain(features, plain)

        def say(trees: Trees) -> Float[Tensor, "batch _"]:
            more = (0, trees.num_classes - plain.shape[1])
            # A class first met after training that these items lack, as half of one of them would tell of it.
            return trees.completed(trees(read), F.pad(plain, more, value=math.log(0.5 / window)))

        return self._fits.answers(plain, visible, window, untrained, make, say)


def _with_plain(features: Features, plain: Float[Tensor, "rows classes"]) -> Features:
    return {**features, PLAIN: centred(plain)}


def _grown(
    specs: tuple[FeatureSpec, ...],
    untrained: Untrained,
    plain_of_items: Float[Tensor, "rows classes"],
    positions: Int[Tensor, " items"],
) -> Trees | None:
    """None where there are too few items to part, or all have one label."""
    view, known = untrained.view, plain_of_items.shape[1]
    positions = positions[view.at("label", positions) < MOST_CLASSES]
    labels = view.at("label", positions)
    if len(labels) < 2 * LEAST_ROWS or bool((labels == labels[0]).all()):
        return None
    rows = view.at("row", positions)
    plain = plain_of_items[rows].cpu()
    assert not bool(plain.isnan().any()), "trees need what the plain classifier says of all their items"
    stored = view.source.fetch(rows, [spec.name for spec in specs])
    read = (*specs, FeatureSpec(PLAIN, "embedded", known))
    classes = max(known, int(labels.max()) + 1)
    growth = Growth(
        rounds=min(ROUNDS, MOST_TREES // classes),
        depth=5,
        leaves=15,
        least_rows=LEAST_ROWS,
        many_columns=MANY_COLUMNS,
        seed=0,
    )
    table = table_of(_with_plain(stored, plain), read)
    return boosted((table, labels.cpu().numpy()), read, classes, growth).trees.to(plain_of_items.device)
