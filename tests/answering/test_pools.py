"""Pools fitted anew: what they say follows from the items before a round number of them that heads were asked of."""

import pytest
import torch
from torch import Tensor

from recollect.answering import pools
from recollect.answering.item_record import Told
from recollect.answering.newest import Untrained
from recollect.answering.pools import STEPS, Pools
from recollect.history.key_table import KeyTable, TableView
from recollect.history.memory import MemoryHistory
from recollect.model.pool import even, fit_pool, frozen
from recollect.records import Clock, Visible

WINDOW, FIRST, CLASSES, HEADS, ITEMS = 16, 3, 2, 3, 40  # made anew every other item
GENERATOR = torch.Generator().manual_seed(3)
SAID = torch.log_softmax(torch.randn(ITEMS, HEADS, CLASSES, generator=GENERATOR), dim=2)
LABELS = torch.randint(0, CLASSES, (ITEMS,), generator=GENERATOR)
START = torch.tensor([0.6, 0.3, 0.1])


def view_of(labels: Tensor = LABELS) -> TableView:
    keys, times = torch.zeros(len(labels), 1), torch.arange(len(labels), dtype=torch.float64)
    return KeyTable(Clock()).follow(MemoryHistory({"x": keys}, keys, labels, times, times))


def told_of(rows: int = ITEMS) -> Told:
    return Told(SAID.clone(), torch.arange(ITEMS) < rows)


def asked(stops: Tensor, told: Told, labels: Tensor = LABELS, kept: Pools | None = None) -> Tensor:
    """What inputs are answered of whom heads say the same, and that see so many items."""
    seen = Visible(torch.zeros_like(stops), stops)
    said = SAID[:1].expand(len(stops), -1, -1)
    return (kept or Pools()).answers(said, START, seen, WINDOW, Untrained(view_of(labels), FIRST), told)


def by_hand(first: int, stop: int, labels: Tensor = LABELS) -> Tensor:
    items = torch.arange(first, stop)
    items = items[labels[items] < CLASSES]
    return fit_pool(SAID[items], labels[items], START, steps=STEPS, offsets=True)(SAID[:1])[0]


def test_each_input_has_the_pool_of_the_items_it_sees() -> None:
    found = asked(torch.tensor([FIRST + 1, FIRST + 2, 29, 30]), told_of())
    torch.testing.assert_close(found[0], frozen(START, CLASSES)(SAID[:1])[0])  # nothing yet
    torch.testing.assert_close(found[1], by_hand(3, 5))
    torch.testing.assert_close(found[2], by_hand(13, 29))
    assert torch.equal(found[2], found[3])


def test_what_comes_later_changes_nothing() -> None:
    labels, told = LABELS.clone(), told_of()
    labels[20:] = 1 - labels[20:]
    told.log_probs[20:] = told.log_probs[20:].flip(2)
    stops = torch.tensor([8, 20])
    assert torch.equal(asked(stops, told, labels), asked(stops, told_of()))
    assert not torch.equal(asked(stops + 5, told, labels)[1], asked(stops + 5, told_of())[1])


def test_one_whose_items_are_not_all_answered_gives_way_to_the_last_that_is_complete() -> None:
    kept = Pools()
    hurried = asked(torch.tensor([30]), told_of(25), kept=kept)
    assert torch.equal(hurried, asked(torch.tensor([25]), told_of()))
    # Nothing of that stays once they are.
    assert torch.equal(asked(torch.tensor([30]), told_of(), kept=kept), asked(torch.tensor([30]), told_of()))


def test_classes_that_no_training_knew_are_left_aside() -> None:
    labels = LABELS.clone()
    labels[20] = CLASSES
    torch.testing.assert_close(asked(torch.tensor([29]), told_of(), labels)[0], by_hand(13, 29, labels))
    labels[:] = CLASSES
    assert torch.equal(asked(torch.tensor([29]), told_of(), labels), asked(torch.tensor([3]), told_of()))


def test_with_too_many_classes_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST_CLASSES", CLASSES - 1)
    assert torch.equal(asked(torch.tensor([29]), told_of()), frozen(START, CLASSES)(SAID[:1]))


def test_a_head_that_comes_to_be_right_counts_more() -> None:
    """The second head knows the label; the weights that were frozen did not know it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (400,), generator=generator)
    said = torch.randn(400, HEADS, CLASSES, generator=generator)
    said[torch.arange(400), 1, labels] += 3.0
    said = torch.log_softmax(said, dim=2)
    told = Told(said, torch.ones(400, dtype=torch.bool))
    seen = Visible(torch.zeros(400, dtype=torch.long), torch.full((400,), 400))
    found = Pools().answers(said, even(HEADS), seen, 256, Untrained(view_of(labels), 0), told)
    right = labels.unsqueeze(1)
    assert found.gather(1, right).mean() > frozen(even(HEADS), CLASSES)(said).gather(1, right).mean() + 0.05
