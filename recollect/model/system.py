"""The parts tied together: input -> state -> queries, and state + retrieved items -> answer.

A system knows neither keys nor history; between `queries` and `classify` the caller selects and fetches.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recollect.model.classifier import Classifier
from recollect.model.query_generator import OwnKeyQueries, RecencyQuery, SimilarityResidual
from recollect.records import Answer, Features, Items


class RetrievalSystem(nn.Module):
    """Query generator and classifier on a shared state of the input.

    The state is one vector per input, or tokens (Perceiver). A system without a query generator asks with the input's
    own key in every slot; one with no slots is the plain classifier. With `group_sizes` neighbouring slots share a
    query: then what they select greedily takes one pass over the keys for each group.
    """

    def __init__(
        self,
        *,
        encoder: nn.Module,
        shared: nn.Module,
        query_generator: nn.Module | None,
        classifier: Classifier,
        num_retrieved: int,
        similarity: SimilarityResidual | None = None,
        recency: RecencyQuery | None = None,
        group_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        assert isinstance(classifier, nn.Module)
        self.encoder, self.shared = encoder, shared
        self.query_generator, self.similarity, self.recency = query_generator, similarity, recency
        self.classifier: nn.Module = classifier
        self.num_retrieved = num_retrieved
        self.group_sizes = None if group_sizes is None else tuple(group_sizes)
        assert self.group_sizes is None or sum(self.group_sizes) == num_retrieved

    def encode(self, inputs: Features) -> Float[Tensor, "batch ..."]:
        batch = next(iter(inputs.values())).shape[0]
        state: Tensor = self.shared(self.encoder(inputs, (batch,)))
        return state

    def queries(
        self, state: Float[Tensor, "batch ..."], own_keys: Float[Tensor, "batch key_dim"]
    ) -> Float[Tensor, "batch retrieved _"]:
        """Learned queries, mixed with the input's own key and with a recency coordinate where the system has them.

        One for each slot; where slots are grouped, those of a group have the same.
        """
        distinct = self.distinct_queries(state, own_keys)
        if self.group_sizes is None:
            return distinct
        return distinct.repeat_interleave(torch.tensor(self.group_sizes, device=distinct.device), dim=1)

    def distinct_queries(
        self, state: Float[Tensor, "batch ..."], own_keys: Float[Tensor, "batch key_dim"]
    ) -> Float[Tensor, "batch groups _"]:
        """One query for each group of slots."""
        if self.query_generator is None:
            return own_keys.unsqueeze(1).expand(-1, self.num_retrieved, -1)
        if isinstance(self.query_generator, OwnKeyQueries):
            learned: Tensor = self.query_generator(state, own_keys)
        else:
            learned = self.query_generator(state)
        if self.similarity is not None:
            learned = self.similarity(learned, own_keys)
        if self.recency is None:
            return learned
        summary = state if state.ndim == 2 else state.mean(1)
        return torch.cat([learned, self.recency(summary).unsqueeze(-1)], dim=-1)

    def classify(self, state: Float[Tensor, "batch ..."], items: Items, keep_input: Bool[Tensor, " batch"]) -> Answer:
        answer: Answer = self.classifier(state, items, keep_input)
        return answer

    def retrieval_parameters(self) -> Iterator[nn.Parameter]:
        """What the score function trains; the shared input layer belongs to the rest."""
        for part in (self.query_generator, self.similarity, self.recency):
            if part is not None:
                yield from part.parameters()
