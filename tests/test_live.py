"""A model over a growing history answers as if it had been asked offline: same bits, whenever it looked."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from recollect.history.key_table import Array, KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.live import Live, TrainedOn
from recollect.records import Clock
from tests.evaluation.test_replay import CLASSES, MODEL, rows


@dataclass(frozen=True)
class Growing(MemoryHistory):
    """The first items of a history, some of them erased."""

    gone: tuple[int, ...] = ()

    @property
    def erased(self) -> Array:
        return np.array(self.gone, dtype=np.int64)

    @property
    def superseded(self) -> tuple[Array, Array, Array]:
        none = np.empty(0, dtype=np.int64)
        return none, self.known_at[:0].numpy(), none


def history(count: int, columns: tuple[torch.Tensor, ...], gone: tuple[int, ...] = ()) -> Growing:
    features, labels, times, known_at = (column[:count] for column in columns)
    return Growing({"x": features}, features, labels, times, known_at, gone=gone)


def fresh(source: MemoryHistory) -> Live:
    live = Live(
        MODEL,
        KeyTable(Clock(0.0, 10.0)),
        window=Window(items=40),
        trained_on=TrainedOn(-1.0, 5),
        num_classes=CLASSES,
    )
    live.follow(source)
    return live


def at_once(count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Labels known at once, each at a moment of its own."""
    features, labels, _, _ = rows(count, seed)
    times = torch.arange(count, dtype=torch.float64) / 4
    return features, labels, times, times


def test_following_item_by_item_gives_the_bits_of_a_replay() -> None:
    columns = at_once(60, 1)
    offline = fresh(history(60, columns)).answer_items(torch.arange(5, 60))
    live = fresh(history(5, columns))
    for row in range(5, 60):
        live.follow(history(row, columns))
        answer = live.answer({"x": columns[0][row : row + 1]}, columns[0][row : row + 1], columns[2][row : row + 1])
        assert torch.equal(answer.log_probs[0], offline.log_probs[row - 5])
        assert torch.equal(answer.weights[0], offline.weights[row - 5])


@pytest.mark.parametrize("block", [4, 16])
def test_blocks_of_weights_don_t_depend_on_when_they_were_made(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.live.BLOCK", block)
    columns = at_once(50, 2)
    offline = fresh(history(50, columns)).answer_items(torch.arange(5, 50))
    live = fresh(history(20, columns))
    live.catch_up(columns[2][19:20])
    for row in (20, 33, 34, 49):
        live.follow(history(row, columns))
        answer = live.answer({"x": columns[0][row : row + 1]}, columns[0][row : row + 1], columns[2][row : row + 1])
        assert torch.equal(answer.weights[0], offline.weights[row - 5])


def test_a_class_first_met_later_can_be_answered() -> None:
    features, labels, times, known_at = at_once(60, 3)
    labels = labels.clone()
    labels[30:] = CLASSES
    live = fresh(history(60, (features, labels, times, known_at)))
    answers = live.answer_items(torch.arange(5, 60))
    assert answers.log_probs.shape[1] == CLASSES + 1
    torch.testing.assert_close(answers.log_probs.exp().sum(1), torch.ones(55))
    assert int(answers.log_probs[-1].argmax()) == CLASSES
    assert bool((answers.log_probs[:25, CLASSES] == -torch.inf).all())
    for row in (10, 24, 25, 54):  # beside others who met it, and alone
        alone = live.answer_items(torch.tensor([5 + row])).log_probs[0]
        assert torch.equal(alone, answers.log_probs[row, : len(alone)])


def test_what_was_erased_is_no_precedent_and_its_label_tells_nothing_of_the_heads() -> None:
    columns = at_once(60, 4)
    gone = (20, 44, 58)
    live = fresh(history(59, columns))
    asked = [column[59:60] for column in columns]
    before = live.answer({"x": asked[0]}, asked[0], asked[2])
    assert set(gone) & set(before.precedents[0].tolist())
    live.follow(history(59, columns, gone))
    after = live.answer({"x": asked[0]}, asked[0], asked[2])
    assert not set(gone) & set(after.precedents[0].tolist())
    assert not torch.equal(after.weights, before.weights)


def test_a_history_made_anew_is_read_anew() -> None:
    columns = at_once(40, 5)
    live = fresh(history(40, columns))
    live.answer_items(torch.arange(5, 40))

    @dataclass(frozen=True)
    class Rewritten(Growing):
        @property
        def generation(self) -> int:
            return 1

    changed = (columns[0], (columns[1] + 1) % CLASSES, *columns[2:])
    features, labels, times, known_at = changed
    again = Rewritten({"x": features}, features, labels, times, known_at)
    live.follow(again)
    assert torch.equal(
        live.answer_items(torch.arange(5, 40)).log_probs, fresh(again).answer_items(torch.arange(5, 40)).log_probs
    )


def test_trained_items_are_counted_by_moment_and_place_among_its_ties() -> None:
    known_at = torch.tensor([1.0, 2.0, 2.0, 2.0, 3.0])
    assert TrainedOn(2.0).count(known_at) == 1
    assert TrainedOn(2.0, 2).count(known_at) == 3
    assert TrainedOn(9.0).count(known_at) == 5
    assert replace(TrainedOn(9.0), more=4).count(known_at) == 5
