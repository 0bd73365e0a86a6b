"""Batches for training: inputs with targets, the keys they may select from and a way to fetch what they select.

Knows histories per input (synthetic tasks) and one history whose items are themselves the inputs; nothing of models.
Here a future could leak into training: see `HistoryRows`.
"""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Generator, Tensor

from recollect.data.synthetic import Episodes
from recollect.history.key_table import TableView
from recollect.inputs import Fetched, Inputs, Lookup
from recollect.records import Features, Visible
from recollect.retrieval.keys import OwnKeys, SharedKeys


@dataclass(frozen=True)
class Batch:
    """What one training step sees. `oldest` is the time of the first item each input may see.

    `item_labels` and `item_times` are those of the whole history, for what sums over all of it; `needle` is the
    position that the needle task hides, for those who watch it learn. `selected` holds positions that were selected
    beforehand, where queries don't learn yet.
    """

    inputs: Inputs
    targets: Int[Tensor, " batch"]
    oldest: Float[Tensor, " batch"]
    item_labels: Int[Tensor, "*pool items"] | None = None
    item_times: Float[Tensor, "*pool items"] | None = None
    needle: Int[Tensor, " batch"] | None = None
    selected: Int[Tensor, "batch retrieved"] | None = None


@runtime_checkable
class BatchSource(Protocol):
    """Batches on demand; the same generator state gives the same batch."""

    def batch(self, size: int, generator: Generator) -> Batch: ...


def episode_batch(episodes: Episodes, *, recency: bool = False, device: torch.device | str = "cpu") -> Batch:
    """A batch of synthetic episodes; every item of its history is visible to its input."""
    own = episodes.keys.ndim == 3
    size, items = episodes.targets.shape[0], episodes.keys.shape[-2]

    def move(features: Features) -> Features:
        return {name: value.to(device) for name, value in features.items()}

    keys, features, as_of = episodes.keys.to(device), move(episodes.features), episodes.as_of.to(device)
    labels = None if episodes.labels is None else episodes.labels.to(device)
    times = None if episodes.times is None else episodes.times.to(device)

    def fetch(rows: Int[Tensor, " batch"], positions: Int[Tensor, "batch chains retrieved"]) -> Fetched:
        index = positions.clamp(min=0)

        def take(values: Tensor) -> Tensor:
            return _at(values, index, rows if own else None)

        return Fetched(
            {name: take(value) for name, value in features.items()},
            None if labels is None else take(labels),
            None if times is None else take(times),
        )

    column = times.float() if recency and times is not None else None
    inputs = Inputs(
        rows=torch.arange(size, device=device),
        features=move(episodes.inputs),
        own_keys=episodes.own_keys.to(device),
        as_of=as_of,
        keys=OwnKeys(keys, column) if own else SharedKeys(keys, column),
        visible=Visible(torch.zeros(size, dtype=torch.long, device=device), torch.full((size,), items, device=device)),
        fetch=fetch,
    )
    oldest = as_of if times is None or items == 0 else times[..., 0].expand(size)
    needle = None if episodes.needle is None else episodes.needle.to(device)
    return Batch(inputs, episodes.targets.to(device), oldest, labels, times, needle)


def _at(
    values: Shaped[Tensor, "..."],
    index: Int[Tensor, "batch chains retrieved"],
    rows: Int[Tensor, " batch"] | None = None,
) -> Shaped[Tensor, "batch chains retrieved *rest"]:
    """`values[index]`, of each input's own row where there are rows; zeros where a history has no item at all."""
    own = rows is not None
    if values.shape[own] == 0:
        return values.new_zeros(*index.shape, *values.shape[1 + own :])
    return values[index] if rows is None else values[rows[:, None, None], index]


@dataclass(frozen=True)
class HistoryRows:
    """Items of a history as inputs, by their positions: each is classified as of its own time.

    NOTE on leaks: an input sees items whose label was known strictly before its time, so never itself; and whoever
    chooses the positions takes only targets that were known before the cutoff: see `known_before`.

    `selected` is what each item of the history selects as an input, if that is settled beforehand.
    """

    lookup: Lookup
    positions: Int[Tensor, " inputs"]
    selected: Int[Tensor, "items retrieved"] | None = None

    def between(self, first: int, last: int) -> "HistoryRows":
        """Some of the inputs, counted in order of when their labels were known."""
        return replace(self, positions=self.positions[first:last])

    def batch(self, size: int, generator: Generator) -> Batch:
        chosen = torch.randint(len(self.positions), (size,), generator=generator)
        return self.rows(self.positions[chosen.to(self.positions.device)])

    def rows(self, positions: Int[Tensor, " batch"]) -> Batch:
        view = self.lookup.view
        inputs = self.lookup.inputs_at(positions)
        oldest = view.clock.model_time(view.at("time", inputs.visible.start.clamp(max=max(0, len(view.items) - 1))))
        return Batch(
            inputs,
            view.at("label", positions),
            torch.minimum(oldest, inputs.as_of),
            self.lookup.labels,
            self.lookup.times,
            selected=None if self.selected is None else self.selected[positions],
        )


def known_before(view: TableView, cutoff: int | float) -> Int[Tensor, " inputs"]:
    """Positions of the items whose labels, as they stood at the cutoff, were known before it; in that order."""
    moment = torch.tensor([cutoff], dtype=view.items.known_at.dtype, device=view.items.known_at.device)
    everything = torch.arange(view.tail_start + len(view.tail), device=moment.device)
    seen = everything[view.visible(moment).sees(everything.unsqueeze(0))[0]]
    moments = view.at("known_at", seen)
    # They are in order already unless some came late, and sorting all of a long history takes memory.
    return seen if bool((moments[1:] >= moments[:-1]).all()) else seen[moments.argsort(stable=True)]
