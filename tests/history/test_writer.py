"""Appending, correcting and erasing: what is refused, what is durable, what the classes are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.errors import HistoryError, ItemError
from recollect.history.compaction import Limits
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.disk.segments import Segment
from recollect.history.reader import History
from recollect.history.verify import verify
from recollect.history.writer import Appended, HistoryWriter
from tests.history.items import SCHEMA, TINY, items, numbered


def ids(path: Path) -> list[str]:
    return History.open(path).snapshot.column("id").tolist()


def test_a_history_is_created_once(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a"]))
    with pytest.raises(HistoryError, match="holds a history already: open it, or choose another place"):
        HistoryWriter.create(path, SCHEMA)
    assert ids(path) == ["a"]
    assert verify(path) == []


def test_there_must_be_a_history_to_open(path: Path) -> None:
    for attempt in (HistoryWriter.open, History.open, verify):
        with pytest.raises(HistoryError, match=r"there is no history at .*: create one with HistoryWriter.create"):
            attempt(path)
    assert not path.exists()


def test_an_id_is_taken_once(path: Path) -> None:
    """In the log, in a segment, and among the items themselves; of a refused batch nothing is written."""
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 8)))
        writer.append(items(["in the log"]))
        for name in ("item-3", "in the log"):
            with pytest.raises(ItemError, match=f"row 1: the id '{name}' is in the history already: leave it out"):
                writer.append(items(["new", name]))
        with pytest.raises(ItemError, match="row 2: the id 'twin' is twice among these items"):
            writer.append(items(["twin", "other", "twin"]))
        assert writer.version == 2
        done = writer.append(items(["twin", "item-3", "twin", "in the log", "new"]), on_duplicate="skip")
        assert done == Appended(commit=3, added=2, skipped=3)
        assert writer.append(items(["twin"]), on_duplicate="skip") == Appended(commit=3, added=0, skipped=1)
        assert writer.append(items([])) == Appended(commit=3, added=0, skipped=0)
    assert ids(path) == [*numbered(0, 8), "in the log", "twin", "new"]


def test_ids_whose_hashes_collide_are_told_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import recollect.history.disk.segments as segments
    import recollect.history.disk.state as state

    def all_alike(ids: Any, kind: str) -> Any:
        return np.full(len(ids), 7, np.uint64)

    monkeypatch.setattr(segments, "hash_ids", all_alike)
    monkeypatch.setattr(state, "hash_ids", all_alike)
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 8)))
        writer.append(items(["a"]))
        writer.append(items(["b", "c"]))
        assert writer.append(items(["item-5", "b", "d"]), on_duplicate="skip").added == 1
        assert History.open(path).snapshot.find(["item-7", "d", "none"]).tolist() == [7, 11, -1]


def test_classes_grow_with_the_names_that_come(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, classes=["ham"]) as writer:
        writer.append(items(["a", "b"], label=["spam", "ham"]))
        writer.append(items(["c"], label=[1]))
        with pytest.raises(ItemError, match="the label 2 has no name, this history has 2 classes"):
            writer.append(items(["d"], label=[2]))
        writer.correct("c", "eggs", 5)
    reader = History.open(path)
    assert reader.snapshot.classes == ("ham", "spam", "eggs")
    assert reader.snapshot.column("label").tolist() == [1, 0, 1, 2]


def test_codes_without_names_stay_so(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a"], label=7))
        with pytest.raises(ItemError, match="this history's labels are codes without names"):
            writer.append(items(["b"], label=["spam"]))
        writer.correct("a", 3, 1)
    assert History.open(path).snapshot.column("label").tolist() == [7, 3]


def test_a_correction_keeps_everything_but_the_label(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 9), time=1))
        writer.append(items(["late"], time=1))
        assert writer.correct(["item-7", "late"], [5, 6], [3, 4]) == 3
    snapshot = History.open(path).snapshot
    assert snapshot.num_rows == 12
    for name in ("id", "time", "key", "wide", "count", "grid"):
        column = snapshot.column(name)
        np.testing.assert_array_equal(column[[10, 11]], column[[7, 9]])
    assert snapshot.payload([10, 11]) == snapshot.payload([7, 9])
    assert snapshot.column("known_at").tolist()[-2:] == [3, 4]
    assert [view.column("label").tolist()[-1] for view in (snapshot.as_of(4), snapshot.as_of(4.5))] == [5, 6]
    assert [snapshot.as_of(3).column("label").tolist()[-1], len(snapshot.as_of(3)), len(snapshot.as_of(100))] == [
        0,
        10,
        10,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody", 1, 5), "there is no item 'nobody' in history"),
        (("a", 1, 2), r"item 'a' can't be corrected at 2.0: its label became known at 3.0"),
        ((["a", "a"], [1, 2], 5), "an id comes twice among these corrections"),
        ((["a", "b"], [1], 5), "2 ids came with 1 labels and 2 moments"),
        (("a", -1, 5), "the label -1"),
        (("a", 1, float("nan")), "has at nan: give a finite number"),
    ],
)
def test_corrections_that_can_not_be(path: Path, arguments: tuple[Any, ...], message: str) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a", "b"], time=3))
        with pytest.raises(ItemError, match=message):
            writer.correct(*arguments)
        assert writer.version == 1


def test_an_erased_id_may_come_again(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a", "b"]))
        writer.correct("a", 1, 2)
        assert writer.erase(["a", "nobody"]) == 2
        assert writer.erase("a") == 0
        assert writer.version == 3
        with pytest.raises(ItemError, match="there is no item 'a'"):
            writer.correct("a", 1, 5)
        writer.append(items(["a"]))
        assert writer.erase(["a"]) == 1
    assert History.open(path).as_of(10).column("id").tolist() == ["b"]


def test_many_items_become_a_segment_at_once(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=Limits(seal_rows=20, background=False)) as writer:
        writer.append(items(numbered(0, 3)))
        writer.append(items(numbered(3, 33)))
        writer.append(items(numbered(33, 35)))
        assert len(list(path.glob("segments/*"))) == 1
        assert (path / "log-00000001.bin").stat().st_size > 0
    assert ids(path) == numbered(0, 35)


def test_a_large_item_counts_by_its_bytes(path: Path) -> None:
    schema = Schema(key=Key(1), features=(Column("wide", "uint8", (3000,)),), time="number")
    columns = {"id": ["a"], "time": [1], "label": [0], "key": [[1.0]], "wide": np.zeros((1, 3000), np.uint8)}
    with HistoryWriter.create(path, schema, limits=Limits(seal_bytes=10_000, background=False)) as writer:
        for name in "abcd":
            writer.append(columns | {"id": [name]})
        assert len(list(path.glob("segments/*"))) == 1


def test_sealing_that_fails_is_no_failure_of_the_append(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import recollect.history.journal as journal

    def no_space(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(journal, "write_segment", no_space)
            for number in range(8):
                assert writer.append(items([f"item-{number}"])).added == 1
        assert "every item is safe in the log" in caplog.text
        writer.append(items(["item-8"]))
    assert ids(path) == numbered(0, 9)
    assert verify(path) == []


def test_a_manifest_that_can_not_be_replaced_ends_the_writer_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recollect.history.disk.storage import LocalStorage

    def no_space(*arguments: Any, **others: Any) -> None:
        raise OSError(28, "No space left on device")

    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "replace", no_space)
            for number in range(6):
                writer.append(items([f"item-{number}"]))
        with pytest.raises(HistoryError, match="since replacing its manifest failed: open the history again"):
            writer.append(items(["more"]))
    assert ids(path) == numbered(0, 6)
    with HistoryWriter.open(path, limits=TINY) as writer:
        writer.append(items(["more"]))
    assert ids(path) == [*numbered(0, 6), "more"]
    assert verify(path) == []


def test_a_closed_writer_says_so(path: Path) -> None:
    writer = HistoryWriter.create(path, SCHEMA)
    writer.close()
    writer.close()
    for attempt in (lambda: writer.append(items(["a"])), lambda: writer.erase("a"), writer.seal, writer.compact):
        with pytest.raises(HistoryError, match="since it was closed: open the history again"):
            attempt()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_by_another_function(path: Path, dtype: str) -> None:
    """Every row, in the log or in segments; nothing but the keys is written anew."""
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        for start in range(0, 20, 5):
            writer.append(items(numbered(start, start + 5)))
        writer.append(items(["last"]))
        writer.erase(["item-3"])
        reader = History.open(path)
        features = {*path.glob("segments/*/feature.wide.npy")}
        writer.rekey(Key(4, dtype, "another"), lambda given: given["wide"][:, :4] * 2, rows_at_once=3)
        assert features <= {*path.glob("segments/*/feature.wide.npy")}
        snapshot = reader.refresh()
        assert (snapshot.schema.key, snapshot.generation) == (Key(4, dtype, "another"), 1)
        rows = snapshot.as_of(1).rows
        found, wide = snapshot.fetch(rows, ["key"])["key"], snapshot.fetch(rows)["wide"]
        assert torch.equal(found, (wide[:, :4] * 2).to(found.dtype))
        with pytest.raises(ItemError, match="a key that is not finite"):
            writer.rekey(Key(1), lambda given: given["wide"][:, :1] * float("nan"))
        writer.append(items(["new"], key=np.ones((1, 4))))
        writer.compact()
    assert verify(path) == []
    assert History.open(path).snapshot.column("key").shape == (21, 4)


def test_files_that_are_not_the_historys_stay(path: Path) -> None:
    """Whatever else lies in the directory is somebody's, the file that items came from perhaps."""
    strangers = ["notes.txt", "sub/x.py", "segments/mine/a.npy", "segments/readme.txt", "changes/a.npz", "log-1.bin"]
    for name in strangers:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        for start in range(0, 20, 5):
            writer.append(items(numbered(start, start + 5)))
        writer.erase(["item-3"])
        writer.compact()
    HistoryWriter.open(path, limits=TINY).close()
    assert all((path / name).read_text() == "mine" for name in strangers)
    assert verify(path) == []


def test_a_merge_of_segments_whose_keys_were_made_anew_is_dropped(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        for start in range(0, 24, 6):
            writer.append(items(numbered(start, start + 6)))
        writer.seal()
        journal = writer._journal
        sources = [part.source for part in journal.state.parts if isinstance(part.source, Segment)]
        schema = writer.schema
        writer.rekey(Key(3, "float32", "another"), lambda given: given["wide"][:, :3] * 2)
        journal._merge(sources[:3], schema, journal._new_name())
        writer.append(items(["last"]))
        writer.seal()
        snapshot = History.open(path).snapshot
        assert len(journal.state.parts) == 5
        wide = snapshot.fetch(snapshot.as_of(1).rows[:24])["wide"].float()
        assert torch.equal(torch.from_numpy(np.array(snapshot.column("key")))[:24], wide[:, :3] * 2)
    assert verify(path) == []


def test_nothing_to_erase_is_no_error(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a"]))
        assert writer.erase([]) == 0
        assert writer.erase(np.empty(0, np.int64)) == 0
    assert History.open(path).snapshot.find([]).tolist() == []
