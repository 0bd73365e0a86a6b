"""The parts tied together: input -> state -> queries, and state + retrieved items -> answer.

A system knows neither keys nor history; between `queries` and `classify` the caller selects and fetches.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from recollect.model.classifier import Classifier
from recollect.model.query_generator import RecencyQuery, SimilarityResidual
from recollect.records import Answer, Features, Items


class RetrievalSystem(nn.Module):
    """Query generator and classifier on a shared state of the input.

    The state is one vector per input, or tokens (Perceiver). A system with no slots is the plain classifier and has no
    query generator.
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
    ) -> None:
        super().__init__()
        assert isinstance(classifier, nn.Module)
        self.encoder, self.shared = encoder, shared
        self.query_generator, self.similarity, self.recency = query_generator, similarity, recency
        self.classifier: nn.Module = classifier
        self.num_retrieved = num_retrieved

    def encode(self, inputs: Features) -> Float[Tensor, "batch ..."]:
        batch = next(iter(inputs.values())).shape[0]
        state: Tensor = self.shared(self.encoder(inputs, (batch,)))
        return state

    def queries(
        self, state: Float[Tensor, "batch ..."], own_keys: Float[Tensor, "batch key_dim"]
    ) -> Float[Tensor, "batch retrieved _"]:
        """Learned queries, mixed with the input's own key and with a recency coordinate where the system has them."""
        assert self.query_generator is not None
        learned: Tensor = self.query_generator(state)
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
