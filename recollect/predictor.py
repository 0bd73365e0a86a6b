"""Predictions with precedents, the one way of making them: replay, reports and services all come through here.

Selection is greedy, the zero-temperature limit of training. Every product is padded to tiles of 64 rows, so that the
bits of an answer do not depend on what else was asked in the same call.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.inputs import Inputs
from recollect.model.system import RetrievalSystem
from recollect.model.trees import Trees, together
from recollect.records import Answer, Features, FeatureSpec
from recollect.retrieval.gradients import log_normaliser, retrieve
from recollect.retrieval.scoring import score
from recollect.retrieval.top import top_of_groups

TILE_ROWS = 64


@dataclass(frozen=True)
class Predictions:
    """Answers and their precedents. Slots that found nothing have position -1 and weight 0.

    `probability` is the retrieval's, given the earlier slots; `weight` the classifier's attention, None without one.
    """

    log_probs: Float[Tensor, "batch classes"]
    positions: Int[Tensor, "batch retrieved"]
    probability: Float[Tensor, "batch retrieved"]
    weight: Float[Tensor, "batch retrieved"] | None
    age: Float[Tensor, "batch retrieved"] | None


@dataclass(frozen=True)
class Predictor:
    """A trained system, and the trees beside it if there are some, with the settings that prediction needs; holds no
    history. `pool` weighs the heads that answer with it, for the head that makes one answer of all; None: evenly.
    `specs` tell of the features of inputs, for heads that look at these by themselves."""

    system: RetrievalSystem
    temperature: float = 1.0
    retrieve: str = "items"
    ages: bool = True
    trees: Trees | None = None
    pool: Float[Tensor, " heads"] | None = None
    specs: tuple[FeatureSpec, ...] = ()

    @torch.no_grad()
    def predict(self, inputs: Inputs, *, use_context: bool = True, wary: bool = True) -> Predictions:
        """Answer every input; with `use_context` False from the same weights with every slot empty, and with `wary`
        False as if labels could only follow the rule of training."""
        if len(inputs) == 0:
            return self._predict_tile(inputs, 0, use_context=False, wary=wary)
        tiles = []
        for first in range(0, len(inputs), TILE_ROWS):
            count = min(TILE_ROWS, len(inputs) - first)
            index = torch.arange(first, first + TILE_ROWS, device=inputs.rows.device).clamp(max=len(inputs) - 1)
            tiles.append(_first_rows(self._predict_tile(inputs.take(index), count, use_context, wary), count))
        return _joined(tiles)

    def plain(self, inputs: Inputs) -> Float[Tensor, "batch classes"]:
        """What network and trees say together without precedents."""
        by_network = self.predict(inputs, use_context=False, wary=False).log_probs
        return together(by_network, self.by_trees(inputs.features, by_network))

    def by_trees(
        self, features: Features, by_network: Float[Tensor, "batch classes"]
    ) -> Float[Tensor, "batch classes"]:
        """What the trees say; where there are none, or none of a class, what the network says."""
        return by_network if self.trees is None else self.trees.completed(self.trees(features), by_network)

    def _predict_tile(self, inputs: Inputs, different: int, use_context: bool, wary: bool) -> Predictions:
        system = self.system
        size = (len(inputs), system.num_retrieved)
        state = system.encode(inputs.features)
        keep_input = torch.ones(len(inputs), dtype=torch.bool, device=inputs.rows.device)
        positions = torch.full((size[0], 1, size[1]), -1, device=inputs.rows.device)
        probability = torch.zeros(size, device=inputs.rows.device)
        if system.num_retrieved and use_context:
            positions, probability = self.select(state, inputs, different)
        items, fetched = inputs.show(positions, features=self.retrieve == "items", ages=self.ages)
        items = replace(items, wary=torch.full_like(keep_input, wary).unsqueeze(1))
        answer: Answer = system.classify(state, items, keep_input)
        age = None
        if fetched.times is not None:
            age = (inputs.as_of[:, None] - fetched.times[:, 0]).float().masked_fill(~items.filled[:, 0], 0.0)
        weight = None if answer.weights is None else answer.weights[:, 0]
        return Predictions(answer.log_probs[:, 0], positions[:, 0], probability, weight, age)

    def select(
        self, state: Float[Tensor, "batch ..."], inputs: Inputs, different: int, *, with_probability: bool = True
    ) -> tuple[Int[Tensor, "batch 1 retrieved"], Float[Tensor, "batch retrieved"]]:
        """Greedily, with the retrieval's probability of each pick; for groups of slots that takes one pass more.

        From the row `different` on all are as the one before it, and the keys are not gone through for them again.
        """
        if self.system.group_sizes is not None:
            queries, rows = self.system.distinct_queries(state, inputs.own_keys), slice(0, different)
            picks = top_of_groups(queries[rows], self.system.group_sizes, inputs.keys, inputs.visible.take(rows))
            picks = repeated(picks, len(inputs))
            probability = self._probability(queries, picks, inputs) if with_probability else torch.zeros(picks.shape)
            return picks.unsqueeze(1), probability
        queries = self.system.queries(state, inputs.own_keys)
        found = retrieve(queries, inputs.keys, inputs.visible, temperature=self.temperature, compiled=False)
        chain = found.greedy()
        return chain.positions, chain.log_p[:, 0].exp().clamp(max=1.0) * chain.filled[:, 0]

    def _probability(
        self,
        queries: Float[Tensor, "batch groups key_dim"],
        picks: Int[Tensor, "batch retrieved"],
        inputs: Inputs,
    ) -> Float[Tensor, "batch retrieved"]:
        """That the first slot of a pick's group would have drawn it."""
        assert self.system.group_sizes is not None
        scores = score(queries, inputs.keys, inputs.visible, temperature=self.temperature, compiled=False)
        if inputs.keys.num_items == 0:
            return torch.zeros(picks.shape, device=picks.device)
        sizes = torch.tensor(self.system.group_sizes, device=queries.device)
        keys = inputs.keys.at(picks.clamp(min=0))
        logits = (queries.repeat_interleave(sizes, dim=1) * keys).sum(-1) * scores.scale
        log_p = logits - log_normaliser(queries, scores).repeat_interleave(sizes, dim=1)
        return log_p.exp().clamp(max=1.0).masked_fill(picks < 0, 0.0)


def repeated(values: Shaped[Tensor, "rows *rest"], count: int) -> Shaped[Tensor, "count *rest"]:
    """The last row again and again, until there are so many."""
    return values[torch.arange(count, device=values.device).clamp(max=len(values) - 1)]


def _first_rows(predictions: Predictions, count: int) -> Predictions:
    return replace(
        predictions,
        log_probs=predictions.log_probs[:count],
        positions=predictions.positions[:count],
        probability=predictions.probability[:count],
        weight=None if predictions.weight is None else predictions.weight[:count],
        age=None if predictions.age is None else predictions.age[:count],
    )


def _joined(tiles: list[Predictions]) -> Predictions:
    """Tiles one below the other; a tile that met no new class says of it that it is impossible."""
    classes = max(tile.log_probs.shape[1] for tile in tiles)
    padded = [F.pad(tile.log_probs, (0, classes - tile.log_probs.shape[1]), value=-torch.inf) for tile in tiles]
    weights = [tile.weight for tile in tiles if tile.weight is not None]
    ages = [tile.age for tile in tiles if tile.age is not None]
    return Predictions(
        log_probs=torch.cat(padded),
        positions=torch.cat([tile.positions for tile in tiles]),
        probability=torch.cat([tile.probability for tile in tiles]),
        weight=torch.cat(weights) if weights else None,
        age=torch.cat(ages) if ages else None,
    )
