"""The key table as it follows a history, against a list of items that is looked through one by one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.data.keys import first_columns
from recollect.errors import HistoryError
from recollect.history import key_table
from recollect.history.disk.schema import Key, Schema
from recollect.history.key_table import KeyTable, TableView, as_tensor
from recollect.history.memory import MemoryHistory
from recollect.history.reader import History
from recollect.history.visibility import Window
from recollect.history.writer import HistoryWriter
from recollect.records import Features
from tests.history.items import SCHEMA, TINY, items, numbered


@dataclass
class ListSource:
    """A history as plain lists. `grown` copies it, so that snapshots stay what they were."""

    known_at: list[int] = field(default_factory=list)
    erased_rows: list[int] = field(default_factory=list)
    corrected: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    key_type: Any = np.float32

    @property
    def num_rows(self) -> int:
        return len(self.known_at)

    @property
    def erased(self) -> np.ndarray[Any, Any]:
        return np.array(sorted(self.erased_rows), dtype=np.int64)

    @property
    def superseded(self) -> tuple[np.ndarray[Any, Any], ...]:
        rows, until = (np.array(list(part), dtype=np.int64) for part in (self.corrected, self.corrected.values()))
        return rows, until, np.zeros_like(rows)

    def check_key_function(self, fingerprint: str) -> None:
        assert fingerprint == ""

    def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray[Any, Any]:
        rows = np.arange(self.num_rows)
        known_at = np.array(self.known_at, dtype=np.int64)
        columns = {"key": keys_of(rows).astype(self.key_type), "label": rows % 3, "time": known_at - 1}
        return (columns | {"known_at": known_at})[name][start:stop]

    def fetch(self, rows: Tensor, columns: list[str] | None = None) -> Features:
        return {"row": rows}

    def grown(self, known_at: list[int]) -> "ListSource":
        return ListSource(
            self.known_at + known_at, list(self.erased_rows), dict(self.corrected), self.generation, self.key_type
        )


def keys_of(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([rows, rows % 7, -rows], axis=1)


def visible_rows(view: TableView, as_of: list[int], window: Window, excluded: Tensor | None) -> list[list[int]]:
    """What each input sees, as stored rows."""
    size = view.tail_start + len(view.tail)
    seen = view.visible(torch.tensor(as_of), window, excluded).sees(torch.arange(size).expand(len(as_of), -1))
    return [sorted(view.at("row", row.nonzero().squeeze(1)).tolist()) for row in seen]


def expected_rows(source: ListSource, as_of: int, window: Window, excluded: list[int]) -> list[int]:
    order = sorted(range(source.num_rows), key=lambda row: (source.known_at[row], row))
    seen = [row for row in order if source.known_at[row] < as_of and row not in source.erased_rows]
    seen = [row for row in seen if as_of <= source.corrected.get(row, as_of)]
    if window.items is not None:
        seen = seen[max(0, len(seen) - window.items) :]
    return sorted(row for row in seen if row not in excluded)


def _of_stretches(extreme: Callable[[list[float]], float], values: list[float], size: int = 4) -> list[float]:
    return [extreme(values[first : first + size]) for first in range(0, len(values), size)]


batches = st.lists(st.integers(0, 9), max_size=5)
steps = st.lists(
    st.tuples(st.just("append"), batches)
    | st.tuples(st.just("erase"), st.integers(0, 30))
    | st.tuples(st.just("correct"), st.tuples(st.integers(0, 30), st.integers(0, 5)))
    | st.tuples(st.just("compact"), st.none()),
    max_size=12,
)


@settings(max_examples=150)
@given(
    changes=steps,
    window=st.none() | st.integers(0, 12),
    least=st.sampled_from([1, 3, 1000]),
    excluded=st.lists(st.integers(-1, 20), min_size=2, max_size=2),
)
def test_following_equals_looking_at_every_item(
    changes: list[tuple[str, Any]], window: int | None, least: int, excluded: list[int]
) -> None:
    as_of = [-1, 0, 3, 5, 9, 10]
    source, table = ListSource(), KeyTable()
    out = torch.tensor([excluded] * len(as_of))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_table, "LEAST_MERGED", least)
        patch.setattr(key_table, "STRETCH", 4)
        history: list[tuple[TableView, ListSource]] = [(table.follow(source), source)]
        for kind, value in changes:
            source = source.grown(value if kind == "append" else [])
            if kind == "erase" and value < source.num_rows and value not in source.erased_rows:
                source.erased_rows.append(value)
            if kind == "correct" and value[0] < source.num_rows:
                source.corrected.setdefault(value[0], source.known_at[value[0]] + value[1])
            source.generation += kind == "compact"
            history.append((table.follow(source), source))
    # Views that were handed out before show what they showed then.
    for view, then in history:
        found = visible_rows(view, as_of, Window(window), out)
        assert found == [expected_rows(then, moment, Window(window), excluded) for moment in as_of]
        assert len(view) == then.num_rows - len(then.erased_rows)
        left = [known_at for row, known_at in enumerate(then.known_at) if row not in then.erased_rows]
        assert view.newest == max(left, default=None)
        everything = view.positions_of(torch.arange(-1, then.num_rows + 2))
        there = everything >= 0
        assert torch.equal(view.at("row", everything[there]), torch.arange(-1, then.num_rows + 2)[there])
        for name in ("key", "label", "time", "known_at"):
            column = torch.from_numpy(np.asarray(then.column(name)))
            assert torch.equal(view.at(name, everything[there]), column[torch.arange(-1, then.num_rows + 2)[there]])
            assert torch.equal(view.column(name)[everything[there]], view.at(name, everything[there]))
        norms, recency = view.items.key.float().norm(dim=1).tolist(), view.items.recency.tolist()
        assert view.extents.norm.tolist() == pytest.approx(_of_stretches(max, norms))
        assert view.extents.earliest.tolist() == _of_stretches(min, recency)
        assert view.extents.latest.tolist() == _of_stretches(max, recency)
        order = list(zip(view.items.known_at.tolist(), view.items.row.tolist(), strict=True))
        assert order == sorted(order)
        # The tail's place among the others is that of its moment.
        for after, known_at, row in zip(view.tail_after, view.tail.known_at, view.tail.row, strict=True):
            assert int(after) == sum(item < (int(known_at), int(row)) for item in order)


def test_items_in_order_are_written_in_place() -> None:
    table, source = KeyTable(), ListSource()
    copies, last = 0, -1
    for step in range(2000):
        source.known_at.append(step)
        view = table.follow(ListSource(list(source.known_at)))
        copies += view.items.key.data_ptr() != last
        last = view.items.key.data_ptr()
    assert copies <= 5
    assert len(view.tail) == 0


def test_keys_stay_where_they_were_mapped_until_something_is_added() -> None:
    keys = np.arange(6, dtype=np.float32).reshape(3, 2)
    keys.flags.writeable = False

    class Mapped(ListSource):
        def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray[Any, Any]:
            return keys[start:stop] if name == "key" else super().column(name, start, stop)

    view = KeyTable().follow(Mapped([1, 2, 3]))
    assert view.items.key.data_ptr() == keys.ctypes.data


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_keys_in_a_precision_of_choice(dtype: torch.dtype) -> None:
    table = KeyTable(dtype=dtype)
    table.follow(ListSource([1, 2]))
    view = table.follow(ListSource([1, 2, 1, 4]))
    assert view.items.key.dtype == view.tail.key.dtype == dtype
    assert view.at("key", torch.tensor([2]))[0].tolist() == [3, 3, -3]


def test_bfloat16_comes_as_unsigned_integers() -> None:
    values = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    assert torch.equal(as_tensor(values.view(torch.uint16).numpy()), values)


def test_an_empty_view() -> None:
    view = KeyTable().follow(ListSource())
    assert len(view) == 0
    nothing = torch.tensor([[-1, -1]])
    assert view.at("label", nothing).tolist() == [[0, 0]]
    assert view.positions_of(nothing).tolist() == [[-1, -1]]
    assert view.visible(torch.tensor([5])).stop.tolist() == [0]


# Keys of another function


def test_keys_of_another_function_are_refused(path: Path) -> None:
    with HistoryWriter.create(path, SCHEMA) as writer:
        writer.append(items(["a", "b"]))
    snapshot = History.open(path).snapshot
    assert len(KeyTable(key_function="made up").follow(snapshot)) == 2
    with pytest.raises(HistoryError) as raised:
        KeyTable(key_function="77c0").follow(snapshot)
    assert str(raised.value) == (
        f"history {path} has keys of fingerprint made up, the model expects 77c0: with the model's key function "
        f'as FILE, make them anew by "recollect history rekey {path} --key-function FILE"'
    )
    # What was forgotten is said too, and not taken for consent.
    with pytest.raises(HistoryError, match=r"no key function was expected: give .* KeyTable\(key_function=...\)"):
        KeyTable().follow(snapshot)


def test_keys_without_a_name_are_no_keys_of_the_model(path: Path) -> None:
    odd = path.with_name("a history")
    HistoryWriter.create(odd, Schema(Key(2), time="number")).close()
    snapshot = History.open(odd).snapshot
    assert len(KeyTable().follow(snapshot)) == 0
    with pytest.raises(HistoryError, match=f"keys of an unnamed function.*rekey '{odd}' --key-function FILE"):
        KeyTable(key_function="77c0").follow(snapshot)


def test_a_history_in_memory_names_its_key_function_too() -> None:
    moments = torch.arange(3.0)
    history = MemoryHistory({}, torch.zeros(3, 2), torch.zeros(3, dtype=torch.long), moments, moments, "3fa1")
    assert len(KeyTable(key_function="3fa1").follow(history)) == 3
    with pytest.raises(
        HistoryError, match="in memory has keys of 3fa1, the model expects an unnamed function: compute"
    ):
        KeyTable().follow(history)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_rekey_is_noticed_while_following(path: Path, dtype: str) -> None:
    """By the table of the old model, which keeps its last view; a table of the new one reads the new keys."""
    with HistoryWriter.create(path, SCHEMA, limits=TINY) as writer:
        writer.append(items(numbered(0, 10)))
        writer.append(items(["late"]))
        reader, old = History.open(path), KeyTable(key_function="made up")
        before = old.follow(reader.snapshot)
        keys = before.items.key.clone()
        function = first_columns("wide", 5, 2)
        writer.rekey(Key(2, dtype, function.fingerprint), function, columns=["wide"])
        writer.append(items(["new"], key=np.ones((1, 2))))
        snapshot = reader.refresh()
        for _ in range(2):
            with pytest.raises(HistoryError, match=f"fingerprint {function.fingerprint}, the model expects made up"):
                old.follow(snapshot)
        assert old.view is before
        assert torch.equal(before.items.key, keys)
        new = KeyTable(key_function=function.fingerprint).follow(snapshot)
        assert new.items.key.dtype == getattr(torch, dtype)
        expected = function(snapshot.fetch(torch.arange(11), ["wide"])).to(new.items.key.dtype)
        assert torch.equal(new.items.key[:11], expected)
        assert new.items.key[11].tolist() == [1, 1]
