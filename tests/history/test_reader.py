"""Following a history, and reading columns, rows and payload from wherever they lie."""

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import HistoryError
from recollect.history.compaction import Limits
from recollect.history.disk import fetching
from recollect.history.disk.fetching import BlockCache, coalesce
from recollect.history.disk.format import HEAD_BYTES
from recollect.history.disk.storage import HELD_BYTES
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import HistoryWriter
from tests.history.items import SCHEMA, TINY, items, numbered


def write(url: str) -> None:
    """Two segments, of which the first is large enough to be mapped, and a few items in the log."""
    with HistoryWriter.create(url, SCHEMA, limits=Limits(seal_rows=400, background=False)) as writer:
        writer.append(items(numbered(0, HELD_BYTES // 8 + 100)))
        writer.append(items(numbered(100_000, 100_300)))
        writer.append(items(numbered(200_000, 200_005)))


@pytest.fixture(scope="module", params=["local", "memory"])
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    url = str(tmp_path_factory.mktemp("reader") / "h") if request.param == "local" else "memory://reader/h"
    write(url)
    yield History.open(url).snapshot
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/", recursive=True)


def expected(names: list[str]) -> dict[str, np.ndarray]:
    made = items(names)
    return {name: np.asarray(made[name]) for name in ("wide", "count", "grid", "key")}


@settings(max_examples=25)
@given(data=st.data())
def test_any_rows_in_any_shape(snapshot: Snapshot, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(0,), (1,), (7,), (3, 2), (2, 1, 4)]))
    edges = [0, snapshot.num_rows - 1, snapshot.num_rows - 5, snapshot.num_rows - 6, HELD_BYTES // 8 + 100]
    row = st.sampled_from(edges) | st.integers(0, snapshot.num_rows - 1)
    rows = np.array(data.draw(st.lists(row, min_size=math.prod(shape), max_size=math.prod(shape))), np.int64).reshape(
        shape
    )
    fetched = snapshot.fetch(torch.from_numpy(rows))
    names = [snapshot.column("id", row, row + 1)[0] for row in rows.reshape(-1).tolist()]
    for name, values in expected(names).items():
        if name == "key":
            assert name not in fetched
            continue
        column = snapshot.schema.feature(name)
        assert fetched[name].shape == (*shape, *column.shape)
        assert fetched[name].dtype == column.torch_dtype
        np.testing.assert_array_equal(fetched[name].float().numpy().reshape(len(names), *column.shape), values)
    assert snapshot.payload(rows).column("text").to_pylist() == [f"text of {name}" for name in names]


def test_the_way_of_reading_changes_nothing(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mapped, announced, or read by threads: the same rows."""
    rows = np.random.default_rng(0).integers(0, snapshot.num_rows, 500)
    mapped = snapshot.fetch(rows, ["key", "wide", "grid"])
    monkeypatch.setattr(fetching, "_resident", lambda *arguments: False)
    announced = snapshot.fetch(rows, ["key", "wide", "grid"])
    monkeypatch.setattr(fetching, "_WIDE_BYTES", 1)
    threaded = snapshot.fetch(rows, ["key", "wide", "grid"])
    for name, values in mapped.items():
        assert torch.equal(values, announced[name])
        assert torch.equal(values, threaded[name])
    assert torch.equal(mapped["key"], torch.from_numpy(snapshot.column("key"))[rows])


def test_columns(snapshot: Snapshot) -> None:
    assert snapshot.column("id", 0, 2).tolist() == ["item-0", "item-1"]
    across = snapshot.column("id", snapshot.num_rows - 7)
    assert across.tolist() == [*numbered(100_298, 100_300), *numbered(200_000, 200_005)]
    assert snapshot.column("commit")[[0, -6, -1]].tolist() == [1, 2, 3]
    assert np.isinf(snapshot.column("until", 3, 5)).all()
    for name in ("time", "known_at", "label", "key", "id", "commit", "until", "count"):
        assert len(snapshot.column(name)) == snapshot.num_rows
        assert len(snapshot.column(name, 5, 5)) == 0
    pieces = list(snapshot.pieces("key", 10))
    assert [first for first, _ in pieces] == [10, snapshot.num_rows - 305, snapshot.num_rows - 5]
    np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), snapshot.column("key", 10))
    with pytest.raises(HistoryError, match="the history has no feature 'colour': it has wide, count, grid"):
        snapshot.column("colour")
    with pytest.raises(HistoryError, match="are not all among the"):
        snapshot.column("time", 5, snapshot.num_rows + 1)


def test_rows_that_are_not_there(snapshot: Snapshot) -> None:
    for rows in ([-1], [snapshot.num_rows]):
        with pytest.raises(HistoryError, match="were asked for"):
            snapshot.fetch(rows)
        with pytest.raises(HistoryError, match="were asked for"):
            snapshot.payload(rows)


def test_finding_rows_by_id(snapshot: Snapshot) -> None:
    rows = snapshot.find(["item-100299", "nobody", "item-5", "item-200004"])
    assert rows.tolist() == [snapshot.num_rows - 6, -1, 5, snapshot.num_rows - 1]


def test_opening_reads_no_features(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from files so small that holding them costs less than a file descriptor."""
    write(str(path))
    snapshot = History.open(path).snapshot
    for name in ("key", "known_at", "time", "label"):
        snapshot.column(name)
    (segment, _, _) = snapshot._parts
    assert [name for name in segment.source._arrays if name.startswith("feature")] == []


@pytest.mark.parametrize("url", ["{path}", "memory://follow/h"])
def test_following(path: Path, url: str) -> None:
    url = url.format(path=path)
    with HistoryWriter.create(url, SCHEMA, limits=TINY) as writer:
        reader = History.open(url)
        empty = reader.snapshot
        assert (empty.num_rows, empty.version, len(empty.as_of(1e9)), empty.classes) == (0, 0, 0, ())
        assert (empty.fetch([])["wide"].shape, empty.payload([]).num_rows) == ((0, 5), 0)
        for number in range(40):
            writer.append(items([f"item-{number}"], time=number))
            snapshot = reader.refresh()
            assert (snapshot.num_rows, snapshot.version) == (number + 1, number + 1)
            assert reader.refresh() is snapshot is reader.snapshot
        before = reader.snapshot
        writer.erase(["item-7"])
        writer.compact()
        assert reader.snapshot is before
        if url.startswith("memory"):  # objects can't be kept open
            with pytest.raises(HistoryError, match="is gone, perhaps compacted away: refresh the history"):
                before.fetch([7])
        else:
            assert before.column("id").tolist() == numbered(0, 40)
            assert before.fetch([7])["count"].tolist() == items(["item-7"])["count"].tolist()
        assert reader.refresh().column("id").tolist() == [name for name in numbered(0, 40) if name != "item-7"]
        assert (reader.snapshot.generation, before.generation) == (1, 0)
    assert empty.num_rows == 0
    if url.startswith("memory"):
        fsspec.filesystem("memory").rm("/", recursive=True)


def test_an_erased_row_is_not_handed_out(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a", "b"]))
        writer.erase(["a"])
    snapshot = History.open(path).snapshot
    for read in (snapshot.fetch, snapshot.payload):
        with pytest.raises(HistoryError, match=r"row 0 of history .* was erased"):
            read([1, 0])
    view = snapshot.as_of(1)
    assert (view.rows.tolist(), len(view), view.erased_count) == ([1], 1, 1)


def test_all_rows_of_an_id(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(["a", "b", "c"]))
        writer.correct("a", 1, 1.0)
        writer.correct("b", 1, 1.0)
        writer.erase("b")
    snapshot = History.open(path).snapshot
    assert snapshot.versions(["c", "a", "b", "d"]) == [[2], [0, 3], [], []]
    assert snapshot.versions([]) == []
    assert snapshot.num_items == snapshot.describe()["items"] == 2


def test_versions(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a"], time=5))
        writer.append(items(["b"], time=3))
        snapshot = History.open(path).snapshot
    assert snapshot.as_of(9).column("id").tolist() == ["b", "a"]
    assert snapshot.as_of(9, 1).column("id").tolist() == ["a"]
    assert snapshot.as_of(5).column("id").tolist() == ["b"], "a tie is invisible"
    assert len(snapshot.as_of(9, 0)) == 0
    with pytest.raises(HistoryError, match="is at version 2, 3 was asked for: refresh it"):
        snapshot.as_of(9, 3)


def test_readers_see_complete_states_only(path: Path) -> None:
    """While a writer appends, seals, merges and compacts, a reader never sees half an append."""
    done = threading.Event()
    failures: list[BaseException] = []
    with HistoryWriter.create(path, SCHEMA, limits=Limits(seal_rows=12, merge_width=3)) as writer:

        def follow() -> None:
            try:
                reader, last = History.open(path), -1
                while not done.is_set() or last < writer.version:
                    snapshot = reader.refresh()
                    assert snapshot.version >= last
                    last = snapshot.version
                    view = snapshot.as_of(1e9)
                    assert len(view) % 3 == 0
                    names = view.column("id").tolist()
                    np.testing.assert_array_equal(view.fetch(["count"])["count"].numpy(), items(names)["count"])
                    assert view.payload().column("text").to_pylist() == [f"text of {name}" for name in names]
                    if last % 3 == 0:
                        reader = History.open(path)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=follow) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(60):
            writer.append(items(numbered(3 * number, 3 * number + 3), time=number))
            if number % 20 == 19:
                writer.erase(numbered(3 * number, 3 * number + 3))
                writer.compact()
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


@given(rows=st.sets(st.integers(0, 3000), min_size=1, max_size=40), width=st.sampled_from([1, 100, 4096, 10_000]))
def test_ranges_cover_the_rows_in_order_and_do_not_overlap(rows: set[int], width: int) -> None:
    starts, stops = coalesce(np.array(sorted(rows)), width)
    assert (starts < stops).all()
    assert (stops[:-1] + fetching._GAP_BYTES < starts[1:]).all()
    for row in rows:
        begin = HEAD_BYTES + row * width
        assert ((starts <= begin) & (begin + width <= stops)).sum() == 1


def test_the_cache_is_bounded() -> None:
    cache, loaded = BlockCache(100), []

    def load(missing: list[int]) -> list[bytes]:
        loaded.extend(missing)
        return [bytes([block]) * 30 for block in missing]

    assert cache.get("a", [1, 2, 3], load) == [bytes([block]) * 30 for block in (1, 2, 3)]
    cache.get("a", [1], load)
    cache.get("a", [4], load)
    assert cache.held <= 100
    cache.get("a", [1, 3, 4], load)
    assert loaded == [1, 2, 3, 4], "the block used longest ago was not the one to go"
    cache.get("a", [2], load)
    cache.get("b", [4], load)
    assert loaded == [1, 2, 3, 4, 2, 4]
    cache.clear()
    assert cache.held == 0


def test_a_writer_that_takes_back_what_its_disk_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader may have seen it meanwhile; it must not go on from there."""
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["kept"]))
        reader = History.open(path)

        def see_and_fail(fd: int) -> None:
            assert reader.refresh().num_rows == 3
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", see_and_fail)
            with pytest.raises(OSError, match="Input/output error"):
                writer.append(items(["taken", "back"]))
    assert reader.refresh().column("id").tolist() == ["kept"]
    with HistoryWriter.open(path) as writer:
        writer.append(items(["other"]))
        writer.append(items(["others"]))
    assert reader.refresh().column("id").tolist() == ["kept", "other", "others"]


def test_a_large_append_that_is_compacted_before_it_is_read(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        reader = History.open(path)
        for start in range(0, 60, 10):
            writer.append(items(numbered(start, start + 10)))
        writer.compact()
        assert reader.refresh().column("id").tolist() == numbered(0, 60)


def test_another_reader_goes_its_own_way(path: Path) -> None:
    """It begins where the first one is, and neither sees anything by what the other does."""
    with HistoryWriter.create(path, SCHEMA, limits=Limits(seal_rows=400, background=False)) as writer:
        writer.append(items(numbered(0, 500)))
        writer.seal()
        writer.append(items(numbered(500, 510)))
        writer.erase(["item-3"])
        first = History.open(path)
        second = first.another()
        assert second.snapshot.find(numbered(0, 520)).tolist() == first.snapshot.find(numbered(0, 520)).tolist()
        assert second.snapshot.column("key").tolist() == first.snapshot.column("key").tolist()
        writer.append(items(["new"]))
        writer.correct("item-4", 1, 5)
        writer.erase(["item-7"])
        before = second.snapshot
        first.refresh()
        assert (before.num_rows, second.snapshot) == (510, before)
        writer.append(items(["newer"]))
        second.refresh()
        assert (first.snapshot.num_rows, second.snapshot.num_rows) == (512, 513)
        assert first.snapshot.find(["newer"]).tolist() == [-1]
        assert before.column("id")[-1] == "item-509"
        writer.seal()  # the log they read is closed, and in time removed
        writer.append(items(["newest"]))
        third = first.another()
        for reader in (first, second, third):
            found = reader.refresh()
            assert found.num_rows == 514
            assert found.erased.tolist() == [3, 7]
            assert found.payload(found.find(["new", "newer", "newest"])).column("text").to_pylist() == [
                "text of new",
                "text of newer",
                "text of newest",
            ]


def test_another_reader_of_objects() -> None:
    url = "memory://another/h"
    write(url)
    first = History.open(url)
    second = first.another()
    with HistoryWriter.open(url) as writer:
        writer.append(items(["new"]))
    assert [reader.refresh().find(["new"]).tolist() for reader in (first, second)] == [[len(first.snapshot) - 1]] * 2
    fsspec.filesystem("memory").rm("/", recursive=True)


def test_a_writer_uses_what_a_reader_has_open(path: Path) -> None:
    write(str(path))
    reader = History.open(path)
    with HistoryWriter.open(path, reuse=reader.snapshot.parts) as writer:
        assert writer.append(items(["new", "item-5"]), on_duplicate="skip").skipped == 1
        writer.seal()
        writer.compact()
    assert (
        reader.refresh().find(["new", "item-5"]).tolist()
        == History.open(path).snapshot.find(["new", "item-5"]).tolist()
    )


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_payload_of_few_rows_and_of_many(snapshot: Snapshot, count: int) -> None:
    rows = np.random.default_rng(count).integers(0, snapshot.num_rows, count)
    names = [snapshot.column("id", row, row + 1)[0] for row in rows.tolist()]
    assert snapshot.payload(rows).column("text").to_pylist() == [f"text of {name}" for name in names]
    assert snapshot.payload(rows).schema.equals(SCHEMA.payload, check_metadata=True)
