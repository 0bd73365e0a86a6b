"""Rows of a stream as a history, and rows as inputs that look others up: nothing of a stream's features is copied.

So features may be mapped from a file larger than memory. Here a future could leak into training: see `Examples`.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Generator, Tensor

from recollect.errors import SettingError
from recollect.evaluation.stream import Stream
from recollect.history.key_table import Array, KeyTable
from recollect.history.visibility import EVERYTHING, Window
from recollect.inputs import Inputs, Lookup
from recollect.records import Clock, Features
from recollect.training.batches import Batch


@dataclass(frozen=True)
class StreamHistory:
    """Some rows of a stream as items, numbered in the order in which their labels became known."""

    stream: Stream
    keys: Float[Tensor, "rows key_dim"]
    rows: NDArray[np.int64]

    @cached_property
    def ordered(self) -> NDArray[np.int64]:
        """Item to row of the stream."""
        return self.rows[np.argsort(self.stream.known_at[self.rows], kind="stable")]

    @property
    def generation(self) -> int:
        return 0

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def erased(self) -> Array:
        return np.empty(0, np.int64)

    @property
    def superseded(self) -> tuple[Array, Array, Array]:
        return self.erased, self.stream.known_at[:0], self.erased

    def check_key_function(self, fingerprint: str) -> None:
        """The keys of a stream are made for it, and have no name."""

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        rows = self.ordered[start:stop]
        if name == "key":
            return self.keys[torch.from_numpy(rows)].numpy()
        columns = {"label": self.stream.labels, "time": self.stream.time, "known_at": self.stream.known_at}
        return columns[name][rows]

    def fetch(self, rows: Int[Tensor, "..."], columns: list[str] | None = None) -> Features:
        index = torch.from_numpy(self.ordered)[rows.cpu()]
        names = self.stream.features if columns is None else columns
        return {name: self.stream.features[name][index] for name in names}


def look_up(
    stream: Stream,
    keys: Float[Tensor, "rows key_dim"],
    rows: NDArray[np.int64],
    *,
    items: bool,
    window: Window = EVERYTHING,
    device: torch.device | str = "cpu",
) -> Lookup:
    """Rows of a stream, to be looked up by key; with `items` their features are fetched, else their labels only."""
    if len(keys) != len(stream):
        raise SettingError(f"{len(keys)} keys came for a stream of {len(stream)} rows: give the key of every row")
    clock = Clock(stream.time[0].item())
    view = KeyTable(clock, device=device).follow(StreamHistory(stream, keys, rows))
    return Lookup(view, recency=False, window=window, columns=None if items else ())


@dataclass(frozen=True)
class Examples:
    """Rows of a stream as inputs that look up a history of other rows, each as of its own time.

    NOTE on leaks: an input sees items whose label was known strictly before its time. Whoever chooses the rows keeps
    them apart from the history's, as `Splits` does, and for training takes rows from before the cutoff only.
    """

    stream: Stream
    keys: Float[Tensor, "rows key_dim"]
    rows: NDArray[np.int64]
    lookup: Lookup

    def batch(self, size: int, generator: Generator) -> Batch:
        chosen = torch.randint(len(self.rows), (size,), generator=generator)
        rows = self.rows[chosen.numpy()]
        inputs = self.inputs(rows)
        targets = torch.from_numpy(self.stream.labels[rows]).to(inputs.rows.device)
        # Nothing is rehearsed here, so how far back an input sees does not matter.
        return Batch(inputs, targets, inputs.as_of)

    def inputs(self, rows: NDArray[np.int64]) -> Inputs:
        index, device = torch.from_numpy(rows), self.lookup.view.items.row.device
        # Half precision is for storage.
        features = {
            name: (value[index].float() if value.is_floating_point() else value[index].long()).to(device)
            for name, value in self.stream.features.items()
        }
        as_of = torch.from_numpy(self.stream.time[rows]).to(device)
        return self.lookup.inputs(features, self.keys[index].to(device), as_of)
