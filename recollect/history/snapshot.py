"""A history as of one commit, and what was visible in it as of a moment.

Nothing here changes once it is made. Knows storage rows and time; nothing of how rows are ranked.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from recollect.errors import HistoryError
from recollect.history.disk.fetching import Fetcher
from recollect.history.disk.schema import Schema
from recollect.history.disk.segments import Segment
from recollect.history.disk.state import (
    Buffer,
    Changes,
    Part,
    State,
    find_rows,
    is_in,
    joined_ahead,
    read_payload,
)
from recollect.history.rows import check_ids, moment, shown_moment


class Superseded(NamedTuple):
    """Rows whose label was corrected: none of them is visible after its `until`, from that `commit` on."""

    rows: NDArray[np.int64]
    until: NDArray[Any]
    commit: NDArray[np.int64]


class Snapshot:
    """A history as of one commit; it never changes.

    Storage rows are numbered 0 to num_rows - 1 in the order of their commits, erased ones included. Later snapshots
    of the same `generation` have the same rows under the same numbers, and new ones after them.
    """

    def __init__(self, state: State, fetcher: Fetcher) -> None:
        self.url: str = state.storage.url
        self.schema: Schema = state.schema
        self.version: int = state.version
        self.generation: int = state.manifest.generation
        self.num_rows: int = state.num_rows
        self.classes: tuple[str, ...] = tuple(state.classes)
        self.erased: NDArray[np.int64] = state.erased()
        self._parts: tuple[Part, ...] = tuple(state.parts)
        self._changes: Changes = state.changes()
        self._storage = state.storage
        self._fetcher = fetcher

    def __len__(self) -> int:
        return self.num_rows

    @property
    def parts(self) -> tuple[Part, ...]:
        """Where the rows lie, for a writer of the same process: what is open and was checked need not be again."""
        return self._parts

    @property
    def num_items(self) -> int:
        """Less what was erased; a corrected item counts once."""
        return self.num_rows - len(np.union1d(self.superseded.rows, self.erased))

    @property
    def superseded(self) -> Superseded:
        changes = self._changes
        return Superseded(changes.superseded_row, changes.superseded_until, changes.superseded_commit)

    def pieces(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
        """A column as (first row, array) for each place it lies in; mapped, not read, where it is on a local disk."""
        stop = self.num_rows if stop is None else stop
        if not 0 <= start <= stop <= self.num_rows:
            raise HistoryError(f"rows {start} to {stop} are not all among the {self.num_rows} of history {self.url}")
        for part in self._parts:
            low, high = max(start, part.first), min(stop, part.first + part.rows)
            if low < high:
                yield low, part.column(self._file_of(name))[low - part.first : high - part.first]

    def column(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """time, known_at, label, key, id, commit, until, or a feature, of the rows from start to stop.

        A bfloat16 comes as its bits in uint16.
        """
        if name == "until":
            return self._until(start, self.num_rows if stop is None else stop)
        arrays = [array for _, array in self.pieces(name, start, stop)]
        if len(arrays) != 1:
            arrays = [self._joined(name, arrays)]
        return np.strings.decode(arrays[0], "utf-8") if arrays[0].dtype.kind == "S" else arrays[0]

    def _joined(self, name: str, arrays: list[NDArray[Any]]) -> NDArray[Any]:
        if not arrays:
            return Buffer(self.schema).column(self._file_of(name))
        whole = sum(map(len, arrays)) == self.num_rows
        ahead = joined_ahead(self._storage, self._parts, name) if whole else None
        return np.concatenate(arrays) if ahead is None else ahead

    def _until(self, start: int, stop: int) -> NDArray[Any]:
        until = np.full(self.num_rows, self.schema.never, self.schema.time_type)
        until[self.superseded.rows] = self.superseded.until
        return until[start:stop]

    def _file_of(self, name: str) -> str:
        if name in ("time", "known_at", "label", "key", "id", "commit"):
            return name
        return f"feature.{self.schema.feature(name).name}"

    def fetch(
        self,
        rows: "torch.Tensor | NDArray[np.int64] | Sequence[int]",
        columns: Sequence[str] | None = None,
        *,
        pin: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Features, or the columns named, of any rows: `[*rows.shape, *shape of the column]` each.

        The same as `torch.from_numpy(column(name))[rows]`, without reading the rest.
        """
        wanted = self._checked(rows)
        names = [column.name for column in self.schema.features] if columns is None else list(columns)
        types = {name: self.schema.key.column if name == "key" else self.schema.feature(name) for name in names}
        files = {self._file_of(name): column for name, column in types.items()}
        found = self._fetcher.fetch(self._parts, wanted.reshape(-1), files, pin=pin)
        return {
            name: found[self._file_of(name)].view(column.torch_dtype).reshape(*wanted.shape, *column.shape)
            for name, column in types.items()
        }

    def payload(self, rows: "torch.Tensor | NDArray[np.int64] | Sequence[int]") -> pa.Table:
        """The raw fields of these rows, in their order."""
        wanted = self._checked(rows).reshape(-1)
        if not len(self.schema.payload):
            return pa.table({"": pa.nulls(len(wanted))}).select([])
        return read_payload(self._parts, wanted, self.schema)

    def _checked(self, rows: "torch.Tensor | NDArray[np.int64] | Sequence[int]") -> NDArray[np.int64]:
        wanted = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.num_rows):
            raise HistoryError(
                f"rows {wanted.min()} to {wanted.max()} were asked for, history {self.url} has {self.num_rows}"
            )
        gone = wanted[is_in(wanted, self.erased)]
        if gone.size:
            raise HistoryError(f"row {int(gone[0])} of history {self.url} was erased: take rows from a newer view")
        return wanted

    def find(self, ids: Any) -> NDArray[np.int64]:
        """The current row of each id; -1 where there is none."""
        if len(ids) == 0:
            return np.empty(0, np.int64)
        stored = check_ids(ids, self.schema)
        superseded = np.sort(self.superseded.rows)
        places, rows = find_rows(self._parts, stored, self.schema, [self.erased, superseded])
        found = np.full(len(stored), -1, np.int64)
        found[places] = rows
        return found

    def versions(self, ids: Any) -> list[list[int]]:
        """All rows of each id, those before corrections too, the oldest first."""
        found: list[list[int]] = [[] for _ in ids]
        if len(ids):
            places, rows = find_rows(self._parts, check_ids(ids, self.schema), self.schema, [self.erased])
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                found[place].append(row)
        return [sorted(each) for each in found]

    def as_of(self, t: Any, version: int | None = None) -> "View":
        """What was visible at a moment, with the labels known then; the same for ever, erasures excepted.

        `version` is a commit; with an earlier one, nothing that was appended or corrected later counts.
        """
        version = self.version if version is None else version
        if not 0 <= version <= self.version:
            raise HistoryError(
                f"history {self.url} is at version {self.version}, {version} was asked for: refresh it, or ask for less"
            )
        return View(self, moment(t, self.schema, "as_of"), version)

    def describe(self) -> dict[str, Any]:
        """What a person asks first of a history, in plain values."""
        rows, erased = self.num_rows, len(self.erased)
        segments = [part.source for part in self._parts if isinstance(part.source, Segment)]
        known_at = [bound for segment in segments for bound in segment.entry.known_at or ()]
        for part in self._parts:
            if isinstance(part.source, Buffer):
                known_at += [part.column("known_at").min().item(), part.column("known_at").max().item()]
        return {
            "path": self.url,
            "version": self.version,
            "generation": self.generation,
            "items": self.num_items,
            "rows": rows,
            "corrections": len(self.superseded.rows),
            "erased": erased + len(self._changes.removed_commit),
            "erased_bytes_remain": erased > 0,
            "known_at": [shown_moment(bound, self.schema) for bound in (min(known_at), max(known_at))] if rows else [],
            "classes": list(self.classes),
            "key": f"{self.schema.key.dtype} x {self.schema.key.dim}, function {self.schema.key.function or 'unnamed'}",
            "features": [f"{each.name} {each.dtype} {list(each.shape)}" for each in self.schema.features],
            "payload": [f"{each.name} {each.type}" for each in self.schema.payload],
            "segments": len(segments),
            "segment_bytes": sum(segment.entry.total_bytes for segment in segments),
            "rows_in_log": rows - sum(segment.rows for segment in segments),
        }

    def check_key_function(self, fingerprint: str) -> None:
        """Raises unless the keys are of the function with this fingerprint; empty stands for a function without one."""
        found = self.schema.key.function
        if found == fingerprint:
            return
        if not fingerprint:
            raise HistoryError(
                f"history {self.url} has keys of fingerprint {found}, and no key function was expected: "
                "give the fingerprint of the model's, as in KeyTable(key_function=...)"
            )
        raise HistoryError(
            f"history {self.url} has keys of {f'fingerprint {found}' if found else 'an unnamed function'}, "
            f"the model expects {fingerprint}: with the model's key function as FILE, make them anew by "
            f'"recollect history rekey {shlex.quote(self.url)} --key-function FILE"'
        )

    def visible_rows(self, t: int | float, version: int) -> NDArray[np.int64]:
        """Rows with known_at < t <= until as of that version, erased ones included, by (known_at, commit, row)."""
        known_at, commit = self.column("known_at"), self.column("commit")
        visible = (known_at < t) & (commit <= version)
        ended = (self.superseded.until < t) & (self.superseded.commit <= version)
        visible[self.superseded.rows[ended]] = False
        rows = np.flatnonzero(visible)
        moments = known_at[rows]
        # Rows are in the order of their commits, so a stable sort by the moment is all it takes.
        return rows if bool((np.diff(moments) >= 0).all()) else rows[np.argsort(moments, kind="stable")]

    def removed_count(self, t: int | float, version: int) -> int:
        """Of the rows that were erased and taken out, those that would be visible."""
        changes = self._changes
        visible = (changes.removed_known_at < t) & (changes.removed_commit <= version)
        ended = (changes.removed_until < t) & (changes.removed_until_commit <= version)
        return int((visible & ~ended).sum())


@dataclass(frozen=True)
class View:
    """The items visible as of `t`, at one version. `erased_count` says how many there were more before erasures."""

    snapshot: Snapshot
    t: int | float
    version: int

    @cached_property
    def _all(self) -> NDArray[np.int64]:
        return self.snapshot.visible_rows(self.t, self.version)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Storage rows, in the order of (known_at, commit, row)."""
        return self._all[~is_in(self._all, self.snapshot.erased)]

    @property
    def erased_count(self) -> int:
        return len(self._all) - len(self.rows) + self.snapshot.removed_count(self.t, self.version)

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> NDArray[Any]:
        return self.snapshot.column(name)[self.rows]

    def fetch(self, columns: Sequence[str] | None = None, *, pin: bool = False) -> dict[str, torch.Tensor]:
        return self.snapshot.fetch(self.rows, columns, pin=pin)

    def payload(self) -> pa.Table:
        return self.snapshot.payload(self.rows)
