from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.history.disk.schema import Key, Schema
from recollect.history.extent import Extent
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import HistoryWriter


def looked_at_anew(snapshot: Snapshot) -> tuple[float, ...]:
    left = np.delete(snapshot.column("known_at"), snapshot.erased)
    return (left.min(), left.max()) if len(left) else ()


@given(steps=st.lists(st.tuples(st.sampled_from(["append", "correct", "erase", "compact"]), st.integers(-50, 50))))
@settings(max_examples=30, deadline=None)
def test_the_extent_of_a_history_that_changes_is_that_of_all_its_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    path: Path = tmp_path_factory.mktemp("extent") / "history"
    extent = Extent()
    ids: list[str] = []
    with HistoryWriter.create(path, Schema(Key(1), time="number"), classes=["no", "yes"]) as writer:
        reader = History.open(path)
        for number, (step, value) in enumerate(steps):
            if step == "append":
                ids.append(f"item-{number}")
                moments = np.array([float(value)])
                item = {"id": ids[-1:], "time": moments, "known_at": moments, "label": ["no"]}
                writer.append({**item, "key": np.zeros((1, 1), np.float32)})
            elif step == "compact":
                writer.compact()
            elif ids and step == "correct":
                writer.correct(ids[value % len(ids)], "yes" if number % 2 else "no", 100.0 + number)
            elif ids and step == "erase":
                writer.erase(ids.pop(value % len(ids)))
            snapshot = reader.refresh()
            assert extent.of(snapshot) == looked_at_anew(snapshot)
