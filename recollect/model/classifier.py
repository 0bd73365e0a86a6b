"""From an encoded input and its retrieved items to the probabilities of the classes.

A classifier sees what stands in the slots and how old it is. It does not know how the items were selected,
with what probability, from how large a history, or what absolute time it is.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.blocks import PerceiverStage, RowLinear, linear, mlp
from recollect.model.encoders import FlatEncoder, TokenEncoder, checked_feature
from recollect.records import Answer, Features, FeatureSpec, Items

# An item's label and age are read like two more of its features, under names no column is likely to have.
LABEL = "label of the item"
AGE = "age of the item"


@runtime_checkable  # so that the type checks of the tests can tell one
class Classifier(Protocol):
    """What every classifier takes: the input's state, its items, and whether it may look at the state."""

    def forward(
        self, state: Float[Tensor, "batch ..."], items: Items, keep_input: Bool[Tensor, " batch"]
    ) -> Answer: ...

    def __call__(
        self, state: Float[Tensor, "batch ..."], items: Items, keep_input: Bool[Tensor, " batch"]
    ) -> Answer: ...


class MLPClassifier(nn.Module):
    """A ReLU MLP on the concatenation of the state and of every slot: features, label, age and a filled flag.

    `label_classes` = 0 means that labels are not read; a label at or beyond it (a class first met after
    training) is an all-zero one-hot. An empty slot is all zeros, and so is the state where `keep_input` is
    False.
    """

    def __init__(
        self,
        state_width: int,
        hidden: Sequence[int],
        item_specs: Sequence[FeatureSpec],
        num_retrieved: int,
        num_classes: int,
        label_classes: int,
        ages: bool = False,
    ) -> None:
        super().__init__()
        self.state_width = state_width
        self.num_retrieved = num_retrieved
        self.encoder = FlatEncoder(slot_specs(item_specs, label_classes, ages, age_bands=0))
        slots_width = num_retrieved * (self.encoder.flat_width + 1)
        self.layers = mlp([state_width + slots_width, *hidden, num_classes])

    def forward(
        self, state: Float[Tensor, "batch feature_dim"], items: Items, keep_input: Bool[Tensor, " batch"]
    ) -> Answer:
        """Equals `layers(cat([state, slots]))`, but multiplies the state once per input, not per chain."""
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        state = state.masked_fill(~keep_input[:, None], 0.0)
        of_state = linear(state, first.weight[:, : self.state_width], first.bias)
        of_slots = linear(self.slots(items), first.weight[:, self.state_width :], None)
        class_logits: Tensor = self.layers[1:](of_state[:, None] + of_slots)
        return Answer(F.log_softmax(class_logits.float(), dim=-1))

    def slots(self, items: Items) -> Float[Tensor, "batch chains feature_dim"]:
        """All slots of a chain side by side."""
        features = slot_features(items, self.encoder.specs, self.num_retrieved)
        flat: Tensor = self.encoder(features, tuple(items.filled.shape))
        # Once more after the encoding: category 0 and the cosine of 0 are not zeros.
        flat = flat.masked_fill(~items.filled[..., None], 0.0)
        return torch.cat([flat, items.filled[..., None].to(flat.dtype)], dim=-1).flatten(-2)


class PerceiverClassifier(nn.Module):
    """A Perceiver stage over the input's tokens and, for every slot, one token per feature, label and age.

    The tokens of a slot share a learned mark of which slot it is, so that a label is read with its features.
    Empty slots are masked, and so is the input where `keep_input` is False; with nothing left to read, the
    answer is what the latents alone say. `label_classes` = 0 means that labels are not read; a label at or
    beyond it (a class first met after training) gives a token that says only that there is one.
    """

    def __init__(
        self,
        width: int,
        latents: int,
        heads: int,
        self_blocks: int,
        item_specs: Sequence[FeatureSpec],
        num_classes: int,
        label_classes: int,
        num_retrieved: int,
        ages: bool = False,
    ) -> None:
        super().__init__()
        self.num_retrieved = num_retrieved
        self.encoder = TokenEncoder(slot_specs(item_specs, label_classes, ages, age_bands=4), width)
        self.slot_marks = nn.Parameter(0.02 * torch.randn(num_retrieved, 1, width))
        self.stage = PerceiverStage(width, latents, heads, self_blocks)
        self.norm = nn.LayerNorm(width)
        self.head = RowLinear(width, num_classes)

    def forward(
        self,
        state: Float[Tensor, "batch tokens feature_dim"],
        items: Items,
        keep_input: Bool[Tensor, " batch"],
    ) -> Answer:
        batch, chains, _ = items.filled.shape
        features = slot_features(items, self.encoder.specs, self.num_retrieved)
        slots = self.encoder(features, tuple(items.filled.shape)) + self.slot_marks
        tokens = torch.cat([state[:, None].expand(-1, chains, -1, -1), slots.flatten(2, 3)], dim=2)
        mask = torch.cat(
            [
                keep_input[:, None, None].expand(-1, chains, state.shape[1]),
                items.filled.repeat_interleave(slots.shape[3], dim=2),
            ],
            dim=2,
        )
        latents = self.stage(tokens.flatten(0, 1), mask.flatten(0, 1))
        class_logits: Tensor = self.head(self.norm(latents).mean(dim=1))
        return Answer(F.log_softmax(class_logits.float(), dim=-1).view(batch, chains, class_logits.shape[-1]))


def slot_specs(item_specs: Sequence[FeatureSpec], label_classes: int, ages: bool, age_bands: int) -> list[FeatureSpec]:
    specs = list(item_specs)
    if label_classes > 0:
        specs.append(FeatureSpec(LABEL, "categorical", label_classes))
    if ages:
        specs.append(FeatureSpec(AGE, "numeric", 1, age_bands, max_frequency=4.0))
    return specs


def slot_features(items: Items, specs: Sequence[FeatureSpec], num_retrieved: int) -> Features:
    """The features, labels and log ages the specs ask for, with zeros in the empty slots."""
    if items.filled.shape[-1] != num_retrieved:
        came = items.filled.shape[-1]
        raise SettingError(f"the classifier reads {num_retrieved} slots, but {came} came: mark unused ones as empty")
    features = dict(items.features)
    if items.labels is not None:
        features[LABEL] = items.labels
    if items.ages is not None:
        features[AGE] = items.ages.log1p()[..., None]
    # Before any layer reads them: a NaN times a zero gradient would still be a NaN in the layer's weights.
    blank = {}
    for spec in specs:
        value = checked_feature(features, spec, tuple(items.filled.shape))
        empty = ~items.filled if spec.kind == "categorical" else ~items.filled[..., None]
        blank[spec.name] = value.masked_fill(empty, 0)
    return blank
