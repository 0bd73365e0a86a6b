"""Boosted trees, the other way to answer without precedents: they know thresholds and corners, which a small network
smooths over.

Here they only answer; `boosting.py` grows them. Every tree is complete and of one depth, so that a row goes down
all of them at once, level by level. Knows features and nothing of histories.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from recollect.model.blocks import row_sums
from recollect.model.encoders import FlatEncoder
from recollect.records import Features, FeatureSpec


class Trees(nn.Module):
    """Class logits are sums over trees; tree number n speaks for class n modulo `num_classes`, and of two classes all
    trees speak for the second.

    `known` are the classes that there were rows of: of others trees know nothing, and `completed` takes what somebody
    else says of them. Node i of a level goes on to 2i + 1 where its column is at most its threshold, else to 2i + 2;
    behind a leaf that came early all are alike.
    """

    column: Tensor
    threshold: Tensor
    value: Tensor
    known: Tensor

    def __init__(
        self,
        specs: Sequence[FeatureSpec],
        num_classes: int,
        column: Int[Tensor, "trees nodes"],
        threshold: Float[Tensor, "trees nodes"],
        value: Float[Tensor, "trees leaves"],
        known: Bool[Tensor, " classes"] | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.num_classes = FlatEncoder(specs), num_classes
        self.depth = value.shape[1].bit_length() - 1
        self.register_buffer("column", column)
        self.register_buffer("threshold", threshold)
        self.register_buffer("value", value)
        self.register_buffer("known", torch.ones(num_classes, dtype=torch.bool) if known is None else known)
        self.knows_all = bool(self.known.all())

    @torch.no_grad()
    def forward(self, features: Features) -> Float[Tensor, "batch classes"]:
        """Log-probabilities of the classes of training."""
        rows = next(iter(features.values())).shape[0]
        flat = self.encoder(features, (rows,))
        trees, nodes = self.column.shape
        first = torch.arange(trees, device=flat.device) * nodes
        columns, thresholds = self.column.flatten(), self.threshold.flatten()
        node = torch.zeros(rows, trees, dtype=torch.long, device=flat.device)
        for _ in range(self.depth):
            at = node + first
            node = 2 * node + 1 + (flat.gather(1, columns[at]) > thresholds[at])
        leaf = node - nodes + torch.arange(trees, device=flat.device) * (nodes + 1)
        return F.log_softmax(self._logits(self.value.flatten()[leaf]), dim=1)

    def completed(
        self, said: Float[Tensor, "batch classes"], others: Float[Tensor, "batch classes"]
    ) -> Float[Tensor, "batch classes"]:
        """What trees said, with what others say of classes that trees don't know."""
        return said if self.knows_all else F.log_softmax(torch.where(self.known, said, others), dim=1)

    def _logits(self, said: Float[Tensor, "batch trees"]) -> Float[Tensor, "batch classes"]:
        if self.num_classes == 2:
            of_second = row_sums(said)
            return torch.stack([torch.zeros_like(of_second), of_second], dim=1)
        by_class = said.unflatten(1, (-1, self.num_classes)).transpose(1, 2)
        return row_sums(by_class)


def together(
    network: Float[Tensor, "batch classes"], trees: Float[Tensor, "batch classes"]
) -> Float[Tensor, "batch classes"]:
    """What a network and trees say as one: the mean of their logits."""
    return F.log_softmax(0.5 * (network + trees), dim=1)
