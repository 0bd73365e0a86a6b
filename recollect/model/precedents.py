"""The default classifier: the input attends to its precedents, and may point at their labels.

Sees the input, what stands in the slots and how old it is; never absolute time, which goes out of distribution, and
never how an item was selected.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.model.blocks import ReadingBlock, RowLinear, normalised, rounded_up
from recollect.model.classifier import AGE, LABEL, slot_features, slot_specs
from recollect.model.encoders import FlatEncoder
from recollect.records import Answer, FeatureSpec, Items


class PrecedentClassifier(nn.Module):
    """Blocks in which the input's token attends to one token per slot, then two ways to answer.

    A linear head on the input's token knows the classes of training. The pointer gives each class the attention on
    items of that class, so a class that occurs only among the retrieved items can be answered. A learned gate mixes
    the two; with no item the head answers alone, and so it does where items have no labels (`label_classes` = 0).

    Items are embedded by the layer that embeds inputs where they have the same features, so that they can be compared
    from the first step on; and each is also told how it differs from the input, since "a little dearer than that one"
    stays true when all prices move.
    """

    def __init__(
        self,
        input_specs: Sequence[FeatureSpec],
        item_specs: Sequence[FeatureSpec],
        num_retrieved: int,
        num_classes: int,
        label_classes: int,
        *,
        width: int,
        heads: int,
        blocks: int,
        ages: bool = True,
        pointer: bool = True,
        differences: bool = True,
    ) -> None:
        super().__init__()
        self.num_retrieved, self.num_classes, self.label_classes = num_retrieved, num_classes, label_classes
        self.ages = ages
        self.input_encoder = FlatEncoder(input_specs)
        self.item_encoder = FlatEncoder(item_specs)
        self.item_specs = slot_specs(item_specs, label_classes, ages, age_bands=0)
        self.embed_input = RowLinear(self.input_encoder.flat_width, width)
        self.embed_item = self.embed_difference = None
        if self.item_encoder.flat_width:
            same = list(input_specs) == list(item_specs)
            self.embed_item = self.embed_input if same else RowLinear(self.item_encoder.flat_width, width)
            self.embed_difference = _two_layers(width, width) if same and differences else None
        # One row more than classes: every class first met after training is "a label not seen before".
        self.embed_label = nn.Embedding(label_classes + 1, width) if label_classes else None
        self.embed_age = _two_layers(3, width) if ages else None
        self.marks = nn.Parameter(0.02 * torch.randn(2, width))
        self.wary_mark = nn.Parameter(torch.zeros(width))
        self.blocks = nn.ModuleList(ReadingBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = RowLinear(width, num_classes)
        self.points = pointer and label_classes > 0
        if self.points:
            self.point_from = RowLinear(width, width)
            self.gate = RowLinear(width, 1)

    def forward(
        self, state: Float[Tensor, "batch feature_dim"], items: Items, keep_input: Bool[Tensor, " batch"]
    ) -> Answer:
        chains = items.filled.shape[1]
        embedded = self.embed_input(state).masked_fill(~keep_input[:, None], 0.0)
        wary = torch.ones_like(keep_input).unsqueeze(1) if items.wary is None else items.wary
        of_input = (embedded + self.marks[0]).unsqueeze(1) + wary.unsqueeze(2) * self.wary_mark
        tokens = None
        # Where nobody has an item there is nothing to read: plain answers to thousands of items need no tokens. In
        # training every weight gets a gradient all the same.
        if torch.is_grad_enabled() or bool(items.filled.any()):
            # A weight of zero does not stop a NaN, so what stands in an empty slot is also erased.
            tokens = self._item_tokens(items.selection(), embedded).masked_fill(~items.filled.unsqueeze(-1), 0.0)
            tokens = normalised(tokens)
        answering = of_input.expand(-1, chains, -1)
        for block in self.blocks:
            answering = block(answering, tokens, items.filled)
        from_input = self.norm(answering)
        # Probabilities are float32 whatever precision the layers have.
        class_log_probs = F.log_softmax(self.head(from_input).float(), dim=-1)
        if items.labels is None or not self.points:
            return Answer(class_log_probs)
        if tokens is None:
            weights = torch.zeros(items.filled.shape, device=items.filled.device)
        else:
            weights = self._attention(from_input, tokens, items.filled)
        gate = self.gate(from_input).float()
        return self._mix(class_log_probs, weights, gate, items.labels, items.filled)

    def _item_tokens(
        self, items: Items, of_input: Float[Tensor, "batch feature_dim"]
    ) -> Float[Tensor, "batch chains retrieved feature_dim"]:
        features = slot_features(items, self.item_specs, self.num_retrieved)
        tokens = self.marks[1].expand(*items.filled.shape, -1)
        of_items = self.marks.new_zeros(())
        if self.embed_item is not None:
            of_items = self.embed_item(self.item_encoder(features, tuple(items.filled.shape)))
            if self.embed_difference is not None:
                tokens = tokens + self.embed_difference(of_input[:, None, None] - of_items)
        if self.embed_label is not None:
            tokens = tokens + self.embed_label(features[LABEL].clamp(max=self.label_classes))
        if self.embed_age is not None:
            age = features[AGE].expm1()
            scales = torch.cat([age, (30.0 * age).log1p() / 3.0, (1000.0 * age).log1p() / 7.0], dim=-1)
            tokens = tokens + self.embed_age(scales)
        return tokens + of_items

    def _attention(
        self,
        from_input: Float[Tensor, "batch chains feature_dim"],
        tokens: Float[Tensor, "batch chains retrieved feature_dim"],
        filled: Bool[Tensor, "batch chains retrieved"],
    ) -> Float[Tensor, "batch chains retrieved"]:
        scores = (tokens @ self.point_from(from_input).unsqueeze(-1)).squeeze(-1)
        scores = scores.float() / tokens.shape[-1] ** 0.5
        nothing = ~filled.any(-1, keepdim=True)
        # A softmax over nothing is 0/0: let such rows look anywhere, and drop what they saw.
        scores = scores.masked_fill(~(filled | nothing), -torch.inf)
        weights: Tensor = scores.softmax(-1).masked_fill(nothing, 0.0)
        return weights

    def _mix(
        self,
        class_log_probs: Float[Tensor, "batch chains classes"],
        weights: Float[Tensor, "batch chains retrieved"],
        gate: Float[Tensor, "batch chains 1"],
        labels: Int[Tensor, "batch chains retrieved"],
        filled: Bool[Tensor, "batch chains retrieved"],
    ) -> Answer:
        """log((1 - gate) head + gate pointer), over as many classes as the labels reach if any is new."""
        highest = int(labels.masked_fill(~filled, 0).max()) if labels.numel() else 0
        classes = max(self.num_classes, highest + 1)
        # Computed some classes wider: else an answer's last bits would tell whether others met a new class.
        width = rounded_up(classes)
        shape = (*labels.shape[:2], width)
        pointed = weights.new_zeros(shape).scatter_add(2, labels.masked_fill(~filled, 0), weights)
        nothing = ~filled.any(-1, keepdim=True)
        # Impossible is a tiny probability, not zero: the gradient of log(0 + 0) is NaN.
        tiny = torch.finfo(pointed.dtype).tiny
        log_keep = F.logsigmoid(-gate).masked_fill(nothing, 0.0)
        log_point = F.logsigmoid(gate).masked_fill(nothing, math.log(tiny))
        head = F.pad(class_log_probs, (0, width - self.num_classes), value=math.log(tiny))
        log_probs = torch.logaddexp(head + log_keep, pointed.clamp(min=tiny).log() + log_point)
        # A new class that only others' items have: what an input is told must not depend on its batch.
        unheard = (pointed == 0) & (torch.arange(width, device=pointed.device) >= self.num_classes)
        return Answer(log_probs.masked_fill(unheard, -torch.inf)[..., :classes], weights)


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(RowLinear(inputs, width), nn.ReLU(), RowLinear(width, width))
