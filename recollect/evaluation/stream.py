"""Labelled rows in order of time, with the cutoff: what models and their peers are fitted on and then asked about."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from recollect.errors import SettingError
from recollect.model.encoders import FlatEncoder
from recollect.records import TERMS, Features, FeatureSpec

DIGESTED_BYTES = 4 << 30
"""Of features larger than this only every so-manieth row is in a digest: reading them all would take an hour."""

_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class Stream:
    """Rows in order of `time`. Labels are codes; `known_at` is when each became known; `bins` numbers periods of time.

    Features are those of `specs`, fitted before the cutoff and complete. Times are int64 nanoseconds or float64.
    `unbounded` is what peers read instead, where given: with the columns that never changed before the cutoff, and
    values as far out as they come. A model that is refitted can learn what these mean. `drawn` are the rows that may be
    asked, where all of them would be too many.
    """

    features: Features
    specs: tuple[FeatureSpec, ...]
    labels: NDArray[np.int64]
    time: NDArray[Any]
    known_at: NDArray[Any]
    bins: NDArray[np.int64]
    cutoff: int | float
    num_classes: int
    unbounded: tuple[Features, tuple[FeatureSpec, ...]] | None = None
    drawn: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if not bool((self.time[1:] >= self.time[:-1]).all()):
            raise SettingError("the rows of a stream are not in order of time: sort them by time first")
        if bool((self.known_at < self.time).any()):
            raise SettingError("a label is known before its row happened: give the later moment")

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def past(self) -> NDArray[np.int64]:
        """Rows whose labels were known before the cutoff, in order of time: all that may be trained on."""
        return np.flatnonzero(self.known_at < self.cutoff)

    @cached_property
    def asked(self) -> NDArray[np.int64]:
        """Rows from the cutoff on, in order of time: what everyone is judged by."""
        return self.among_drawn(np.flatnonzero(self.time >= self.cutoff))

    def among_drawn(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that may be asked."""
        return rows if self.drawn is None else np.intersect1d(rows, self.drawn)

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """What peers read: all features side by side."""
        return self._flat(*(self.unbounded or (self.features, self.specs)))

    @cached_property
    def model_table(self) -> NDArray[np.float32]:
        """The features of the model side by side."""
        return self._flat(self.features, self.specs)

    def _flat(
        self, features: Features, specs: tuple[FeatureSpec, ...], rows: slice = slice(None)
    ) -> NDArray[np.float32]:
        count = len(range(*rows.indices(len(self))))
        with torch.no_grad():
            flat: torch.Tensor = FlatEncoder(specs)({name: value[rows] for name, value in features.items()}, (count,))
        return flat.numpy()

    def read(self, rows: Int[Tensor, " rows"]) -> Features:
        """What networks and keys read of some rows."""
        return {spec.name: self.features[spec.name][rows] for spec in self.specs}

    def take(self, rows: NDArray[np.int64]) -> "Stream":
        """Some of the rows, in order."""
        index = torch.from_numpy(rows)

        def taken(features: Features) -> Features:
            return {name: value[index] for name, value in features.items()}

        return replace(
            self,
            features=taken(self.features),
            unbounded=None if self.unbounded is None else (taken(self.unbounded[0]), self.unbounded[1]),
            labels=self.labels[rows],
            time=self.time[rows],
            known_at=self.known_at[rows],
            bins=self.bins[rows],
            drawn=None if self.drawn is None else np.flatnonzero(np.isin(rows, self.drawn)),
        )

    def without(self, feature: str) -> "Stream":
        """The same rows less one of their features; the same stream where they don't have it."""
        if feature not in self.features:
            return self

        def less(features: Features, specs: tuple[FeatureSpec, ...]) -> tuple[Features, tuple[FeatureSpec, ...]]:
            kept = tuple(spec for spec in specs if spec.name != feature)
            return {spec.name: features[spec.name] for spec in kept}, kept

        features, specs = less(self.features, self.specs)
        unbounded = None if self.unbounded is None else less(*self.unbounded)
        return replace(self, features=features, specs=specs, unbounded=unbounded)

    def digest(self) -> str:
        """Other labels, times or features are another stream; of features that fill a disk some rows have to do.

        They are gone through some at a time: a table of all may be larger than memory.
        """
        digest = hashlib.sha256(str(self.cutoff).encode())
        for column in (self.labels, self.time, self.known_at):
            digest.update(np.ascontiguousarray(column).tobytes())
        for features, specs in [(self.features, self.specs), *([] if self.unbounded is None else [self.unbounded])]:
            step = 1 + sum(value.nbytes for value in features.values()) // DIGESTED_BYTES
            for start in range(0, len(self), step * _ROWS_AT_ONCE):
                some = slice(start, start + step * _ROWS_AT_ONCE, step)
                digest.update(np.ascontiguousarray(self._flat(features, specs, some)).tobytes())
        if TERMS in self.features:
            for some in self.features[TERMS].split(_ROWS_AT_ONCE):
                digest.update(some.numpy().tobytes())
        if self.drawn is not None:
            digest.update(self.drawn.tobytes() + self.bins.tobytes())
        return digest.hexdigest()

    def known_before(self, moment: int | float, since: int | float | None = None) -> NDArray[np.int64]:
        """Rows whose labels were known before a moment, and that happened at `since` or later."""
        known = self.known_at < moment
        return np.flatnonzero(known if since is None else known & (self.time >= since))
