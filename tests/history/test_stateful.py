"""Any order of appends, corrections, erasures, sealing, merging, compaction and reopening, against a plain list."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import ItemError
from recollect.history.compaction import Limits
from recollect.history.reader import History
from recollect.history.snapshot import View
from recollect.history.verify import verify
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, items

# Few names and few moments, so that duplicates and ties are common.
NAMES = [f"name-{number}" for number in range(40)]
names = st.sampled_from(NAMES)
moments = st.integers(0, 6).map(float)
labels = st.sampled_from(["spam", "ham", "eggs"])


def content(view: View) -> list[tuple[str, float, float, str, str, float]]:
    """What a view shows, in its order."""
    snapshot = view.snapshot
    fetched = view.fetch(["wide", "key"])
    return [
        (name, time, known, snapshot.classes[label], text, wide)
        for name, time, known, label, text, wide in zip(
            view.column("id").tolist(),
            view.column("time").tolist(),
            view.column("known_at").tolist(),
            view.column("label").tolist(),
            view.payload().column("text").to_pylist(),
            fetched["wide"][:, 0].tolist(),
            strict=True,
        )
    ]


class Model:
    """A history by the words of its definition: a list of rows, each with its commit and what ended it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.version = 0

    def current(self, name: str) -> dict[str, Any] | None:
        rows = [row for row in self.rows if row["id"] == name and not row["erased"] and row["until"] is None]
        assert len(rows) <= 1
        return rows[0] if rows else None

    def append(self, name: str, time: float, known_at: float, label: str) -> None:
        made = items([name])
        self.rows.append(
            dict(id=name, time=time, known_at=known_at, label=label, wide=float(made["wide"][0, 0]), erased=False)
            | dict(commit=self.version, until=None, until_commit=None)
        )

    def seen(self, t: float, version: int) -> list[dict[str, Any]]:
        rows = [row for row in self.rows if row["commit"] <= version and row["known_at"] < t]
        ended = [row["until"] is not None and row["until_commit"] <= version and t > row["until"] for row in rows]
        rows = [row for row, gone in zip(rows, ended, strict=True) if not gone]
        return sorted(rows, key=lambda row: (row["known_at"], row["commit"]))

    def view(self, t: float, version: int) -> list[tuple[str, float, float, str, str, float]]:
        return [
            (row["id"], row["time"], row["known_at"], row["label"], f"text of {row['id']}", row["wide"])
            for row in self.seen(t, version)
            if not row["erased"]
        ]


class Both:
    """A history and its model, taken through the same steps."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self.writer = HistoryWriter.create(folder, SCHEMA, limits=limits)
        self.reader = History.open(folder)
        self.model = Model()
        self.rows: tuple[int, list[str]] = (0, [])

    def append(self, rows: list[tuple[str, float, float, str]], skip: bool) -> None:
        columns = items(
            [name for name, *_ in rows],
            time=np.array([time for _, time, _, _ in rows]),
            known_at=np.array([time + delay for _, time, delay, _ in rows]),
            label=[label for *_, label in rows],
        )
        taken = {row["id"] for row in self.model.rows if not row["erased"]}
        fresh: dict[str, tuple[float, float, str]] = {}
        for name, time, delay, label in rows:
            if name not in taken and name not in fresh:
                fresh[name] = (time, time + delay, label)
        if len(fresh) < len(rows) and not skip:
            with pytest.raises(ItemError, match="to change a label use correct"):
                self.writer.append(columns)
            return
        done = self.writer.append(columns, on_duplicate="skip" if skip else "refuse")
        assert (done.added, done.skipped) == (len(fresh), len(rows) - len(fresh))
        self.model.version += bool(fresh)
        for name, (time, known_at, label) in fresh.items():
            self.model.append(name, time, known_at, label)

    def correct(self, which: int, delay: float, label: str) -> None:
        current = [row for name in NAMES if (row := self.model.current(name))]
        if not current:
            with pytest.raises(ItemError, match="no item 'name-0'"):
                self.writer.correct("name-0", label, delay)
            return
        row = current[which % len(current)]
        at = row["known_at"] + delay
        with pytest.raises(ItemError, match="can't be corrected at"):
            self.writer.correct(row["id"], label, row["known_at"] - 1)
        self.writer.correct(row["id"], label, at)
        self.model.version += 1
        row["until"], row["until_commit"] = at, self.model.version
        self.model.append(row["id"], row["time"], at, label)

    def erase(self, chosen: list[str]) -> None:
        rows = [row for row in self.model.rows if row["id"] in chosen and not row["erased"]]
        assert self.writer.erase(chosen) == len(rows)
        self.model.version += bool(rows)
        for row in rows:
            row["erased"] = True

    def seal(self) -> None:
        self.writer.seal()

    def compact(self) -> None:
        self.writer.compact()
        assert len(self.reader.refresh().erased) == 0

    def reopen(self) -> None:
        self.writer.close()
        self.writer = HistoryWriter.open(self.folder, limits=self.limits)

    def read_anew(self) -> None:
        self.reader = History.open(self.folder)

    def look_back(self, t: float, back: int) -> None:
        """A moment and a version show the same for ever, erasures excepted and counted."""
        version = max(0, self.model.version - back)
        seen = self.reader.refresh().as_of(t, version)
        assert content(seen) == self.model.view(t, version)
        assert seen.erased_count == sum(row["erased"] for row in self.model.seen(t, version))

    def check(self) -> None:
        snapshot = self.reader.refresh()
        assert self.reader.refresh() is snapshot
        assert snapshot.version == self.writer.version == self.model.version
        ids = snapshot.column("id").tolist()
        generation, before = self.rows
        if generation == snapshot.generation:
            assert ids[: len(before)] == before, "a row has changed its number within a generation"
        self.rows = (snapshot.generation, ids)
        assert content(snapshot.as_of(100.0)) == self.model.view(100.0, self.model.version)
        found = snapshot.find(NAMES).tolist()
        assert [row >= 0 for row in found] == [self.model.current(name) is not None for name in NAMES]


rows = st.lists(st.tuples(names, moments, moments, labels), min_size=1, max_size=7)
corrections = st.tuples(st.just("correct"), st.integers(0, 1000), moments, labels)
looks = st.tuples(st.just("look_back"), st.integers(1, 14).map(float), st.integers(0, 6))
steps = st.one_of(
    st.tuples(st.just("append"), rows, st.booleans()),
    st.tuples(st.just("append"), rows, st.just(True)),
    corrections,
    corrections,
    st.tuples(st.just("erase"), st.lists(names, min_size=1, max_size=6)),
    st.tuples(st.sampled_from(["seal", "compact", "reopen", "read_anew"])),
    looks,
    looks,
)
beginnings = st.tuples(st.just("append"), rows, st.just(True))


histories = given(
    beginning=beginnings,
    steps=st.lists(steps, min_size=10, max_size=40),
    seal_rows=st.integers(2, 9),
    background=st.booleans(),
    segment_bytes=st.sampled_from([1 << 17, 1 << 30]),
)


@settings(max_examples=15)
@histories
def test_any_order_of_steps(
    beginning: tuple[Any, ...], steps: list[tuple[Any, ...]], seal_rows: int, background: bool, segment_bytes: int
) -> None:
    limits = Limits(seal_rows=seal_rows, merge_width=3, segment_bytes=segment_bytes, background=background)
    # In memory where that can be had: thousands of durable writes otherwise wait for the disk.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        both = Both(Path(folder, "h"), limits)
        for name, *arguments in [beginning, *steps]:
            getattr(both, name)(*arguments)
            both.check()
        both.compact()
        for version in range(both.model.version + 1):
            for t in (1.0, 4.0, 7.0, 12.0):
                seen, expected = both.reader.as_of(t, version), both.model.seen(t, version)
                assert seen.column("id").tolist() == [row["id"] for row in expected if not row["erased"]]
                assert seen.erased_count == sum(row["erased"] for row in expected)
        both.writer.close()
        assert verify(Path(folder, "h")) == []


test_any_order_of_steps_at_length = pytest.mark.slow(
    settings(max_examples=400)(histories(test_any_order_of_steps.hypothesis.inner_test))
)
