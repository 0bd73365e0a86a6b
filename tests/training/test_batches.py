"""Batches show what they should; what an input may not see changes no bit of what training computes."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.config import Dropouts, RehearsalMix, StepSettings
from recollect.data.synthetic import Episodes, NeedleTask, RotatingTask
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.inputs import Lookup
from recollect.records import Clock
from recollect.retrieval.keys import OwnKeys, SharedKeys
from recollect.training.batches import Batch, BatchSource, episode_batch, known_before
from recollect.training.step import Moment, Objective
from tests.tiny import CLASSES, KEY_DIM, history_of, make_history, make_objective, make_rows, rows_of, seeded

ROTATING = replace(RotatingTask.draw(seeded(0), dimensions=4, dates=False), history_size=6)


def rotating_episodes(batch: int = 5) -> Episodes:
    return ROTATING.sample(torch.linspace(0.1, 0.5, batch, dtype=torch.float64), seeded(1))


def some_positions(batch: int, items: int) -> Tensor:
    positions = torch.randint(items, (batch, 2, 3), generator=seeded(2))
    positions[0, 0, 1] = -1
    return positions


@pytest.mark.parametrize("recency", [False, True])
def test_episodes_with_histories_of_their_own(recency: bool) -> None:
    episodes = rotating_episodes()
    batch = episode_batch(episodes, recency=recency)
    assert episodes.labels is not None
    assert episodes.times is not None
    assert isinstance(batch.inputs.keys, OwnKeys)
    assert batch.inputs.keys.width == 4 + recency
    assert batch.inputs.visible.start.tolist() == [0] * 5
    assert batch.inputs.visible.stop.tolist() == [6] * 5
    assert torch.equal(batch.oldest, episodes.times[:, 0])
    positions = some_positions(5, 6)
    fetched = batch.inputs.fetch(batch.inputs.rows, positions)
    assert fetched.labels is not None
    assert fetched.times is not None
    for row, chain, slot in [(0, 1, 2), (3, 0, 0), (4, 1, 1)]:
        at = int(positions[row, chain, slot])
        assert fetched.labels[row, chain, slot] == episodes.labels[row, at]
        assert fetched.times[row, chain, slot] == episodes.times[row, at]
        assert torch.equal(fetched.features["x"][row, chain, slot], episodes.features["x"][row, at])


def test_some_of_the_episodes_fetch_from_their_own_histories() -> None:
    batch = episode_batch(rotating_episodes())
    index = torch.tensor([4, 1])
    taken = batch.inputs.take(index)
    all_labels = batch.inputs.fetch(batch.inputs.rows, torch.full((5, 1, 1), 2)).labels
    some_labels = taken.fetch(taken.rows, torch.full((2, 1, 1), 2)).labels
    assert all_labels is not None
    assert some_labels is not None
    assert torch.equal(some_labels, all_labels[index])


def test_episodes_with_a_shared_pool() -> None:
    episodes = NeedleTask.draw(7, seeded(0), key_dim=4, shared_pool=True).sample(5, seeded(1))
    batch = episode_batch(episodes, recency=True)
    assert isinstance(batch.inputs.keys, SharedKeys)
    assert batch.inputs.keys.width == 4  # without times there is no recency to speak of
    positions = some_positions(5, 7)
    fetched = batch.inputs.fetch(batch.inputs.rows, positions)
    assert (fetched.labels, fetched.times) == (None, None)
    assert torch.equal(fetched.features["x"][3, 0, 0], episodes.features["x"][positions[3, 0, 0]])
    assert batch.needle is not None
    assert torch.equal(batch.oldest, batch.inputs.as_of)


def test_an_empty_history_has_stand_ins_for_empty_slots() -> None:
    empty = episode_batch(replace(ROTATING, history_size=0).sample(torch.ones(5, dtype=torch.float64), seeded(1)))
    nothing = torch.full((5, 1, 3), -1)
    fetched = empty.inputs.fetch(empty.inputs.rows, nothing)
    assert fetched.features["x"].shape == (5, 1, 3, 4)
    history = make_history()
    history = MemoryHistory(
        {name: value[:0] for name, value in history.features.items()},
        *(values[:0] for values in (history.keys, history.labels, history.times, history.known_at)),
    )
    fetched = rows_of(history).lookup.fetch(torch.arange(5), nothing)
    assert fetched.features["shop"].shape == (5, 1, 3)
    assert fetched.labels is not None
    assert fetched.labels.dtype == torch.int64


def test_rows_are_inputs_as_of_their_own_time() -> None:
    rows = make_rows()
    history, index = history_of(rows), torch.tensor([3, 50, 3])
    batch = rows.rows(index)
    assert torch.equal(batch.targets, history.labels[index])
    assert torch.equal(batch.inputs.as_of, history.times[index])
    assert torch.equal(batch.inputs.own_keys, history.keys[index])
    assert torch.equal(batch.inputs.features["shop"], history.features["shop"][index])


@pytest.mark.parametrize("window", [Window(), Window(items=4), Window(time=3.0)])
def test_no_row_sees_an_item_known_at_its_time_or_later(window: Window) -> None:
    rows = rows_of(make_history(), window=window)
    batch = rows.rows(torch.arange(60))
    history = history_of(rows)
    known_at = history.known_at
    for row, (start, stop) in enumerate(
        zip(batch.inputs.visible.start.tolist(), batch.inputs.visible.stop.tolist(), strict=True)
    ):
        as_of = history.times[row]
        assert (known_at[start:stop] < as_of).all()
        assert not start <= row < stop
        if window == Window():
            assert (known_at[stop:] >= as_of).all()
            assert start == 0
        if start < stop:
            assert batch.oldest[row] == torch.minimum(history.times[start], as_of)


def test_batches_are_drawn_from_the_rows_they_are_given() -> None:
    rows = make_rows().between(10, 14)
    assert isinstance(rows, BatchSource)
    batch = rows.batch(200, seeded(0))
    given = {tuple(key) for key in history_of(rows).keys[10:14].tolist()}
    assert {tuple(key) for key in batch.inputs.own_keys.tolist()} == given
    assert torch.equal(rows.batch(200, seeded(0)).inputs.own_keys, batch.inputs.own_keys)


def test_recency_is_measured_from_an_origin() -> None:
    times = 1.7e9 + torch.arange(60, dtype=torch.float64) / 4
    late = replace(make_history(), times=times, known_at=times)
    keys = Lookup(KeyTable(Clock(origin=1.7e9, unit=2.0)).follow(late)).keys
    assert torch.equal(keys.recency, torch.arange(60) / 8)
    assert make_rows(recency=False).rows(torch.tensor([59])).inputs.keys.width == KEY_DIM


def test_a_label_trains_if_it_was_known_before_the_cutoff() -> None:
    history = make_history()
    positions = known_before(KeyTable().follow(history), 20.0)
    assert torch.equal(positions, (history.known_at < 20.0).nonzero().squeeze(1))


# Leaks. Items that no input of a batch may see are changed, removed and added at random.


@dataclass(frozen=True)
class Edit:
    """What happens to the hidden items: some changed into nonsense, some removed, some added."""

    seed: int
    change: float
    remove: float
    add: int

    def apply(self, history: MemoryHistory, keep: Tensor, moment: float) -> tuple[MemoryHistory, Tensor]:
        """The history with other items known at `moment` or later, and where the rows to `keep` have gone."""
        generator = seeded(self.seed)
        size = history.labels.shape[0]
        hidden = history.known_at >= moment
        hidden[keep] = False
        changed = hidden & (torch.rand(size, generator=generator) < self.change)
        stays = ~(hidden & (torch.rand(size, generator=generator) < self.remove))
        times = torch.cat([history.times[stays], torch.full((self.add,), moment, dtype=torch.float64)])
        late = moment + torch.randint(9, (self.add,), generator=generator)
        known_at = torch.cat([history.known_at[stays], late])
        order = known_at.argsort(stable=True)
        nonsense = torch.cat([changed[stays], torch.ones(self.add, dtype=torch.bool)])[order]

        def edited(values: Tensor, value: float) -> Tensor:
            added = values.new_zeros(self.add, *values.shape[1:])
            values = torch.cat([values[stays], added])[order]
            return values.masked_fill(nonsense.view(-1, *[1] * (values.ndim - 1)), value)

        features = {
            "text": edited(history.features["text"], torch.nan),
            "amount": edited(history.features["amount"], torch.inf),
            "shop": edited(history.features["shop"], 10**9),
        }
        rows = torch.zeros(size + self.add, dtype=torch.long)
        rows[torch.cat([stays.nonzero().squeeze(1), torch.arange(size, size + self.add)])[order]] = torch.arange(
            len(order)
        )
        return MemoryHistory(
            features, edited(history.keys, torch.nan), edited(history.labels, 10**6), times[order], known_at[order]
        ), rows[keep]


edits = st.builds(
    Edit, st.integers(0, 2**32), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 30)
)

EVERYTHING_ON = StepSettings(
    samples=2,
    dropouts=Dropouts(0.3, 0.2, 0.1),
    rehearsal=RehearsalMix(0.8),
    diversity_weight=0.1,
    similarity_weight=0.1,
)
OBJECTIVES = {
    "leave_one_out": make_objective(EVERYTHING_ON),
    "multi_sample": make_objective(replace(EVERYTHING_ON, estimator="multi_sample"), "mlp"),
    "greedy_baseline": make_objective(replace(EVERYTHING_ON, estimator="greedy_baseline"), "perceiver"),
    "label_marginal": make_objective(
        replace(EVERYTHING_ON, estimator="label_marginal", rehearsal=RehearsalMix()), retrieve="labels", ages=False
    ),
}


def computed(objective: Objective, batch: Batch) -> list[Tensor]:
    """Everything a step computes: its result, what validation says, and the gradient."""
    objective.zero_grad()
    result = objective(lambda: (batch, Moment(0.5, entropy_bonus=0.01)), seeded(7))
    result.loss.backward()
    validated = [objective.validate(batch, seeded(8), rehearsed=rehearsed) for rehearsed in (False, True)]
    gradients = [p.grad.clone() for p in objective.parameters() if p.grad is not None]
    return [*(value.detach() for value in result), *validated, *gradients]


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=8)
@given(edit=edits, rows=st.lists(st.integers(0, 59), min_size=1, max_size=3))
def test_the_future_changes_no_bit_of_a_step(name: str, edit: Edit, rows: list[int]) -> None:
    source, index = make_rows(), torch.tensor(rows)
    # What the last of them may not see, none may.
    history = history_of(source)
    edited, moved = edit.apply(history, index, float(history.times[index].max()))
    before = computed(OBJECTIVES[name], source.rows(index))
    after = computed(OBJECTIVES[name], rows_of(edited).rows(moved))
    assert all(value.isfinite().all() for value in before)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("add", [20, 600])
def test_a_history_that_grows_into_other_blocks_changes_a_step_by_rounding_at_most(name: str, add: int) -> None:
    source, index = make_rows(250), torch.tensor([100, 60, 101, 99])
    history = history_of(source)
    edited, moved = Edit(1, 0.5, 0.0, add).apply(history, index, float(history.times[index].max()))
    before = computed(OBJECTIVES[name], source.rows(index))
    after = computed(OBJECTIVES[name], rows_of(edited).rows(moved))
    torch.testing.assert_close(after, before)


def test_edits_really_edit() -> None:
    history = make_history()
    edited, moved = Edit(0, 0.5, 0.5, 10).apply(history, torch.tensor([20]), 5.0)
    assert torch.equal(edited.keys[moved], history.keys[20:21])
    assert edited.keys.isnan().any()
    assert len(edited.labels) != len(history.labels)
    assert (edited.known_at[1:] >= edited.known_at[:-1]).all()
    # And an item that can be seen does change a step.
    index, source = torch.tensor([59]), make_rows()
    seen = replace(history, labels=(history.labels + (torch.arange(60) < 40)) % CLASSES)
    before = computed(OBJECTIVES["leave_one_out"], source.rows(index))
    after = computed(OBJECTIVES["leave_one_out"], rows_of(seen).rows(index))
    assert not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
