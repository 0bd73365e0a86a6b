"""Reading every byte of a history and saying what is wrong with it, file by file. Changes nothing."""

import os
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from recollect.errors import HistoryError
from recollect.history.disk.format import (
    HEAD_BYTES,
    ID_HASH,
    ID_ORDER,
    MANIFEST,
    PREVIOUS,
    FileEntry,
    Manifest,
    SegmentEntry,
    column_head,
)
from recollect.history.disk.ids import hash_ids
from recollect.history.disk.log import Change, open_log
from recollect.history.disk.schema import Schema
from recollect.history.disk.segments import Segment, segment_types
from recollect.history.disk.state import Changes, State
from recollect.history.disk.storage import Storage, no_history, storage_at


def verify(url: str | os.PathLike[str], options: dict[str, Any] | None = None) -> list[str]:
    """Every problem there is, in a line each; an end of the log that is cut short, as a crash leaves it, is none.

    If the manifest is damaged, the state before is looked at, which is what can be gone back to.
    """
    storage = storage_at(url, options)
    if not storage.exists(MANIFEST) and not storage.exists(PREVIOUS):
        raise no_history(storage)
    manifest, problems = _read_manifest(storage, MANIFEST)
    if storage.exists(PREVIOUS):
        previous, more = _read_manifest(storage, PREVIOUS)
        problems += more
        if manifest is None and previous is not None:
            problems += [f"{PREVIOUS}: {problem}" for problem in _check_state(storage, previous)]
            problems.append(f"{PREVIOUS} is the state after commit {_with_log(storage, previous)}")
    return problems + (list(_check_state(storage, manifest)) if manifest is not None else [])


def _read_manifest(storage: Storage, name: str) -> tuple[Manifest | None, list[str]]:
    try:
        return Manifest.decode(storage.read(name), f"{storage.url}/{name}"), []
    except (HistoryError, OSError) as error:
        return None, [f"{name}: {error}"]


def _check_state(storage: Storage, manifest: Manifest) -> Iterator[str]:
    whole = True
    for problem in _check_files(storage, manifest):
        whole = False
        yield problem
    changes, problem = _read_log(storage, manifest)
    if problem:
        whole = False
        yield f"log {manifest.log}: {problem}"
    for change in changes:
        if change.segment is not None:
            for problem in _check_segment(storage, change.segment, manifest.schema):
                whole = False
                yield problem
    if whole:
        yield from _check_items(storage, manifest, changes)


def _read_log(storage: Storage, manifest: Manifest) -> tuple[list[Change], str]:
    """The commits since the manifest, also those of later logs, and what is wrong with these."""
    try:
        log = open_log(storage, manifest.log, manifest.commit + 1)
        return log.read_new(manifest.schema), log.problem()
    except (HistoryError, OSError) as error:
        return [], str(error)


def _with_log(storage: Storage, manifest: Manifest) -> str:
    commits = [change for change in _read_log(storage, manifest)[0] if not change.closing]
    rows = manifest.num_rows + sum(change.rows.count for change in commits if change.rows is not None)
    rows += sum(change.segment.rows for change in commits if change.segment is not None)
    return f"{manifest.commit + len(commits)}, with {rows} rows, those of the log included"


def _check_files(storage: Storage, manifest: Manifest) -> Iterator[str]:
    for entry in manifest.segments:
        yield from _check_segment(storage, entry, manifest.schema)
    if manifest.changes is not None:
        problem = _check_file(storage, manifest.changes)
        if problem:
            yield f"changes: {problem}"


def _check_segment(storage: Storage, entry: SegmentEntry, schema: Schema) -> Iterator[str]:
    problems = [problem for file in entry.files.values() if (problem := _check_file(storage, file))]
    types = segment_types(schema, entry.id_width)
    missing = sorted(set(types) - set(entry.files))
    problems += [f"it has no column {name}" for name in missing]
    if not problems:
        for name, (dtype, shape) in types.items():
            head = next(iter(storage.open(entry.files[name].path).chunks(HEAD_BYTES)))
            if bytes(head[:HEAD_BYTES]) != column_head(dtype, (entry.rows, *shape)):
                problems.append(f"{entry.files[name].path} has a head that does not fit the schema")
        problems += _check_columns(Segment(storage, entry, schema))
    yield from (f"segment {entry.name}: {problem}" for problem in problems)


def _check_file(storage: Storage, entry: FileEntry) -> str:
    try:
        size, crc = 0, 0
        for chunk in storage.open(entry.path).chunks():
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    except OSError as error:
        return f"{entry.path} can't be read ({error})"
    if size != entry.bytes:
        return f"{entry.path} has {size} bytes instead of {entry.bytes}"
    return "" if f"{crc:08x}" == entry.crc32 else f"{entry.path} does not match its checksum"


def _check_columns(segment: Segment) -> list[str]:
    """What the checksums can't tell: that the columns agree with each other."""
    problems = []
    time, known_at, commit = (segment.column(name) for name in ("time", "known_at", "commit"))
    if bool((known_at < time).any()):
        problems.append(f"row {int(np.argmax(known_at < time))} has known_at before its time")
    if bool((np.diff(commit) < 0).any()) or (commit[0], commit[-1]) != segment.entry.commits:
        problems.append("its rows are not in the order of their commits")
    hashes, order = hash_ids(segment.column("id"), segment.schema.id), segment.column(ID_ORDER)
    if not np.array_equal(np.sort(order), np.arange(segment.rows)):
        problems.append(f"{ID_ORDER} is not an order of its rows")
    elif not np.array_equal(hashes[order], segment.column(ID_HASH)) or bool((np.diff(hashes[order]) < 0).any()):
        problems.append(f"{ID_HASH} does not fit its ids")
    return problems


def _check_items(storage: Storage, manifest: Manifest, log: list[Change]) -> Iterator[str]:
    """That every id has one current row, and that corrections and erasures name rows that are there."""
    state = State(storage, manifest)
    for change in log:
        state.apply(change)
    changes: Changes = state.changes()
    for name in ("superseded_row", "erased_row"):
        rows = getattr(changes, name)
        if len(rows) != len(np.unique(rows)) or bool((rows < 0).any() or (rows >= state.num_rows).any()):
            yield f"changes: {name} names a row twice, or one that is not there"
            return
    current = np.ones(state.num_rows, bool)
    current[changes.superseded_row] = False
    current[changes.erased_row] = False
    hashes = np.concatenate(
        [np.empty(0, np.uint64), *(hash_ids(part.column("id"), state.schema.id) for part in state.parts)]
    )
    _, counts = np.unique(hashes[current], return_counts=True)
    if bool((counts > 1).any()):
        ids = np.concatenate([part.column("id") for part in state.parts])[current]
        names, counts = np.unique(ids, return_counts=True)
        yield from (
            f"the id {name!r} is there {count} times" for name, count in zip(names, counts, strict=True) if count > 1
        )
