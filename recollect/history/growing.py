"""A history in memory that grows: rows stay as they came in, and what was handed out of it never changes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int, Shaped
from safetensors.torch import load, save
from torch import Tensor

from recollect.errors import HistoryDamagedError
from recollect.history.memory import MemoryHistory, check_known
from recollect.records import Features

_FEATURE = "feature."


@dataclass(frozen=True)
class StoredItems(MemoryHistory):
    """Items in the order they were stored: a label may become known before that of a row stored earlier, and the key
    table puts such rows in their place."""

    def __post_init__(self) -> None:
        check_known(self.times, self.known_at)


class GrowingHistory:
    """Items, each with an id of the caller's, to which more can be added at any time."""

    def __init__(self, items: MemoryHistory, ids: Int[Tensor, " items"]) -> None:
        """Begins with the very tensors of `items`: nothing is copied before something is added."""
        self.key_function, self.count = items.key_function, items.num_rows
        self._room = _columns(items, ids)

    @property
    def ids(self) -> Int[Tensor, " items"]:
        return self._room["id"][: self.count]

    @property
    def times(self) -> Shaped[Tensor, " items"]:
        return self._room["time"][: self.count]

    @property
    def known_at(self) -> Shaped[Tensor, " items"]:
        return self._room["known_at"][: self.count]

    def snapshot(self) -> StoredItems:
        """What is there now, as a key table follows it."""
        return _items({name: values[: self.count] for name, values in self._room.items()}, self.key_function)

    def add(
        self,
        features: Features,
        keys: Float[Tensor, "items key_dim"],
        labels: Int[Tensor, " items"],
        times: Shaped[Tensor, " items"],
        known_at: Shaped[Tensor, " items"],
        ids: Int[Tensor, " items"],
    ) -> None:
        """All of them or, if something is wrong with one, none."""
        new = _columns(StoredItems(features, keys, labels, times, known_at, self.key_function), ids)
        count = self.count + len(ids)
        if count > len(self._room["id"]):
            # Half as much again: then every item is copied a few times at most, however many come.
            self._room = {name: _longer(values, self.count, count + count // 2) for name, values in self._room.items()}
        for name, values in new.items():
            self._room[name][self.count : count] = values
        self.count = count

    def save(self, path: Path) -> str:
        """One safetensors file; returns its checksum."""
        data = save({name: values[: self.count].contiguous() for name, values in self._room.items()})
        path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    @staticmethod
    def load(path: Path, checksum: str, key_function: str) -> "GrowingHistory":
        try:
            data = path.read_bytes()
        except OSError as error:
            raise HistoryDamagedError(f"the items {path} can't be read ({error}): restore them from a copy") from error
        if hashlib.sha256(data).hexdigest() != checksum:
            raise HistoryDamagedError(f"the items {path} do not match their checksum: restore them from a copy")
        columns = load(data)
        return GrowingHistory(_items(columns, key_function), columns["id"])


def _columns(items: MemoryHistory, ids: Int[Tensor, " items"]) -> dict[str, Tensor]:
    plain = {"key": items.keys, "label": items.labels, "time": items.times, "known_at": items.known_at, "id": ids}
    return plain | {_FEATURE + name: values for name, values in items.features.items()}


def _items(columns: Mapping[str, Tensor], key_function: str) -> StoredItems:
    features = {name.removeprefix(_FEATURE): each for name, each in columns.items() if name.startswith(_FEATURE)}
    key, label, time, known_at = (columns[name] for name in ("key", "label", "time", "known_at"))
    return StoredItems(features, key, label, time, known_at, key_function)


def _longer(values: Shaped[Tensor, "items *rest"], count: int, room: int) -> Shaped[Tensor, "room *rest"]:
    longer = torch.empty(room, *values.shape[1:], dtype=values.dtype)
    longer[:count] = values[:count]
    return longer
