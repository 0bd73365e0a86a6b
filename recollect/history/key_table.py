"""Keys, labels and times of a history's items in memory, in order of `known_at`: what retrieval searches.

Follows a history as it grows. Items that come in order, by far the most, are written behind the others in place; what
comes out of order waits in a small tail until it is merged. A view that was handed out never changes: nothing is ever
written over what it shows.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.history.visibility import EVERYTHING, Exceptions, Window, visible_with, without
from recollect.records import STRETCH, Clock, Extents, Features, Visible

Array = npt.NDArray[Any]

LEAST_MERGED = 4096
MERGED_SHARE = 64
"""The tail is merged, and erased items are dropped, when there are more of them than LEAST_MERGED and than one in
MERGED_SHARE of all: a merge copies the whole table."""

TAIL_ALIGNMENT = 256
"""The tail begins at a multiple of so many positions, so that no block of keys holds items of both."""


PLAIN_CLOCK = Clock()


@runtime_checkable  # the shape checks of the tests ask
class Source(Protocol):
    """A snapshot of a history, as the table reads it: rows numbered as they were stored, within one generation."""

    @property
    def generation(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def erased(self) -> Array:
        """Rows, sorted."""
        ...

    @property
    def superseded(self) -> tuple[Array, Array, Array]:
        """Rows whose label was corrected, the moment up to which each is visible, and the commit that said so."""
        ...

    def check_key_function(self, fingerprint: str) -> None:
        """Raises, naming the remedy, unless the keys are of the function with this fingerprint."""
        ...

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Array: ...

    def fetch(self, rows: Int[Tensor, "..."], columns: list[str] | None = None) -> Features: ...


@dataclass(frozen=True)
class Columns:
    """Items column by column; `row` says where each is stored, `recency` is its time by the model's clock, and `norm`
    that of its key."""

    key: Float[Tensor, "items key_dim"]
    label: Int[Tensor, " items"]
    time: Shaped[Tensor, " items"]
    known_at: Shaped[Tensor, " items"]
    row: Int[Tensor, " items"]
    recency: Float[Tensor, " items"]
    norm: Float[Tensor, " items"]

    def __len__(self) -> int:
        return self.row.shape[0]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Columns":
        return Columns(*(change(getattr(self, field.name)) for field in fields(self)))

    def take(self, which: Tensor | slice) -> "Columns":
        return self.map(lambda column: column[which])

    def sorted(self) -> "Columns":
        """In order of (known_at, row): rows are numbered in the order of commits."""
        if bool((self.known_at[1:] >= self.known_at[:-1]).all()) and bool((self.row[1:] > self.row[:-1]).all()):
            return self  # nothing is copied: keys that are memory-mapped stay so
        by_row = self.row.argsort()
        return self.take(by_row[self.known_at[by_row].argsort(stable=True)])


def joined(one: Columns, other: Columns) -> Columns:
    return Columns(*(torch.cat([getattr(part, field.name) for part in (one, other)]) for field in fields(Columns)))


@dataclass(frozen=True)
class TableView:
    """The items of one snapshot by position: those in order first, then the tail. -1 is no item."""

    source: Source
    clock: Clock
    items: Columns
    tail: Columns
    gone: Int[Tensor, " gone"]
    superseded: Int[Tensor, " superseded"]
    until: Shaped[Tensor, " superseded"]
    longest: float
    """No item's key and recency together have a larger norm."""
    extents: Extents
    """Of the items in order."""

    def __len__(self) -> int:
        """How many items there are, corrected ones with all their versions."""
        return len(self.items) + len(self.tail) - len(self.gone)

    @property
    def tail_start(self) -> int:
        return -(-len(self.items) // TAIL_ALIGNMENT) * TAIL_ALIGNMENT

    @functools.cached_property
    def newest(self) -> int | float | None:
        """When the last label that is not erased was known."""
        moments = [self._last(part, first) for first, part in ((0, self.items), (self.tail_start, self.tail))]
        return max((moment for moment in moments if moment is not None), default=None)

    def _last(self, part: Columns, first: int) -> int | float | None:
        gone = self.gone[(self.gone >= first) & (self.gone < first + len(part))].flip(0)
        at_the_end = torch.arange(first + len(part) - 1, first + len(part) - 1 - len(gone), -1, device=gone.device)
        left = len(part) - int((gone == at_the_end).cumprod(0).sum())
        return part.known_at[left - 1].item() if left else None

    @functools.cached_property
    def some_position(self) -> int:
        """Of an item that is there, to stand where none was selected; there must be one."""
        everything = torch.cat(
            [
                torch.arange(len(self.items), device=self.gone.device),
                torch.arange(self.tail_start, self.tail_start + len(self.tail), device=self.gone.device),
            ]
        )
        return int(everything[~torch.isin(everything, self.gone)][0])

    @functools.cached_property
    def tail_after(self) -> Int[Tensor, " tail"]:
        # An item of the tail came after all items with the same moment that are in order, so it is younger.
        return torch.searchsorted(self.items.known_at, self.tail.known_at, right=True)

    @functools.cached_property
    def exceptions(self) -> Exceptions:
        return Exceptions(self.tail_start, self.tail.known_at, self.tail_after, self.gone, self.superseded, self.until)

    def visible(
        self,
        as_of: Shaped[Tensor, " batch"],
        window: Window = EVERYTHING,
        excluded: Int[Tensor, "batch excluded"] | None = None,
    ) -> Visible:
        """What inputs may see, less the stored rows that are excluded for each (-1 is none)."""
        visible = visible_with(self.items.known_at, self.exceptions, as_of, window)
        return visible if excluded is None else without(visible, self.positions_of(excluded))

    def at(self, name: str, positions: Int[Tensor, "*shape"]) -> Shaped[Tensor, "..."]:
        """A column at positions; something or other stands where the position is -1."""
        table: Tensor = getattr(self.items, name)
        tail: Tensor = getattr(self.tail, name)
        if len(tail) == 0:
            if len(table) == 0:
                return table.new_zeros(*positions.shape, *table.shape[1:])
            return table[positions.clamp(min=0)]
        late = tail[(positions - self.tail_start).clamp(0, len(tail) - 1)]
        if len(table) == 0:
            return late
        early = table[positions.clamp(0, len(table) - 1)]
        in_tail = (positions >= self.tail_start).view(*positions.shape, *[1] * (early.ndim - positions.ndim))
        return torch.where(in_tail, late, early)

    def column(self, name: str) -> Shaped[Tensor, "items *rest"]:
        """A whole column by position; zeros stand between the items in order and the tail."""
        table: Tensor = getattr(self.items, name)
        tail: Tensor = getattr(self.tail, name)
        if len(tail) == 0:
            return table
        gap = table.new_zeros(self.tail_start - len(table), *table.shape[1:])
        return torch.cat([table, gap, tail])

    def positions_of(self, rows: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Where stored rows are in this view, -1 for what isn't in it."""
        found = torch.full_like(rows, -1)
        for (order, ordered), offset in ((self._items_by_row, 0), (self._tail_by_row, self.tail_start)):
            if len(ordered):
                at = torch.searchsorted(ordered, rows.contiguous()).clamp(max=len(ordered) - 1)
                found = torch.where(ordered[at] == rows, order[at] + offset, found)
        return found

    @functools.cached_property
    def _items_by_row(self) -> tuple[Tensor, Tensor]:
        return _by_row(self.items.row)

    @functools.cached_property
    def _tail_by_row(self) -> tuple[Tensor, Tensor]:
        return _by_row(self.tail.row)


def _by_row(rows: Int[Tensor, " items"]) -> tuple[Int[Tensor, " items"], Int[Tensor, " items"]]:
    """The order of rows, and the rows in order."""
    if bool((rows[1:] > rows[:-1]).all()):
        return torch.arange(len(rows), device=rows.device), rows
    order = rows.argsort()
    return order, rows[order]


class KeyTable:
    """Keeps one copy of the keys on a device while views of it come and go. One thread at a time may call `follow`."""

    def __init__(
        self,
        clock: Clock = PLAIN_CLOCK,
        *,
        key_function: str = "",
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> None:
        """`key_function` is the fingerprint that the model's queries were learned for, empty if it has none."""
        self.key_function = key_function
        self.clock, self.device, self.dtype = clock, torch.device(device), dtype
        self.view: TableView | None = None
        self._room: Columns | None = None  # the items in order, with room for more behind them
        self._longest = 0.0

    def follow(self, source: Source) -> TableView:
        """The view of a snapshot, newer than the last one; only what is new is read.

        Raises if its keys are of another function, from the start or since a rekey; `view` then stays the last one.
        """
        source.check_key_function(self.key_function)
        old = self.view
        if old is None or source.generation != old.source.generation:
            items, tail = self._read(source, 0).sorted(), None
            self._room = None
        else:
            items, tail = self._extended(old, self._read(source, old.source.num_rows))
        self.view = self._with_exceptions(source, items, tail if tail is not None else items.take(slice(0, 0)))
        irregular = len(self.view.tail) + len(self.view.gone)
        if irregular > max(LEAST_MERGED, len(items) // MERGED_SHARE):
            self.view = self._merged(self.view)
        return self.view

    def _read(self, source: Source, start: int) -> Columns:
        def tensor(name: str) -> Tensor:
            return as_tensor(source.column(name, start))

        time = tensor("time")
        key = tensor("key").to(self.device)
        key = key if self.dtype is None else key.to(self.dtype)
        read = Columns(
            key,
            tensor("label"),
            time,
            tensor("known_at"),
            torch.arange(start, source.num_rows),
            self.clock.model_time(time).float(),
            _norms(key),
        ).map(lambda column: column.to(self.device))
        self._longest = max(0.0 if start == 0 else self._longest, _finite_maximum(read.norm.hypot(read.recency)))
        return read

    def _extended(self, old: TableView, new: Columns) -> tuple[Columns, Columns]:
        """New items that are in order behind the others, in place; the rest among the tail."""
        if len(new) == 0:
            return old.items, old.tail
        late = new.known_at < old.items.known_at[-1] if len(old.items) else torch.zeros_like(new.row, dtype=torch.bool)
        ordered = new.take(~late).sorted()
        count = len(old.items) + len(ordered)
        room = self._room
        if room is None or len(room) < count:
            # Half as much again: then every item is copied a few times at most, however many come.
            room = old.items.map(lambda column: column.new_empty(count + count // 2 + 1024, *column.shape[1:]))
            _write(room, 0, old.items)
        _write(room, len(old.items), ordered)
        self._room = room
        tail = joined(old.tail, new.take(late)).sorted() if bool(late.any()) else old.tail
        return room.take(slice(0, count)), tail

    def _with_exceptions(self, source: Source, items: Columns, tail: Columns) -> TableView:
        none = torch.empty(0, dtype=torch.long, device=self.device)
        extents = self._extents(items)
        plain = TableView(source, self.clock, items, tail, none, none, items.known_at[:0], self._longest, extents)
        erased = torch.from_numpy(np.ascontiguousarray(source.erased)).to(self.device)
        rows, until = (torch.from_numpy(np.ascontiguousarray(part)).to(self.device) for part in source.superseded[:2])
        if len(erased) == 0 and len(rows) == 0:
            return plain
        gone, superseded = plain.positions_of(erased), plain.positions_of(rows)
        there = superseded >= 0
        gone = gone[gone >= 0].sort().values
        return replace(plain, gone=gone, superseded=superseded[there], until=until[there])

    def _extents(self, items: Columns) -> Extents:
        """Items that stand where they stood in the last view are not looked at again, but for the last stretch."""
        old = self.view
        if old is None or old.items.row.data_ptr() != items.row.data_ptr() or len(old.items) > len(items):
            return extents_of(items)
        whole = len(old.items) // STRETCH
        new = extents_of(items.take(slice(whole * STRETCH, None)))
        kept = (getattr(old.extents, field.name)[:whole] for field in fields(Extents))
        return Extents(
            *(torch.cat([part, getattr(new, field.name)]) for part, field in zip(kept, fields(Extents), strict=True))
        )

    def _merged(self, view: TableView) -> TableView:
        """The same items in new tensors, all in order and without the erased ones."""
        keep = torch.ones(view.tail_start + len(view.tail), dtype=torch.bool, device=self.device)
        keep[view.gone] = False
        items = view.items.take(keep[: len(view.items)])
        self._room = None
        whole = joined(items, view.tail.take(keep[view.tail_start :])).sorted()
        return self._with_exceptions(view.source, whole, whole.take(slice(0, 0)))


def _write(room: Columns, start: int, items: Columns) -> None:
    for field in fields(Columns):
        getattr(room, field.name)[start : start + len(items)] = getattr(items, field.name)


def _norms(keys: Float[Tensor, "items key_dim"], at_once: int = 1 << 16) -> Float[Tensor, " items"]:
    norms = [torch.linalg.vector_norm(part.float(), dim=1) for part in keys.split(at_once)]
    return torch.cat(norms) if norms else keys.new_empty(0).float()


def extents_of(items: Columns) -> Extents:
    """Counted from the first of them."""
    missing = -len(items) % STRETCH

    def stretches(values: Tensor, filling: float) -> Tensor:
        return F.pad(values, (0, missing), value=filling).view(-1, STRETCH)

    return Extents(
        stretches(items.norm, 0.0).amax(1),
        stretches(items.recency, torch.inf).amin(1),
        stretches(items.recency, -torch.inf).amax(1),
    )


def _finite_maximum(values: Float[Tensor, " items"]) -> float:
    return float(values.nan_to_num(0.0, 0.0).max()) if len(values) else 0.0


def as_tensor(values: Array) -> Tensor:
    """Without a copy, read-only memory maps included: nothing here writes to what it has read."""
    if values.dtype == np.uint16:  # how bfloat16 is stored, which numpy doesn't know
        return as_tensor(values.view(np.int16)).view(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(values)
