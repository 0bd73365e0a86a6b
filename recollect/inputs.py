"""Inputs and what each of them may look up: what training, replay and service hand to a model.

`Lookup` is the one place where a moment becomes visible items. Knows nothing of models.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.history.key_table import TableView
from recollect.history.visibility import EVERYTHING, Window
from recollect.records import Features, Items, Visible
from recollect.retrieval.keys import Keys, OwnKeys, SharedKeys

OLDEST = 1e15
"""The largest age that a model is shown, where times are plain numbers."""


@dataclass(frozen=True)
class Fetched:
    """Everything of the fetched items that may be needed, in the shape of the positions."""

    features: Features
    labels: Int[Tensor, "batch chains retrieved"] | None
    times: Float[Tensor, "batch chains retrieved"] | None


Fetch = Callable[[Int[Tensor, " batch"], Int[Tensor, "batch chains retrieved"]], Fetched]
"""Items at positions; the first argument says which input asks, since each may have a history of its own."""


@dataclass(frozen=True)
class Inputs:
    """Inputs with what each may see: keys, a visible interval and a way to fetch items. Times in the model's unit."""

    rows: Int[Tensor, " batch"]
    features: Features
    own_keys: Float[Tensor, "batch key_dim"]
    as_of: Float[Tensor, " batch"]
    keys: Keys
    visible: Visible
    fetch: Fetch

    def __len__(self) -> int:
        return self.rows.shape[0]

    def take(self, index: Int[Tensor, " batch"]) -> "Inputs":
        """Some of the inputs, in any order, repeated if asked for twice."""
        keys = self.keys
        if isinstance(keys, OwnKeys):
            keys = OwnKeys(keys.keys[index], None if keys.recency is None else keys.recency[index])
        return Inputs(
            rows=self.rows[index],
            features={name: value[index] for name, value in self.features.items()},
            own_keys=self.own_keys[index],
            as_of=self.as_of[index],
            keys=keys,
            visible=self.visible.take(index),
            fetch=self.fetch,
        )

    def show(
        self, positions: Int[Tensor, "batch chains retrieved"], *, features: bool, ages: bool
    ) -> tuple[Items, Fetched]:
        """Fetched items as a classifier is shown them, and all that was fetched."""
        fetched = self.fetch(self.rows, positions)
        shown_ages = None
        if ages and fetched.times is not None:
            between = self.as_of[:, None, None] - fetched.times
            # Plain numbers may be so far apart that a network in single precision makes NaN of them.
            shown_ages = (between.clamp(max=OLDEST) if between.is_floating_point() else between).float()
        shown = Items(positions >= 0, fetched.features if features else {}, fetched.labels, shown_ages)
        return shown, fetched


@dataclass(frozen=True)
class Lookup:
    """A view of a history, searched by key and, with `recency`, by time; `columns` of its items are fetched, None for
    all of them, and `of_inputs` besides where items are asked themselves."""

    view: TableView
    recency: bool = True
    window: Window = EVERYTHING
    columns: tuple[str, ...] | None = None
    of_inputs: tuple[str, ...] = ()

    @functools.cached_property
    def keys(self) -> SharedKeys:
        view = self.view
        tail = None
        if len(view.tail):
            tail = SharedKeys(view.tail.key, view.tail.recency if self.recency else None)
        recency = view.items.recency if self.recency else None
        after = None if tail is None else view.tail_after
        return SharedKeys(view.items.key, recency, tail, after, view.tail_start, view.longest, view.extents)

    @functools.cached_property
    def labels(self) -> Int[Tensor, " items"]:
        """Of all items by position, for what sums over the whole history."""
        return self.view.column("label")

    @functools.cached_property
    def times(self) -> Float[Tensor, " items"]:
        """By the model's clock."""
        return self.view.clock.model_time(self.view.column("time"))

    def inputs(
        self,
        features: Features,
        own_keys: Float[Tensor, "batch key_dim"],
        as_of: Shaped[Tensor, " batch"],
        excluded: Int[Tensor, "batch excluded"] | None = None,
    ) -> Inputs:
        """Inputs at stored moments, each seeing what was known strictly before its own, less the stored rows that are
        excluded for it (-1 is none)."""
        return Inputs(
            rows=torch.arange(as_of.shape[0], device=as_of.device),
            features=features,
            own_keys=own_keys.float(),
            as_of=self.view.clock.model_time(as_of),
            keys=self.keys,
            visible=self.view.visible(as_of, self.window, excluded),
            fetch=self.fetch,
        )

    def inputs_at(self, positions: Int[Tensor, " batch"]) -> Inputs:
        """Items of the history as inputs, each as of its own time: it sees what was known strictly before, so never
        itself."""
        view = self.view
        return self.inputs(self.features_at(positions), view.at("key", positions), view.at("time", positions))

    def fetch(self, rows: Int[Tensor, " batch"], positions: Int[Tensor, "batch chains retrieved"]) -> Fetched:
        """Features from where they are stored, labels and times from memory."""
        times = self.view.clock.model_time(self.view.at("time", positions))
        return Fetched(self._fetched(positions, self.columns), self.view.at("label", positions), times)

    def features_at(self, positions: Int[Tensor, "*shape"]) -> Features:
        """All that is known of items as inputs."""
        return self._fetched(positions, None if self.columns is None else (*self.columns, *self.of_inputs))

    def _fetched(self, positions: Int[Tensor, "*shape"], columns: tuple[str, ...] | None) -> Features:
        """Where the position is -1, of some item or other; zeros where there is none at all."""
        device = positions.device
        source = self.view.source
        if len(self.view) and len(self.view.gone):
            positions = positions.masked_fill(positions < 0, self.view.some_position)
        rows = self.view.at("row", positions)
        names = None if columns is None else list(columns)
        if len(self.view) == 0:
            fetched = {name: _zeros(value, rows) for name, value in source.fetch(rows.flatten()[:0], names).items()}
        else:
            fetched = source.fetch(rows, names)
        return {name: _as_input(value).to(device) for name, value in fetched.items()}


def _zeros(like: Shaped[Tensor, "none *rest"], rows: Int[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    return like.new_zeros(*rows.shape, *like.shape[1:])


def _as_input(values: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Half precision is for storage: models compute in float32, and count categories in int64."""
    return values.float() if values.is_floating_point() else values.long()
