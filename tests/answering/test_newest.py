"""Which items a fit is made of: those before a round number of them, late ones in their places."""

import torch
from torch import Tensor

from recollect.answering.newest import NewestFits, Untrained
from recollect.history.key_table import KeyTable, TableView
from recollect.history.memory import MemoryHistory
from recollect.records import Clock, Visible

FIRST, WINDOW = 2, 16  # made anew every other item


class Unordered(MemoryHistory):
    """As histories on disk are."""

    def __post_init__(self) -> None:
        pass


def with_late_ones() -> TableView:
    """Twelve items in order, then two that were known before the sixth, and one before all."""
    known_at = torch.tensor([*range(12), 4.5, 4.7, -1.0], dtype=torch.float64)
    keys, labels = torch.zeros(len(known_at), 1), torch.zeros(len(known_at), dtype=torch.long)
    table = KeyTable(Clock())
    columns = (keys, labels, known_at, known_at)
    table.follow(Unordered({"x": keys[:12]}, *(column[:12] for column in columns)))
    view = table.follow(Unordered({"x": keys}, *columns))
    assert len(view.tail) == 3  # else nothing here is late
    return view


def made_of(fits: NewestFits[Tensor], view: TableView, number: int, window: int = WINDOW) -> list[float]:
    """The moments at which the items of a fit became known."""
    found = fits.get(number, window, Untrained(view, FIRST), lambda positions: view.at("known_at", positions))
    return [] if found is None else found.tolist()


def test_late_items_stand_where_they_would_have() -> None:
    view, fits = with_late_ones(), NewestFits[Tensor]()
    assert made_of(fits, view, 0) == []
    assert made_of(fits, view, 1) == [2.0, 3.0]
    assert made_of(fits, view, 3) == [2.0, 3.0, 4.0, 4.5, 4.7, 5.0]  # the one before all was trained on
    assert made_of(fits, view, 6) == [2.0, 3.0, 4.0, 4.5, 4.7, *range(5, 12)]
    assert made_of(fits, view, 10, 8) == [4.0, 4.5, 4.7, *range(5, 10)]  # made anew with every item, eight back


def test_a_moment_has_the_last_fit_whose_items_were_known_before_it() -> None:
    view, fits = with_late_ones(), NewestFits[Tensor]()
    untrained = Untrained(view, FIRST)
    moments = torch.tensor([1.0, 4.0, 4.6, 5.0, 12.0], dtype=torch.float64)
    numbers = fits.numbers(view.visible(moments), WINDOW, untrained)
    known = [sum(1 for each in (2, 3, 4, 4.5, 4.7, *range(5, 12)) if each < moment) for moment in moments.tolist()]
    assert numbers.tolist() == [count // 2 for count in known]
    in_order = Visible(torch.zeros(1, dtype=torch.long), torch.tensor([9]))
    assert fits.numbers(in_order, WINDOW, untrained).tolist() == [3]


def test_what_could_not_be_made_is_tried_again() -> None:
    view, fits, untrained = with_late_ones(), NewestFits[Tensor](), Untrained(with_late_ones(), FIRST)
    assert fits.get(2, WINDOW, untrained, lambda positions: None) is None
    assert made_of(fits, view, 2) == [2.0, 3.0, 4.0, 4.5]
    assert fits.get(2, WINDOW, untrained, lambda positions: None) is not None
    fits.forget()
    assert fits.get(2, WINDOW, untrained, lambda positions: None) is None
