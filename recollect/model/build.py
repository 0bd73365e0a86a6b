"""Systems from plain arguments: which query generator and classifier go together, and on what state.

The one place that knows all architectures.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from recollect.errors import SettingError
from recollect.model.blocks import RowLinear
from recollect.model.classifier import Classifier, MLPClassifier, PerceiverClassifier
from recollect.model.encoders import FlatEncoder, TokenEncoder
from recollect.model.precedents import PrecedentClassifier
from recollect.model.query_generator import (
    MetricQueryGenerator,
    MLPQueryGenerator,
    OwnKeyQueries,
    PerceiverQueryGenerator,
    RecencyQuery,
    SimilarityResidual,
)
from recollect.model.system import RetrievalSystem
from recollect.records import FeatureSpec

Architecture = Literal["mlp", "perceiver", "precedents"]


@dataclass(frozen=True)
class SlotGroup:
    """Neighbouring slots with one query: where it starts, how sharply and how recent, in logits per unit of time."""

    slots: int
    sharpness: float
    recency: float


def build_system(
    architecture: Architecture,
    input_specs: Sequence[FeatureSpec],
    item_specs: Sequence[FeatureSpec],
    *,
    key_dim: int,
    num_classes: int,
    label_classes: int,
    num_retrieved: int,
    width: int,
    hidden: Sequence[int] = (),
    heads: int = 4,
    latents: int = 128,
    blocks: int = 2,
    ages: bool = False,
    pointer: bool = True,
    differences: bool = True,
    recency: float | None = None,
    similarity: bool | Literal["only"] = False,
    groups: Sequence[SlotGroup] | None = None,
) -> RetrievalSystem:
    """A system of one of three architectures.

    mlp: the paper's synthetic settings, ReLU MLPs with the `hidden` widths on a shared input layer of `width`.
    perceiver: the paper's reviews setting. precedents: ours, attention over items, with or without a `pointer` to their
    labels and their `differences` from the input, and queries by learned similarity.
    `recency` is how many logits a unit of time is worth at the start, None for no recency coordinate. With
    `similarity` queries are learned as a residual to the input's own key; "only" leaves nothing of them to learn, so
    that an input retrieves what is most like it. With `groups` the slots of precedents are grouped, `num_retrieved` in
    all, and each group's query starts as its own key and recency. With no slots the system is the plain classifier.
    """
    if similarity == "only" and recency is not None:
        raise SettingError('similarity "only" learns no query, and recency is one: set recency to None')
    retrieves = num_retrieved > 0
    asks = retrieves and similarity != "only"  # by queries of its own
    if not retrieves:
        item_specs, label_classes, ages = [], 0, False  # of what stands in no slot, nothing is read
    state_width = FlatEncoder(input_specs).flat_width
    encoder: nn.Module = FlatEncoder(input_specs)
    shared: nn.Module = nn.Identity()
    generator: nn.Module | None
    classifier: Classifier
    if architecture == "mlp":
        shared = nn.Sequential(RowLinear(state_width, width), nn.ReLU())
        state_width = width
        generator = MLPQueryGenerator(width, hidden, num_retrieved, key_dim) if asks else None
        classifier = MLPClassifier(width, hidden, item_specs, num_retrieved, num_classes, label_classes, ages)
    elif architecture == "perceiver":
        encoder, state_width = TokenEncoder(input_specs, width), width
        generator = PerceiverQueryGenerator(width, latents, heads, blocks, num_retrieved, key_dim) if asks else None
        classifier = PerceiverClassifier(
            width, latents, heads, blocks, item_specs, num_classes, label_classes, num_retrieved, ages
        )
    else:
        if asks and groups is not None:
            generator = OwnKeyQueries(state_width, 2 * width, key_dim, [group.sharpness for group in groups])
        else:
            generator = MetricQueryGenerator(state_width, 2 * width, num_retrieved, key_dim) if asks else None
        classifier = PrecedentClassifier(
            input_specs,
            item_specs,
            num_retrieved,
            num_classes,
            label_classes,
            width=width,
            heads=heads,
            blocks=blocks,
            ages=ages,
            pointer=pointer,
            differences=differences,
        )
    levels = None
    if retrieves and (groups is not None or recency is not None):
        each = [recency] * num_retrieved if groups is None else [group.recency for group in groups]
        levels = [level * (key_dim + 1) ** 0.5 for level in each if level is not None]
    return RetrievalSystem(
        encoder=encoder,
        shared=shared,
        query_generator=generator,
        classifier=classifier,
        num_retrieved=num_retrieved,
        similarity=SimilarityResidual() if similarity is True and retrieves else None,
        recency=None if levels is None else RecencyQuery(state_width, levels),
        group_sizes=None if groups is None or not asks else [group.slots for group in groups],
    )
