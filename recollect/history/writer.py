"""Writing a history: appending, correcting and erasing items, each durable when the call returns.

One writer at a time; readers go on undisturbed. Knows items and their ids; how a commit is kept, the journal knows.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.errors import HistoryError, ItemError
from recollect.history.compaction import Limits
from recollect.history.disk.fetching import Fetcher
from recollect.history.disk.format import MANIFEST, Manifest
from recollect.history.disk.log import Rows, create_log
from recollect.history.disk.schema import Key, Schema
from recollect.history.disk.state import Part, find_rows, gather, read_payload
from recollect.history.disk.storage import Storage, no_history, storage_at
from recollect.history.journal import Journal
from recollect.history.rows import check_ids, check_items, check_keys, check_labels, shown_moment, times
from recollect.records import Features

OnDuplicate = Literal["refuse", "skip"]
OnUnknown = Literal["refuse", "skip"]
NAMED = 5
"""So many unknown ids are told, the others counted."""


@dataclass(frozen=True)
class Appended:
    """What an append did. `commit` is the history's version after it."""

    commit: int
    added: int
    skipped: int


class HistoryWriter:
    """The one writer of a history. May be shared by threads, not by processes."""

    def __init__(self, storage: Storage, limits: Limits, reuse: Sequence[Part] = ()) -> None:
        """Use `create` or `open`: the storage must be locked."""
        self._journal = Journal(storage, limits, reuse)
        self._fetcher = Fetcher(threads=4, cache_bytes=0)

    @staticmethod
    def create(
        url: str | os.PathLike[str],
        schema: Schema,
        *,
        classes: Sequence[str] = (),
        limits: Limits | None = None,
        options: dict[str, Any] | None = None,
    ) -> "HistoryWriter":
        """An empty history, open for writing. `classes` name the first label codes; `options` go to fsspec."""
        storage = storage_at(url, options)
        storage.lock()
        try:
            if storage.exists(MANIFEST):
                raise FileExistsError
            create_log(storage, 1)
            storage.create(MANIFEST, Manifest(0, 0, schema, tuple(classes), (), None, 1, 0).encode())
            return HistoryWriter(storage, limits or Limits())
        except BaseException as error:
            storage.unlock()
            if isinstance(error, FileExistsError):
                raise _taken(storage) from None
            raise

    @staticmethod
    def check_free(url: str | os.PathLike[str], options: dict[str, Any] | None = None) -> None:
        """Raises if a history is there already: for whoever has long work to do before `create`."""
        storage = storage_at(url, options)
        if storage.exists(MANIFEST):
            raise _taken(storage)

    @staticmethod
    def open(
        url: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        options: dict[str, Any] | None = None,
        reuse: Sequence[Part] = (),
    ) -> "HistoryWriter":
        """Cuts off what a crash left unfinished; what may be more than that is kept aside.

        With the `parts` of a snapshot to `reuse`, segments that are in it are not opened and checked again.
        """
        storage = storage_at(url, options)
        if not storage.exists(MANIFEST):  # asked first, since the lock would make the directory
            raise no_history(storage)
        storage.lock()
        try:
            return HistoryWriter(storage, limits or Limits(), reuse)
        except BaseException:
            storage.unlock()
            raise

    def __enter__(self) -> "HistoryWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def schema(self) -> Schema:
        return self._journal.schema

    @property
    def version(self) -> int:
        return self._journal.state.version

    @property
    def num_rows(self) -> int:
        return self._journal.state.num_rows

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._journal.state.classes)

    def seal(self) -> None:
        """Turn the items of the log into a segment now; it happens by itself when there are enough."""
        self._journal.seal()

    def compact(self) -> None:
        """Merge small segments, and take out every byte of what was erased. Appends may go on meanwhile."""
        self._journal.compact()

    def rekey(
        self,
        key: Key,
        function: Callable[[Features], torch.Tensor],
        *,
        columns: Sequence[str] | None = None,
        rows_at_once: int = 8192,
    ) -> None:
        """Compute every key anew from the features, or the columns named of them, by another key function.

        Nothing else is copied, and until all keys are there the old ones count. Rows keep their numbers, but the
        generation is raised, so that whoever holds the old keys reads them again.
        """
        chosen = self.schema.features if columns is None else [self.schema.feature(name) for name in columns]
        features = {f"feature.{column.name}": column for column in chosen}

        def keys_of(part: Part) -> Iterator[NDArray[Any]]:
            for start in range(0, part.rows, rows_at_once):
                rows = np.arange(part.first + start, part.first + min(part.rows, start + rows_at_once))
                stored = self._fetcher.fetch([part], rows, features, pin=False)
                given = {each.name: stored[file].view(each.torch_dtype) for file, each in features.items()}
                yield check_keys(function(given), key, len(rows))

        self._journal.rekey(replace(self.schema, key=key), keys_of)

    def close(self, *, wait: bool = True) -> None:
        """Give up the lock. With `wait`, a merge in the background is finished first; nothing is lost without."""
        self._journal.close(wait=wait)

    def append(self, items: Any, on_duplicate: OnDuplicate = "refuse") -> Appended:
        """Add items: a mapping of columns, a pandas or polars DataFrame, or an Arrow table.

        Items whose id is there already are refused, and then nothing is written, or skipped, as asked.
        """
        if on_duplicate not in ("refuse", "skip"):
            raise ItemError(f"on_duplicate is {on_duplicate!r}: it must be 'refuse' or 'skip'")
        given = check_items(items, self.schema)
        with self._journal.mutex:
            self._journal.check_usable()
            rows, names = given.rows, given.names
            if rows.count == 0:
                return Appended(self.version, 0, 0)
            new = self._new_ones(rows.columns["id"], on_duplicate)
            skipped = rows.count - int(new.sum())
            if skipped:
                rows = rows.take(new)
                names = names and [name for name, wanted in zip(names, new.tolist(), strict=True) if wanted]
            if rows.count == 0:
                return Appended(self.version, 0, skipped)
            labels, classes = self._encoded(rows.columns["label"], names)
            rows = Rows(rows.count, {**rows.columns, "label": labels}, rows.payload)
            self._journal.commit(rows=rows, classes=classes)
            return Appended(self.version, rows.count, skipped)

    def correct(self, ids: Any, labels: Any, at: Any) -> int:
        """Give an item, or several in one commit, another label from `at` on; returns the commit.

        Views as of a moment up to `at` keep the old label for ever.
        """
        ids, at, (codes, names) = _listed(ids), _listed(at), check_labels(_listed(labels))
        with self._journal.mutex:
            self._journal.check_usable()
            current = self._current_rows(ids)
            moments = times(at * len(current) if len(at) == 1 else at, self.schema, "at")
            if not len(current) == len(codes) == len(moments):
                raise ItemError(f"{len(current)} ids came with {len(codes)} labels and {len(moments)} moments")
            old = self._rows_at(current)
            early = np.flatnonzero(moments < old.columns["known_at"])
            if len(early):
                row = int(early[0])
                at, known = (shown_moment(each[row].item(), self.schema) for each in (moments, old.columns["known_at"]))
                raise ItemError(
                    f"item {ids[row]!r} can't be corrected at {at}: its label became known at {known}; give a moment "
                    "that is not before that"
                )
            codes, classes = self._encoded(codes, names)
            rows = Rows(old.count, {**old.columns, "label": codes, "known_at": moments}, old.payload)
            self._journal.commit(rows=rows, superseded=current, until=moments, classes=classes)
            return self.version

    def erase(self, ids: Any, on_unknown: OnUnknown = "skip") -> int:
        """Take items out of every view, past ones too; returns how many rows that were.

        The bytes go with `compact`. An id that is not there is skipped or, if asked, refused, and then nothing is
        erased; an erased id may be appended again.
        """
        with self._journal.mutex:
            self._journal.check_usable()
            if not (ids := _listed(ids)):
                return 0
            places, rows = self._find(check_ids(ids, self.schema), current=False)
            if on_unknown == "refuse":
                self._check_all_there(ids, places)
            rows = np.unique(rows)
            if len(rows):
                self._journal.commit(erased=rows)
            return len(rows)

    def _find(self, ids: NDArray[Any], *, current: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        without = [self._journal.state.erased()] + ([self._journal.state.superseded()] if current else [])
        return find_rows(self._journal.state.parts, ids, self.schema, without)

    def _new_ones(self, ids: NDArray[Any], on_duplicate: OnDuplicate) -> NDArray[np.bool_]:
        """Which of these ids are new, the first of several equal ones among them."""
        places, _ = self._find(ids, current=False)
        new = np.zeros(len(ids), bool)
        new[np.unique(ids, return_index=True)[1]] = True
        new[places] = False
        if on_duplicate == "refuse" and not new.all():
            row = int(np.flatnonzero(~new)[0])
            name = ids[row].decode() if self.schema.id == "string" else int(ids[row])
            where = "in the history already" if row in places else "twice among these items"
            raise ItemError(
                f"row {row}: the id {name!r} is {where}: leave it out, or append with on_duplicate='skip'; "
                "to change a label use correct(); on the command line --on-duplicate skip and recollect history correct"
            )
        return new

    def _current_rows(self, ids: list[Any]) -> NDArray[np.int64]:
        stored = check_ids(ids, self.schema)
        places, rows = self._find(stored, current=True)
        if len(set(ids)) < len(ids):
            raise ItemError("an id comes twice among these corrections: make them one after another")
        self._check_all_there(ids, places)
        current = np.empty(len(ids), np.int64)
        current[places] = rows
        return current

    def _check_all_there(self, ids: list[Any], places: NDArray[np.int64]) -> None:
        unknown = [ids[place] for place in sorted(set(range(len(ids))) - set(places.tolist()))]
        if unknown:
            more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
            raise ItemError(
                f"there is no item {', '.join(map(repr, unknown[:NAMED]))}{more} in history "
                f"{self._journal.storage.url}, and nothing was changed: give ids that are there"
            )

    def _rows_at(self, rows: NDArray[np.int64]) -> Rows:
        parts, wide = self._journal.state.parts, {"key": self.schema.key.column}
        wide |= {f"feature.{column.name}": column for column in self.schema.features}
        columns = {name: gather(parts, name, rows) for name in ("time", "known_at", "label", "id")}
        columns |= {name: each.numpy() for name, each in self._fetcher.fetch(parts, rows, wide, pin=False).items()}
        return Rows(len(rows), columns, read_payload(parts, rows, self.schema) if len(self.schema.payload) else None)

    def _encoded(self, codes: NDArray[np.int64], names: list[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Label codes, and the classes that are new with them."""
        classes = self._journal.state.classes
        if names is None:
            if classes and int(codes.max()) >= len(classes):
                raise ItemError(
                    f"the label {int(codes.max())} has no name, this history has {len(classes)} classes: "
                    "give labels as names, and new ones are added"
                )
            return codes, ()
        if not classes and self._journal.state.num_rows:
            raise ItemError("this history's labels are codes without names: give whole numbers")
        known = {name: code for code, name in enumerate(classes)}
        for name in names:
            known.setdefault(name, len(known))
        return np.array([known[name] for name in names], np.int64), tuple(list(known)[len(classes) :])


def _taken(storage: Storage) -> HistoryError:
    return HistoryError(f"{storage.url} holds a history already: open it, or choose another place")


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (str, int, float)) or np.ndim(value) == 0:
        return [value]
    return list(value)
