"""The problems every part of retrieval is tried on: layouts, precisions, odd sizes and all kinds of intervals."""

from dataclasses import dataclass, replace

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
    tail: int = 0
    holes: bool = False
    early: bool = False

    def __str__(self) -> str:
        flags = [name for name in ("recency", "keep", "holes", "early") if getattr(self, name)]
        flags += [f"tail{self.tail}"] if self.tail else []
        return "-".join([self.layout, str(self.items), str(self.dtype).removeprefix("torch."), *flags])

    def build(self, temperature: float = 1.0, seed: int = 0, clusters: int | None = None) -> "Problem":
        generator = torch.Generator().manual_seed(seed)
        visible = intervals(self.items // 3 if self.early else self.items)  # early: none sees the later blocks
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
        if self.tail:
            assert isinstance(layout, SharedKeys)
            late = torch.randint(self.items, (self.tail,), generator=generator)
            tail = SharedKeys(keys[late], None if recency is None else recency[late])  # so there are ties
            after = torch.randint(self.items + 1, (self.tail,), generator=generator).sort().values
            layout = SharedKeys(keys, recency, tail, after, tail_start=-(-self.items // 256) * 256)
            visible = replace(visible, tail=tail_intervals(layout.tail_start, self.tail, batch))
        if self.holes:
            visible = replace(visible, **holes(layout.num_items, batch, generator))
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


def tail_intervals(start: int, items: int, batch: int) -> tuple[Tensor, Tensor]:
    """All of the tail, parts of it and none of it."""
    first = start + torch.arange(batch) * items // (2 * batch)
    last = start + items - torch.arange(batch) % 3
    return first, torch.where(torch.arange(batch) % 4 == 3, first, last)


def holes(items: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Some items hidden from this or that input, some from all."""
    hidden = torch.randint(-1, items, (batch, 5), generator=generator)
    hidden[:, 0] = torch.arange(batch)
    return {"hidden": hidden, "gone": torch.randint(items, (items // 20,), generator=generator).unique()}


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
    Case("shared", 300, tail=7),
    Case("shared", 256, torch.float16, tail=300, recency=True),
    Case("shared", 507, tail=20, keep=True, holes=True),
    Case("shared", 900, tail=5, early=True),
    Case("shared", 700, holes=True, recency=True),
    Case("own", 255, holes=True),
    Case("own", 123, torch.bfloat16),
    Case("own", 255, recency=True),
    Case("own", 257),
    Case("own", 507, torch.float16, recency=True),
]
