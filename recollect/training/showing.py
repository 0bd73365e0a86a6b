"""What of an input and its fetched items the classifier is shown in one step: dropouts and rehearsed labels.

Drawn once per input and step, so that all chains of an input are compared under the same conditions.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from recollect.config import Dropouts, RehearsalMix
from recollect.errors import SettingError
from recollect.records import Items
from recollect.retrieval.keys import OwnKeys
from recollect.training.batches import Batch
from recollect.training.rehearsal import Rules, draw_rules


@dataclass(frozen=True)
class Showing:
    """One draw of what is shown; `rules` is None without rehearsal."""

    keep_input: Bool[Tensor, " batch"]
    dropped: Bool[Tensor, "batch retrieved"]
    wary: Bool[Tensor, " batch"]
    rules: Rules | None
    features: bool
    ages: bool

    def targets(self, batch: Batch) -> Int[Tensor, " batch"]:
        if self.rules is None:
            return batch.targets
        return self.rules.relabel(batch.targets, batch.inputs.own_keys, batch.inputs.as_of)

    def items(self, batch: Batch, positions: Int[Tensor, "batch chains retrieved"]) -> Items:
        """Fetch a selection and show it; labels follow the rule that the target follows."""
        items, fetched = batch.inputs.show(positions, features=self.features, ages=self.ages)
        labels = items.labels
        if self.rules is not None and labels is not None and fetched.times is not None:
            labels = self.rules.relabel(labels, _keys_at(batch, positions), fetched.times)
        return replace(
            items, filled=items.filled & ~self.dropped.unsqueeze(1), labels=labels, wary=self.wary.unsqueeze(1)
        )

    def labels_of_all(self, batch: Batch) -> Int[Tensor, "batch items"] | Int[Tensor, " items"]:
        """The labels of the whole history as this step's inputs would be shown them."""
        assert batch.item_labels is not None
        if self.rules is None:
            return batch.item_labels
        if not isinstance(batch.inputs.keys, OwnKeys) or batch.item_times is None:
            raise SettingError(
                "label_marginal with rehearsal relabels every item for every input, but this history is shared by "
                'all inputs: use estimator "leave_one_out", or set the rehearsal probability to 0'
            )
        return self.rules.relabel(batch.item_labels, batch.inputs.keys.keys, batch.item_times)


def draw_showing(
    batch: Batch,
    filled: Bool[Tensor, "batch retrieved"],
    dropouts: Dropouts,
    rehearsal: RehearsalMix,
    num_classes: int,
    generator: Generator,
    *,
    features: bool,
    ages: bool,
) -> Showing:
    """Decide for every input what it will be shown of its `filled` slots."""
    (size, retrieved), device = filled.shape, filled.device

    def uniform(*shape: int) -> Float[Tensor, "..."]:
        return torch.rand(*shape, generator=generator, device=device)

    keep_input = uniform(size) >= dropouts.input
    dropped = (uniform(size, retrieved) < dropouts.item) | (uniform(size, 1) < dropouts.context)
    wary = uniform(size) >= rehearsal.trusting
    rules = None
    # Without times no item could be relabelled with its target.
    if rehearsal.probability > 0 and batch.item_labels is not None and batch.item_times is not None:
        shown = (filled & ~dropped).any(1) & wary
        inputs = batch.inputs
        rules = draw_rules(
            rehearsal,
            batch.targets,
            inputs.own_keys,
            batch.oldest,
            inputs.as_of,
            shown,
            num_classes,
            generator,
        )
    return Showing(keep_input, dropped, wary, rules, features, ages)


def _keys_at(
    batch: Batch, positions: Int[Tensor, "batch chains retrieved"]
) -> Float[Tensor, "batch chains retrieved key_dim"]:
    """Keys of fetched items, without the recency coordinate."""
    keys: Tensor = batch.inputs.keys.at(positions.clamp(min=0).flatten(1)).unflatten(1, positions.shape[1:])
    return keys[..., : batch.inputs.own_keys.shape[1]]
