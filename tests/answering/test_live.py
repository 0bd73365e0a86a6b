"""A model over a growing history answers as if it had been asked offline: same bits, whenever it looked."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from recollect.answering.heads import NEIGHBOURS, POOLED, within
from recollect.answering.live import Answers, Live, TrainedOn, prior
from recollect.history.key_table import Array, KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.model.neighbours import nearest, vote
from recollect.records import Clock
from tests.evaluation.test_replay import CLASSES, MODEL, rows


@pytest.fixture(autouse=True)
def regressions_of_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these short histories have some, made anew every other item."""
    monkeypatch.setattr("recollect.answering.heads.NEWEST", (16, 32))
    monkeypatch.setattr("recollect.answering.regrown.LEAST_ROWS", 3)
    monkeypatch.setattr("recollect.answering.regrown.ROUNDS", 2)


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


class Unordered(Growing):
    """As histories on disk are."""

    def __post_init__(self) -> None:
        pass


def history(
    count: int, columns: tuple[torch.Tensor, ...], gone: tuple[int, ...] = (), kind: type[Growing] = Growing
) -> Growing:
    features, labels, times, known_at = (column[:count] for column in columns)
    return kind({"x": features}, features, labels, times, known_at, gone=gone)


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
    columns = at_once(90, 1)  # more than a tile
    offline = fresh(history(90, columns)).answer_items(torch.arange(5, 90))
    live = fresh(history(5, columns))
    for row in range(5, 90):
        live.follow(history(row, columns))
        answer = live.answer({"x": columns[0][row : row + 1]}, columns[0][row : row + 1], columns[2][row : row + 1])
        assert torch.equal(answer.log_probs[0], offline.log_probs[row - 5])
        assert torch.equal(answer.weights[0], offline.weights[row - 5])


@pytest.mark.parametrize("block", [4, 16])
def test_blocks_of_weights_don_t_depend_on_when_they_were_made(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.answering.live.BLOCK", block)
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


def test_a_record_taken_over_gives_the_same_bits() -> None:
    columns = at_once(70, 5)
    first = fresh(history(60, columns))
    as_of = columns[2][-1:] + 1
    first.catch_up(as_of)
    record = first.record()
    assert sorted(record["rows"].tolist()) == list(range(5, 60))
    second = fresh(history(70, columns))
    second.restore(record, 60)
    again = fresh(history(70, columns))
    asked = ({"x": columns[0][:3]}, columns[0][:3], as_of.repeat(3))
    one, other = second.answer(*asked), again.answer(*asked)
    assert torch.equal(one.log_probs, other.log_probs)
    assert torch.equal(one.weights, other.weights)
    # What it took over counts: had it been something else, so would the answer be.
    wrong = fresh(history(70, columns))
    wrong.restore({**record, "losses": record["losses"].flip(1)}, 60)
    assert not torch.equal(wrong.answer(*asked).weights, other.weights)


def test_an_answer_need_not_wait_for_all_to_be_scored() -> None:
    columns = at_once(60, 6)
    as_of = columns[2][-1:] + 1
    asked = ({"x": columns[0][:2]}, columns[0][:2], as_of.repeat(2))
    patient, hurried = fresh(history(60, columns)), fresh(history(60, columns))
    answer = hurried.answer(*asked, most=20)
    assert hurried.unscored == 35
    # The heads say the same, but for the pools that are fitted to what was scored; they are weighed by twenty items.
    assert torch.equal(answer.heads[:, : POOLED + 1], patient.answer(*asked).heads[:, : POOLED + 1])
    assert not torch.equal(answer.heads[:, POOLED + 1 :], patient.answer(*asked).heads[:, POOLED + 1 :])
    early = patient.answer(*asked[:2], columns[2][25:26].repeat(2))
    assert torch.equal(
        patient.mix(early.said, columns[2][25:26].repeat(2), nearby=False)[1], early_weights(hurried, as_of)
    )
    # Nothing of that stays once the others are scored.
    while hurried.catch_up(as_of, most=9):
        pass
    assert torch.equal(hurried.answer(*asked).log_probs, patient.answer(*asked).log_probs)


def early_weights(live: Live, as_of: torch.Tensor) -> torch.Tensor:
    live.catch_up(as_of, most=0)
    inputs = live.lookup.inputs_at(torch.tensor([10, 11]))
    said = live.heads.repooled(live.heads.answers(inputs), inputs.visible)
    return live.mix(said, as_of.repeat(2), nearby=False)[1]


def test_an_old_moment_asks_for_nothing_newer() -> None:
    columns = at_once(60, 7)
    live = fresh(history(60, columns))
    old = columns[2][20:21]
    answer = live.answer({"x": columns[0][:1]}, columns[0][:1], old)
    assert sorted(live.record()["rows"].tolist()) == list(range(5, 20))
    live.catch_up(columns[2][-1:] + 1)
    assert torch.equal(live.answer({"x": columns[0][:1]}, columns[0][:1], old).log_probs, answer.log_probs)


@pytest.mark.parametrize("far", [12, 50])
def test_those_who_vote_are_the_nearest_whether_or_not_some_were_trained_on(
    far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none was, they are taken from those who correct."""
    monkeypatch.setattr("recollect.answering.heads.LONG", Window(items=far))
    columns = at_once(60, 3)
    live = fresh(history(60, columns))
    asked = torch.arange(20, 60)
    inputs = live.lookup.inputs_at(asked)
    near, closeness = nearest(inputs.own_keys, inputs.keys, within(inputs.visible, Window(items=far)), NEIGHBOURS)
    expected = vote(live.lookup.view.at("label", near), closeness, CLASSES)
    torch.testing.assert_close(live.answer_items(asked).head("vote"), expected)


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_came_late_counts_as_if_it_had_been_there(taken_over: bool) -> None:
    """Items that would have seen it are scored again, also those of a record that is older than it."""
    features, labels, times, known_at = (column.clone() for column in at_once(70, 7))
    times[60:], known_at[60:] = times[30:40] + 0.1, known_at[30:40] + 0.1  # of these ten nothing is known at first
    columns = (features, labels, times, known_at)
    as_of = times[59:60] + 1
    live = fresh(history(60, columns, kind=Unordered))
    live.catch_up(as_of)
    if taken_over:
        record, live = live.record(), fresh(history(70, columns, kind=Unordered))
        live.restore(record, 60)
    else:
        live.follow(history(70, columns, kind=Unordered))
    again = fresh(history(70, columns, kind=Unordered))
    found, expected = ({}, {})
    for each, losses in ((live, found), (again, expected)):
        each.catch_up(as_of)
        record = each.record()
        losses |= dict(zip(record["rows"].tolist(), record["losses"].tolist(), strict=True))
    assert found == expected
    assert len(found) == 65


@pytest.fixture
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of a short history the beginning is out of reach."""
    for name, value in {
        "live.BLOCK": 4,
        "live.LONG_ITEMS": 8,
        "live.POOLS_REACH": 9,
        "heads.LONG": Window(items=8),
        "heads.RECENT": Window(items=4),
        "heads.NEWEST": (8, 8),
    }.items():
        monkeypatch.setattr(f"recollect.answering.{name}", value)


def same(one: Answers, other: Answers) -> bool:
    return torch.equal(one.heads, other.heads) and torch.equal(one.weights, other.weights)


@pytest.mark.usefixtures("short_reach")
def test_labels_that_come_later_than_anything_reaches_back_are_answered_alike_after_a_start() -> None:
    """What the items that count had seen when they happened lies far before them."""
    features, labels, times, _ = at_once(160, 8)
    columns = (features, labels, times, times + 10.0)  # forty items late
    replayed = fresh(history(160, columns))
    replayed.answer_items(torch.arange(5, 160))
    started = fresh(history(160, columns))
    asked = ({"x": features[:3]}, features[:3], times[-1:].repeat(3) + 10.5)
    expected = replayed.answer(*asked)
    assert same(started.answer(*asked), expected)
    assert len(started.record()["rows"]) < 80  # it went back no farther than it had to
    again = fresh(history(160, columns))
    again.restore(started.record(), 160)
    assert same(again.answer(*asked, most=0), expected)  # all of that is in the record
    assert again.unscored == 0


@pytest.mark.usefixtures("short_reach")
def test_a_late_item_after_an_old_moment_is_judged_when_all_is_told_that_it_follows_from() -> None:
    features, labels, times, known_at = (column.clone() for column in at_once(160, 8))
    times[159] = known_at[159] = times[120] + 0.1
    columns = (features, labels, times, known_at)

    def asked_at(live: Live, row: int) -> Answers:
        return live.answer({"x": features[:3]}, features[:3], times[row : row + 1].repeat(3) + 0.05)

    def started() -> Live:
        live = fresh(history(150, columns, kind=Unordered))
        live.follow(history(160, columns, kind=Unordered))
        assert len(live.lookup.view.tail) == 1
        return live

    live = started()
    asked_at(live, 40)
    assert same(asked_at(live, 125), asked_at(started(), 125))


@pytest.mark.usefixtures("short_reach")
def test_weights_of_someone_in_a_hurry_are_not_kept() -> None:
    features, labels, times, known_at = at_once(160, 8)
    columns = (features, labels, times, known_at)
    for row in range(138, 154, 3):
        asked = ({"x": features[:3]}, features[:3])
        live = fresh(history(160, columns))
        live.answer(*asked, times[-1:].repeat(3) + 5.0, most=0)
        moment = times[row : row + 1].repeat(3)
        assert same(live.answer(*asked, moment), fresh(history(160, columns)).answer(*asked, moment))


@pytest.mark.usefixtures("short_reach")
@pytest.mark.parametrize("erased", [False, True])
def test_where_there_is_nothing_to_fit_a_pool_to_a_start_and_a_replay_agree(erased: bool) -> None:
    features, labels, times, known_at = (column.clone() for column in at_once(160, 8))
    if not erased:
        labels[138:152] = CLASSES
    gone = tuple(range(138, 152)) if erased else ()
    source = history(160, (features, labels, times, known_at), gone)
    replayed, started = fresh(source), fresh(source)
    replayed.answer_items(torch.tensor([row for row in range(5, 160) if row not in gone]))
    asked = ({"x": features[:3]}, features[:3], times[152:153].repeat(3))
    assert same(started.answer(*asked), replayed.answer(*asked))


@pytest.mark.usefixtures("short_reach")
def test_items_that_are_only_to_be_told_don_t_take_the_weights_away() -> None:
    features, labels, times, _ = at_once(160, 8)
    columns = (features, labels, times, times + 10.0)
    now = columns[3][-1:].repeat(3) + 0.1
    first = fresh(history(159, columns))
    first.catch_up(now)
    record = first.record()
    far = record["told_rows"] >= 130  # as of a record that did not go back far enough
    record["told_rows"], record["told"] = record["told_rows"][far], record["told"][far]
    live = fresh(history(160, columns))
    live.restore(record, 159)
    hurried = live.answer({"x": features[:3]}, features[:3], now, most=0)
    assert live.unscored > 1
    assert not torch.equal(live.mix(hurried.said, now, nearby=False)[1], prior().expand(3, -1))
    # Nor the pools of items that heads were asked of: the last of these stands in.
    assert not torch.equal(hurried.head("repooled"), hurried.head("pooled"))


def test_what_heads_said_is_not_kept_where_no_pool_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.answering.pools.MOST_CLASSES", CLASSES - 1)
    live = fresh(history(60, at_once(60, 6)))
    answers = live.answer_items(torch.arange(5, 60))
    assert live.record()["told"].numel() == 0
    torch.testing.assert_close(answers.head("repooled"), answers.head("pooled"))


def test_a_correction_of_the_very_moment_of_the_newest_item_is_in_the_next_fit() -> None:
    @dataclass(frozen=True)
    class Corrected(Unordered):
        corrected: tuple[tuple[int, float], ...] = ()

        @property
        def superseded(self) -> tuple[Array, Array, Array]:
            rows = np.array([row for row, _ in self.corrected], dtype=np.int64)
            return rows, np.array([until for _, until in self.corrected]), np.zeros(len(rows), np.int64)

    features, labels, times, known_at = (column.clone() for column in at_once(70, 8))
    features[69], labels[69], times[69] = features[66], (labels[66] + 1) % CLASSES, times[66]
    known_at[69] = known_at[68]

    def past(count: int, *corrected: tuple[int, float]) -> Corrected:
        kept = (features[:count], labels[:count], times[:count], known_at[:count])
        return Corrected({"x": kept[0]}, *kept, corrected=corrected)

    asked = ({"x": features[:3]}, features[:3], (known_at[68:69] + 1).repeat(3))
    live = fresh(past(69))
    live.answer(*asked)
    after = past(70, (66, known_at[68].item()))
    live.follow(after)
    assert torch.equal(live.answer(*asked).heads, fresh(after).answer(*asked).heads)
