"""Which regression holds when: it follows from the items before a round number of them, and from no others."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.answering import newest, regressions
from recollect.answering.newest import Untrained
from recollect.answering.regressions import Regressions
from recollect.history.key_table import Array, KeyTable, TableView
from recollect.history.memory import MemoryHistory
from recollect.model.regression import regress
from recollect.records import TERMS, Clock, Visible

WINDOW, FIRST, CLASSES = 16, 3, 2  # made anew every two items
PLAIN = torch.log_softmax(torch.randn(40, CLASSES, generator=torch.Generator().manual_seed(5)), dim=1)


@dataclass(frozen=True)
class Past(MemoryHistory):
    """Items of which some are erased, and some corrected from a moment on."""

    gone: tuple[int, ...] = ()
    corrected: tuple[tuple[int, float], ...] = ()

    @property
    def erased(self) -> Array:
        return np.array(self.gone, dtype=np.int64)

    @property
    def superseded(self) -> tuple[Array, Array, Array]:
        rows = np.array([row for row, _ in self.corrected], dtype=np.int64)
        return rows, np.array([until for _, until in self.corrected]), np.zeros(len(rows), np.int64)


def past(count: int = 40, seed: int = 0) -> Past:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(40, 4, generator=generator)[:count]
    labels = torch.randint(0, CLASSES, (40,), generator=generator)[:count]
    times = torch.arange(count, dtype=torch.float64)
    return Past({"x": keys}, keys, labels, times, times)


def view_of(source: Past) -> TableView:
    return KeyTable(Clock()).follow(source)


def asked(source: Past, stop: int, kept: Regressions | None = None) -> Tensor:
    """What one and the same input is answered that sees so many items."""
    view = view_of(source)
    keys, plain = torch.ones(32, 4), PLAIN[:1].expand(32, -1)
    seen = Visible(torch.zeros(32, dtype=torch.long), torch.full((32,), stop))
    said, classes = (kept or Regressions()).answers(keys, plain, seen, WINDOW, Untrained(view, FIRST), PLAIN)
    assert classes.tolist() == [said.shape[1]] * 32
    return said[0]


def by_hand(source: Past, positions: Tensor, classes: int = CLASSES) -> Tensor:
    fit = regress(source.keys[positions], PLAIN[positions], source.labels[positions], classes)
    return fit(torch.ones(32, 4), PLAIN[:1].expand(32, -1))[0]


def test_it_looks_back_from_the_last_round_number() -> None:
    source = past()
    assert torch.equal(asked(source, FIRST + 1), PLAIN[0])  # nothing yet
    assert torch.equal(asked(source, FIRST + 2), by_hand(source, torch.arange(3, 5)))
    assert torch.equal(asked(source, 30), by_hand(source, torch.arange(13, 29)))
    assert torch.equal(asked(source, 30), asked(source, 29))


@pytest.mark.parametrize("stop", [6, 20, 33])
def test_what_comes_later_changes_nothing(stop: int) -> None:
    source, other = past(), past(seed=1)
    mixed = {
        name: torch.cat([getattr(source, name)[:stop], getattr(other, name)[stop:]]) for name in ("keys", "labels")
    }
    changed = replace(source, **mixed)
    assert torch.equal(asked(changed, stop), asked(source, stop))
    assert torch.equal(asked(past(stop), stop), asked(source, stop))


def test_each_input_of_a_tile_has_its_own_and_the_same_bits_as_alone() -> None:
    source = past()
    keys, plain, untrained = source.keys[:32], PLAIN[:32], Untrained(view_of(source), FIRST)
    start, stops = torch.zeros(32, dtype=torch.long), torch.arange(2, 34)
    together, _ = Regressions().answers(keys, plain, Visible(start, stops), WINDOW, untrained, PLAIN)
    for row in (0, 5, 31):
        alone = Visible(start, stops[row].expand(32))
        assert torch.equal(Regressions().answers(keys, plain, alone, WINDOW, untrained, PLAIN)[0][row], together[row])


def test_erased_items_don_t_count_nor_do_corrected_ones_once_they_are() -> None:
    source = past()
    positions = torch.arange(13, 29)
    erased = replace(source, gone=(15, 20))
    assert torch.equal(asked(erased, 30), by_hand(source, positions[~torch.isin(positions, torch.tensor([15, 20]))]))
    corrected = replace(source, corrected=((15, 27.0), (20, 28.5)))
    assert torch.equal(asked(corrected, 30), by_hand(source, positions[positions != 15]))
    assert torch.equal(asked(corrected, 28), asked(source, 28))
    assert torch.equal(asked(replace(source, gone=tuple(range(13, 29))), 30), PLAIN[0])


def with_new_class() -> Past:
    source = past()
    labels = source.labels.clone()
    labels[20] = CLASSES
    return replace(source, labels=labels)


def test_labels_that_training_did_not_know_are_learned_of_once_they_are_known() -> None:
    source, positions = with_new_class(), torch.arange(13, 29)
    assert torch.equal(asked(source, 30), by_hand(source, positions, CLASSES + 1))
    assert len(asked(source, 20)) == CLASSES
    untrained = Untrained(view_of(source), FIRST)
    start, stops = torch.zeros(32, dtype=torch.long), torch.arange(2, 34)
    said, classes = Regressions().answers(source.keys[:32], PLAIN[:32], Visible(start, stops), WINDOW, untrained, PLAIN)
    assert classes.tolist() == [CLASSES + (stop > 20) for stop in stops]
    assert torch.equal(said[:, CLASSES] == -torch.inf, classes == CLASSES)


def test_too_many_new_classes_are_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions, "MOST_CLASSES", CLASSES)
    source, positions = with_new_class(), torch.arange(13, 29)
    assert torch.equal(asked(source, 30), by_hand(source, positions[positions != 20]))


def test_too_many_classes_leave_the_plain_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions, "MOST_CLASSES", 1)
    assert torch.equal(asked(past(), 30), PLAIN[0])


def test_fits_are_made_once_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "KEPT", 3)
    made = []

    def counted(keys: Tensor, plain: Tensor, labels: Tensor, classes: int, terms: Tensor | None) -> object:
        made.append(len(labels))
        return regress(keys, plain, labels, classes, terms)

    monkeypatch.setattr(regressions, "regress", counted)
    kept, source = Regressions(), past()
    first = asked(source, 10, kept)
    asked(source, 11, kept)
    assert torch.equal(asked(source, 10, kept), first)
    assert len(made) == 2
    for stop in (20, 24, 28):
        asked(source, stop, kept)
    assert torch.equal(asked(source, 10, kept), first)
    assert len(made) == 6
    kept.forget()
    asked(source, 10, kept)
    assert len(made) == 7


def with_words(source: Past, seed: int = 0) -> Past:
    """Items with two words of six each."""
    words = torch.randint(0, 6, (40, 2), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    return replace(source, features={TERMS: words[: source.num_rows]})


def asked_with_words(source: Past, stop: int) -> Tensor:
    view, seen = view_of(source), Visible(torch.zeros(32, dtype=torch.long), torch.full((32,), stop))
    keys, plain, terms = torch.ones(32, 4), PLAIN[:1].expand(32, -1), torch.tensor([[1, 4]]).expand(32, -1)
    return Regressions().answers(keys, plain, seen, WINDOW, Untrained(view, FIRST), PLAIN, terms)[0][0]


def test_words_of_items_are_read_where_inputs_have_words() -> None:
    source, positions = with_words(past()), torch.arange(13, 29)
    terms = source.features[TERMS][positions]
    fit = regress(source.keys[positions], PLAIN[positions], source.labels[positions], CLASSES, terms)
    assert fit.words is not None
    by_hand = fit(torch.ones(32, 4), PLAIN[:1].expand(32, -1), torch.tensor([[1, 4]]).expand(32, -1))
    assert torch.equal(asked_with_words(source, 30), by_hand[0])
    assert not torch.equal(asked_with_words(source, 30), asked(source, 30))


@pytest.mark.parametrize("stop", [6, 20, 33])
def test_words_that_come_later_change_nothing(stop: int) -> None:
    source, other = with_words(past()), with_words(past(), seed=1)
    mixed = torch.cat([source.features[TERMS][:stop], other.features[TERMS][stop:]])
    assert torch.equal(asked_with_words(replace(source, features={TERMS: mixed}), stop), asked_with_words(source, stop))


def test_of_many_classes_words_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regressions, "MOST_CLASSES_OF_TERMS", 1)
    source = with_words(past())
    assert torch.equal(asked_with_words(source, 30), asked(source, 30))
