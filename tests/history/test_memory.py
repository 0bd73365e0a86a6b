"""A history in memory, as the key table reads it."""

import pytest
import torch

from recollect.errors import SettingError
from recollect.history.key_table import Source
from recollect.history.memory import MemoryHistory
from tests.tiny import make_history


def history(times: list[float], known_at: list[float]) -> MemoryHistory:
    count = len(times)
    columns = torch.zeros(count, 2), torch.zeros(count, dtype=torch.long), torch.tensor(times), torch.tensor(known_at)
    return MemoryHistory({}, *columns)


def test_columns_and_features_by_row() -> None:
    items = make_history()
    assert isinstance(items, Source)
    assert (items.column("label", 3, 5) == items.labels[3:5].numpy()).all()
    rows = torch.tensor([[4, 4], [0, 59]])
    assert torch.equal(items.fetch(rows)["text"], items.features["text"][rows])
    assert list(items.fetch(rows, ["shop"])) == ["shop"]
    assert items.fetch(rows, []) == {}


def test_a_label_known_before_its_item_happened_is_refused() -> None:
    with pytest.raises(SettingError, match=r"item 1 has known_at 1\.5 before its time 2\.0: a label can't be known"):
        history([1.0, 2.0, 3.0], [1.0, 1.5, 3.0])


def test_items_out_of_order_are_refused() -> None:
    with pytest.raises(SettingError, match=r"item 1 has 1\.0 after 2\.0: sort them"):
        history([1.0, 1.0], [2.0, 1.0])
