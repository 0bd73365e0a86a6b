"""Trees over the newest items: they follow from the items before a round number of them, and learn what has corners."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.answering import regrown
from recollect.answering.newest import Untrained
from recollect.answering.regrown import Regrown
from recollect.history.key_table import KeyTable, TableView
from recollect.history.memory import MemoryHistory
from recollect.records import Clock, Features, FeatureSpec, Visible

WINDOW, FIRST, CLASSES, ITEMS = 256, 3, 2, 600  # grown anew every 32 items
SPECS = (FeatureSpec("x", "numeric", 2), FeatureSpec("kind", "categorical", 3), FeatureSpec("text", "embedded", 4))
PLAIN = torch.tensor([0.9, 0.1]).log().expand(ITEMS, -1)  # sure of the first class, whatever comes


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrown, "ROUNDS", 12)


def features(count: int = ITEMS) -> Features:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(ITEMS, 2, generator=generator)[:count],
        "kind": torch.randint(0, 4, (ITEMS,), generator=generator, dtype=torch.int16)[:count],  # one is unseen
        "text": torch.randn(ITEMS, 4, generator=generator).half()[:count],
    }


def corners(given: Features) -> Tensor:
    """Of the second class are those in one corner, and of one kind alone those in the other."""
    x, y = given["x"].unbind(1)
    return torch.where(given["kind"] == 1, (x > 0.3) & (y > -0.2), (x < -0.3) & (y < 0.2)).long()


def view_of(labels: Tensor) -> TableView:
    count = len(labels)
    times = torch.arange(count, dtype=torch.float64)
    return KeyTable(Clock()).follow(MemoryHistory(features(count), torch.zeros(count, 1), labels, times, times))


def asked(view: TableView, stop: int, inputs: Features, kept: Regrown | None = None) -> tuple[Tensor, Tensor]:
    """What inputs are answered that see so many items."""
    count = len(inputs["x"])
    seen = Visible(torch.zeros(count, dtype=torch.long), torch.full((count,), stop))
    plain = PLAIN[:1].expand(count, -1)
    return (kept or Regrown()).answers(inputs, SPECS, plain, seen, WINDOW, Untrained(view, FIRST), PLAIN)


def test_corners_are_learned_from_the_newest_labels() -> None:
    given = features()
    labels = corners(given)
    labels[:200] = 1 - labels[:200]  # an older rule, out of the window of who sees 500
    inputs = {name: value[500:] for name, value in given.items()}
    said, classes = asked(view_of(labels[:500]), 500, inputs)
    assert classes.tolist() == [CLASSES] * 100
    torch.testing.assert_close(said.exp().sum(1), torch.ones(100))
    assert (said.argmax(1) == labels[500:]).float().mean() > 0.9


def test_trees_follow_from_the_items_before_a_round_number_of_them() -> None:
    labels = corners(features())
    inputs = {name: value[:8] for name, value in features().items()}
    kept, view = Regrown(), view_of(labels)
    last = FIRST + 9 * (WINDOW // 8)
    expected = asked(view, last, inputs, kept)[0]
    for stop in (last + 1, last + WINDOW // 8 - 1):
        assert torch.equal(asked(view, stop, inputs, kept)[0], expected)
    assert not torch.equal(asked(view, last + WINDOW // 8, inputs, kept)[0], expected)
    others = labels.clone()
    others[last:], others[:FIRST] = 1 - others[last:], 1 - others[:FIRST]
    assert torch.equal(asked(view_of(others), last + 5, inputs)[0], expected)  # nor from those trained on
    others[last - 1] = 1 - others[last - 1]
    assert not torch.equal(asked(view_of(others), last + 5, inputs)[0], expected)


def test_a_row_is_answered_alike_alone_and_in_company() -> None:
    view, inputs = view_of(corners(features())), features(64)
    together = asked(view, 500, inputs)[0]
    for row in (0, 1, 63):
        assert torch.equal(
            asked(view, 500, {name: value[row : row + 1] for name, value in inputs.items()})[0][0], together[row]
        )


def test_classes_first_met_after_training_are_learned() -> None:
    given = features()
    labels = corners(given) + 2 * (given["x"][:, 0] > 1).long()
    inputs = {name: value[500:] for name, value in given.items()}
    said, classes = asked(view_of(labels[:500]), 500, inputs)
    assert classes.tolist() == [4] * 100
    torch.testing.assert_close(said.exp().sum(1), torch.ones(100))
    assert (said.argmax(1) == labels[500:]).float().mean() > 0.85


def test_of_a_class_that_the_window_lacks_the_plain_answer_speaks() -> None:
    labels = corners(features()) * 2
    plain = torch.tensor([0.2, 0.5, 0.3]).log().expand(ITEMS, -1)
    inputs, seen = features(4), Visible(torch.zeros(4, dtype=torch.long), torch.full((4,), 500))
    said, _ = Regrown().answers(inputs, SPECS, plain[:4], seen, WINDOW, Untrained(view_of(labels), FIRST), plain)
    torch.testing.assert_close(said[:, 1].exp(), torch.full((4,), 0.5 / 1.5))


def test_a_new_class_that_the_window_lacks_is_unlikely_and_not_impossible() -> None:
    labels = corners(features()) * 3  # of classes 0 and 3; the plain answer knows 0 and 1
    said, classes = asked(view_of(labels), 500, features(4))
    assert classes.tolist() == [4] * 4
    assert bool((said.exp() > 0).all())
    assert bool((said[:, 2].exp() < 0.01).all())


@pytest.mark.parametrize(("labels", "stop"), [(torch.zeros(ITEMS, dtype=torch.long), 500), (corners(features()), 40)])
def test_with_one_label_or_a_few_items_the_plain_answer_stays(labels: Tensor, stop: int) -> None:
    said, classes = asked(view_of(labels), stop, features(4))
    assert torch.equal(said, PLAIN[:4])
    assert classes.tolist() == [CLASSES] * 4


def test_with_many_classes_the_plain_answer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regrown, "MOST_CLASSES", 1)
    said, _ = asked(view_of(corners(features())), 500, features(4))
    assert torch.equal(said, PLAIN[:4])


def test_what_is_forgotten_is_grown_again_to_the_same_bits() -> None:
    view, inputs = view_of(corners(features())), features(4)
    kept = Regrown()
    expected = asked(view, 500, inputs, kept)[0]
    kept.forget()
    assert torch.equal(asked(replace(view), 500, inputs, kept)[0], expected)
