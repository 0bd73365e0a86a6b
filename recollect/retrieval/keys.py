"""How keys are laid out (one table shared by all inputs, or a history for each) and how they are multiplied.

Knows nothing of visible intervals, of temperature or of what the products are for.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.records import Extents

BLOCK = 256
"""Items per block. The pass keeps two numbers per (query, block), so memory falls and block work grows with it."""

ROWS = 8
"""Products with a shared table are padded to a multiple of so many rows. BLAS has other kernels for fewer, whose
last bits differ; with them a duplicate key in another block would not tie, and a row would depend on its batch."""

COLUMNS = 16
"""Keys per input are padded to a multiple of so many columns, 64 bytes: the last bits of a batched product depend on
how each row lies in memory, and so on its place in the batch."""


@runtime_checkable  # the shape checks of the tests ask
class Keys(Protocol):
    """Keys of a history. `products` and `add_weighted_sum_` are adjoint: scores of a tile, and back to query space."""

    @property
    def num_items(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def block(self) -> int: ...

    @property
    def longest(self) -> float:
        """No key's norm is larger; infinite where that isn't known."""
        ...

    def ceilings(
        self, queries: Float[Tensor, "batch retrieved key_dim"]
    ) -> Float[Tensor, "batch retrieved stretches"] | None:
        """No product of a query and a key of a stretch of the table, its tail aside, is larger but for rounding; None
        where nothing is known."""
        ...

    def tile(self, start: int, stop: int) -> Tensor:
        """Keys of the positions [start, stop) in float32; zeros stand where the history ends before `stop`."""
        ...

    def products(
        self, queries: Float[Tensor, "batch retrieved key_dim"], tile: Tensor, out: Tensor | None = None
    ) -> Float[Tensor, "batch retrieved items"]: ...

    def products_at(
        self, queries: Float[Tensor, "batch retrieved key_dim"], start: int, stop: int
    ) -> Float[Tensor, "batch retrieved items"]:
        """`products` of the tile [start, stop) by the quickest way: its last bits may depend on the batch and on where
        a key stands."""
        ...

    def add_weighted_sum_(
        self,
        total: Float[Tensor, "batch retrieved key_dim"],
        weights: Float[Tensor, "batch retrieved items"],
        tile: Tensor,
    ) -> None: ...

    def at(self, positions: Int[Tensor, "batch picks"]) -> Float[Tensor, "batch picks key_dim"]: ...


@dataclass(frozen=True)
class SharedKeys:
    """One table of keys for all inputs: float32, float16 or bfloat16, multiplied in float32 tile by tile.

    `recency` is a float32 column beside the keys: as one more key dimension in half precision, decades would blur.
    `tail` holds the keys of items that came out of order, older first, at the positions from `tail_start` on; each is
    younger than the first `tail_after` items of the table. `longest` bounds the norms of all of them, with recency;
    `extents` say how far those of the table reach, the tail aside.
    """

    keys: Float[Tensor, "items key_dim"]
    recency: Float[Tensor, " items"] | None = None
    tail: "SharedKeys | None" = None
    tail_after: Int[Tensor, " tail"] | None = None
    tail_start: int = 0
    longest: float = math.inf
    extents: Extents | None = None

    def __post_init__(self) -> None:
        # No block may hold items of both.
        assert self.tail is None or (self.tail_start >= self.keys.shape[0] and self.tail_start % BLOCK == 0)

    @property
    def num_items(self) -> int:
        return self.keys.shape[0] if self.tail is None else self.tail_start + self.tail.num_items

    @property
    def width(self) -> int:
        return self.keys.shape[1] + (self.recency is not None)

    @property
    def block(self) -> int:
        return BLOCK

    def ceilings(
        self, queries: Float[Tensor, "batch retrieved key_dim"]
    ) -> Float[Tensor, "batch retrieved stretches"] | None:
        if self.extents is None:
            return None
        columns = self.keys.shape[1]
        largest = torch.linalg.vector_norm(queries[..., :columns], dim=-1, keepdim=True) * self.extents.norm
        if self.recency is not None:
            along = queries[..., columns:]
            largest = largest + torch.maximum(along * self.extents.earliest, along * self.extents.latest)
        return torch.where(largest.isfinite(), largest, torch.inf)

    def tile(self, start: int, stop: int) -> Float[Tensor, "items key_dim"]:
        if self.tail is not None and stop > self.tail_start:
            tail = self.tail.tile(max(start - self.tail_start, 0), stop - self.tail_start)
            return tail if start >= self.tail_start else torch.cat([self.tile(start, self.tail_start), tail])
        rows = self.keys[start:stop].float()
        if self.recency is not None:
            rows = torch.cat([rows, self.recency[start:stop, None]], dim=1)
        return zero_padded(rows, stop - start)

    def products(
        self,
        queries: Float[Tensor, "batch retrieved key_dim"],
        tile: Float[Tensor, "items key_dim"],
        out: Float[Tensor, " scores"] | None = None,
    ) -> Float[Tensor, "batch retrieved items"]:
        batch, retrieved, _ = queries.shape
        rows = pad_rows(queries.flatten(0, 1))
        if out is not None:
            out = out[: rows.shape[0] * tile.shape[0]].view(rows.shape[0], tile.shape[0])
        product = torch.mm(rows, tile.T, out=out)
        return product[: batch * retrieved].view(batch, retrieved, -1)

    def products_at(
        self, queries: Float[Tensor, "batch retrieved key_dim"], start: int, stop: int
    ) -> Float[Tensor, "batch retrieved items"]:
        if self.tail is not None and stop > self.tail_start:
            return self.products(queries, self.tile(start, stop))
        # For a few queries padding them doubles the time, and a tile with recency, a copy of its keys, does so again.
        rows = queries.flatten(0, 1)
        columns = self.keys.shape[1]
        product = torch.mm(rows[:, :columns], self.keys[start:stop].float().T)
        if self.recency is not None:
            product.addr_(rows[:, columns], self.recency[start:stop])
        missing = stop - start - product.shape[1]
        if missing > 0:
            product = F.pad(product, (0, missing))  # not the keys: copying those would take as long as the product
        return product.view(*queries.shape[:2], -1)

    def add_weighted_sum_(
        self,
        total: Float[Tensor, "batch retrieved key_dim"],
        weights: Float[Tensor, "batch retrieved items"],
        tile: Float[Tensor, "items key_dim"],
    ) -> None:
        total.view(-1, self.width).addmm_(weights.flatten(0, 1), tile)

    def at(self, positions: Int[Tensor, "batch picks"]) -> Float[Tensor, "batch picks key_dim"]:
        if self.tail is not None:
            late = positions >= self.tail_start
            tail = self.tail.at((positions - self.tail_start).clamp(0, self.tail.num_items - 1))
            if self.keys.shape[0] == 0:
                return tail
            # Between the two, positions of the last block that is not full may be asked for; nobody sees them.
            table = replace(self, tail=None, tail_after=None).at(positions.clamp(max=self.keys.shape[0] - 1))
            return torch.where(late.unsqueeze(-1), tail, table)
        # index_select copies whole rows, twice as fast as keys[positions].
        rows = self.keys.index_select(0, positions.flatten()).float().view(*positions.shape, self.keys.shape[1])
        if self.recency is None:
            return rows
        return torch.cat([rows, self.recency[positions].unsqueeze(-1)], dim=-1)


@dataclass(frozen=True)
class OwnKeys:
    """A history of its own for every input, as in the synthetic tasks."""

    keys: Float[Tensor, "batch items key_dim"]
    recency: Float[Tensor, "batch items"] | None = None

    @functools.cached_property
    def rows(self) -> Float[Tensor, "batch items columns"]:
        keys = self.keys.float()
        if self.recency is not None:
            keys = torch.cat([keys, self.recency[..., None]], dim=-1)
        return pad_columns(keys)

    @property
    def num_items(self) -> int:
        return self.keys.shape[1]

    @property
    def width(self) -> int:
        return self.keys.shape[2] + (self.recency is not None)

    @property
    def block(self) -> int:
        return max(1, min(BLOCK, self.num_items))

    @functools.cached_property
    def longest(self) -> float:
        return float(torch.linalg.vector_norm(self.rows, dim=-1).max()) if self.rows.numel() else 0.0

    def ceilings(
        self, queries: Float[Tensor, "batch retrieved key_dim"]
    ) -> Float[Tensor, "batch retrieved stretches"] | None:
        return None

    def tile(self, start: int, stop: int) -> Float[Tensor, "batch items columns"]:
        rows = self.rows[:, start:stop]
        return zero_padded(rows, stop - start)

    def products(
        self,
        queries: Float[Tensor, "batch retrieved key_dim"],
        tile: Float[Tensor, "batch items columns"],
        out: Float[Tensor, " scores"] | None = None,
    ) -> Float[Tensor, "batch retrieved items"]:
        assert out is None  # their logits are always kept, so made at once
        return pad_columns(queries) @ tile.transpose(1, 2)

    def products_at(
        self, queries: Float[Tensor, "batch retrieved key_dim"], start: int, stop: int
    ) -> Float[Tensor, "batch retrieved items"]:
        return self.products(queries, self.tile(start, stop))

    def add_weighted_sum_(
        self,
        total: Float[Tensor, "batch retrieved key_dim"],
        weights: Float[Tensor, "batch retrieved items"],
        tile: Float[Tensor, "batch items columns"],
    ) -> None:
        total.baddbmm_(weights, tile[..., : self.width])

    def at(self, positions: Int[Tensor, "batch picks"]) -> Float[Tensor, "batch picks key_dim"]:
        return self.rows.gather(1, positions.unsqueeze(-1).expand(-1, -1, self.width))


def zero_padded(rows: Float[Tensor, "*lead rows key_dim"], size: int) -> Float[Tensor, "*lead size key_dim"]:
    """Zero rows up to a size; the same tensor where none is missing (`pad` would copy)."""
    missing = size - rows.shape[-2]
    return F.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows


def pad_rows(queries: Float[Tensor, "*lead rows key_dim"]) -> Float[Tensor, "*lead padded key_dim"]:
    """Zero rows up to the next multiple of ROWS."""
    return zero_padded(queries, -(-queries.shape[-2] // ROWS) * ROWS)


def pad_columns(rows: Float[Tensor, "*lead key_dim"]) -> Float[Tensor, "*lead columns"]:
    """Zero columns up to the next multiple of COLUMNS; the same tensor where none is missing."""
    missing = -rows.shape[-1] % COLUMNS
    return F.pad(rows, (0, missing)) if missing else rows
