"""The problems every part of retrieval is tried on: layouts, precisions, odd sizes and all kinds of intervals."""

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import OwnKeys, SharedKeys
from recollect.retrieval.scoring import Scores, score
from tests.reference import dense_keys, dense_logits

RETRIEVED = 3


@dataclass(frozen=True)
class Case:
    """A layout and size of keys; `build` makes the tensors."""

    layout: str
    items: int
    dtype: torch.dtype = torch.float32
    recency: bool = False
    keep: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("recency", "keep") if getattr(self, name)]
        return "-".join([self.layout, str(self.items), str(self.dtype).removeprefix("torch."), *flags])

    def build(self, temperature: float = 1.0, seed: int = 0, clusters: int | None = None) -> "Problem":
        generator = torch.Generator().manual_seed(seed)
        visible = intervals(self.items)
        batch, width = visible.start.shape[0], 6
        lead = (batch,) if self.layout == "own" else ()
        keys = torch.randn(*lead, self.items, width, generator=generator)
        if clusters is not None:
            # A few centres and a little noise: near ties, so that a low temperature still leaves a choice.
            centres = torch.randn(*lead, clusters, width, generator=generator)
            which = torch.randint(clusters, (self.items,), generator=generator)
            keys = centres[..., which, :] + 0.5 * temperature * keys
        keys = keys.to(self.dtype)
        recency = torch.rand(*lead, self.items, generator=generator) if self.recency else None
        layout = OwnKeys(keys, recency) if self.layout == "own" else SharedKeys(keys, recency)
        queries = torch.randn(batch, RETRIEVED, layout.width, generator=generator)
        return Problem(queries, layout, visible, temperature, 1 << 30 if self.keep else 0)


@dataclass(frozen=True)
class Problem:
    queries: Tensor
    keys: SharedKeys | OwnKeys
    visible: Visible
    temperature: float
    keep_bytes: int

    @property
    def scale(self) -> float:
        return self.scores().scale

    def scores(self) -> Scores:
        return score(self.queries, self.keys, self.visible, temperature=self.temperature, keep_bytes=self.keep_bytes)

    def logits(self, queries: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        """The dense logits, base e, differentiable in `queries`."""
        queries = self.queries if queries is None else queries
        return dense_logits(queries, dense_keys(self.keys), self.visible, self.scale, dtype)


def intervals(items: int) -> Visible:
    """One input for each kind of interval: all, a window, across a block's edge, ends, few items, one, none."""
    inside = [
        (0, items),
        (items // 3, 2 * items // 3),
        (min(250, items // 2), min(260, items)),
        (0, min(256, items - 1)),
        (items - 1, items),
        (items // 2, items // 2 + 2),
        (5, 6),
        (0, 0),
        (items, items),
    ]
    return Visible(torch.tensor([start for start, _ in inside]), torch.tensor([stop for _, stop in inside]))


CASES = [
    Case("shared", 123),
    Case("shared", 255, keep=True),
    Case("shared", 257, recency=True),
    Case("shared", 507, torch.float16),
    Case("shared", 507, torch.bfloat16, recency=True),
    Case("shared", 507, torch.float16, recency=True, keep=True),
    Case("shared", 700),
    Case("own", 123, torch.bfloat16),
    Case("own", 255, recency=True),
    Case("own", 257),
    Case("own", 507, torch.float16, recency=True),
]
