"""What the classifier is shown: dropouts, and labels under one rule for target and items."""

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.config import Dropouts, RehearsalMix
from recollect.data.synthetic import NeedleTask, RotatingTask
from recollect.errors import SettingError
from recollect.training.batches import Batch, episode_batch
from recollect.training.showing import Showing, draw_showing
from tests.tiny import RETRIEVED, make_rows, seeded

NO_DROPOUTS, NO_REHEARSAL = Dropouts(), RehearsalMix()
SWAP = RehearsalMix(1.0, merge=0.0, three=0.0, region=0.0, change_point=0.0, novel=0.0)
ROWS = torch.arange(20, 60)


def shared_batch() -> Batch:
    return make_rows(classes=2).rows(ROWS)


def own_batch(size: int = 40) -> Batch:
    task = replace(RotatingTask.draw(seeded(0), dimensions=4, dates=False), history_size=6)
    as_of = 0.1 + 0.4 * torch.rand(size, generator=seeded(1), dtype=torch.float64)
    return episode_batch(task.sample(as_of, seeded(2)), recency=True)


def draw(
    batch: Batch,
    dropouts: Dropouts = NO_DROPOUTS,
    rehearsal: RehearsalMix = NO_REHEARSAL,
    *,
    filled: bool = True,
    features: bool = True,
    ages: bool = True,
) -> Showing:
    slots = torch.full((len(batch.targets), RETRIEVED), filled)
    return draw_showing(batch, slots, dropouts, rehearsal, 2, seeded(3), features=features, ages=ages)


def positions_for(batch: Batch) -> Tensor:
    return torch.arange(2 * RETRIEVED).view(1, 2, RETRIEVED).expand(len(batch.targets), -1, -1)


@pytest.mark.parametrize("batch", [shared_batch(), own_batch()], ids=["shared", "own"])
def test_with_nothing_dropped_or_rehearsed_all_is_shown_as_it_is(batch: Batch) -> None:
    showing = draw(batch)
    items = showing.items(batch, positions_for(batch))
    plain, _ = batch.inputs.show(positions_for(batch), features=True, ages=True)
    assert showing.keep_input.all()
    assert showing.rules is None
    assert torch.equal(showing.targets(batch), batch.targets)
    assert items.filled.all()
    assert items.labels is not None
    assert torch.equal(items.labels, plain.labels)
    assert showing.labels_of_all(batch) is batch.item_labels


def test_empty_slots_stay_empty() -> None:
    batch = shared_batch()
    positions = positions_for(batch).clone()
    positions[:, 1, 2] = -1
    filled = draw(batch).items(batch, positions).filled
    assert torch.equal(filled, positions >= 0)


@pytest.mark.parametrize(("features", "ages"), [(False, True), (True, False), (False, False)])
def test_features_and_ages_are_shown_where_asked_for(features: bool, ages: bool) -> None:
    batch = shared_batch()
    items = draw(batch, features=features, ages=ages).items(batch, positions_for(batch))
    assert bool(items.features) == features
    assert (items.ages is not None) == ages


def test_a_dropped_context_hides_every_slot() -> None:
    batch = shared_batch()
    items = draw(batch, Dropouts(context=1.0)).items(batch, positions_for(batch))
    assert not items.filled.any()


def test_a_dropped_input_is_not_kept() -> None:
    assert not draw(shared_batch(), Dropouts(input=1.0)).keep_input.any()


def test_each_dropout_has_its_rate_and_is_the_same_for_all_chains() -> None:
    batch = own_batch(3000)
    showing = draw(batch, Dropouts(input=0.3, item=0.2, context=0.1))
    filled = showing.items(batch, positions_for(batch)).filled
    assert torch.equal(filled[:, 0], filled[:, 1])
    assert float(showing.keep_input.float().mean()) == pytest.approx(0.7, abs=0.04)
    assert float(filled.float().mean()) == pytest.approx(0.8 * 0.9, abs=0.04)
    assert float(filled.any(2).float().mean()) == pytest.approx(0.9 * (1 - 0.2**3), abs=0.03)


@pytest.mark.parametrize("batch", [shared_batch(), own_batch()], ids=["shared", "own"])
def test_target_and_items_follow_one_rule(batch: Batch) -> None:
    showing = draw(batch, rehearsal=SWAP)
    plain, _ = batch.inputs.show(positions_for(batch), features=True, ages=True)
    items = showing.items(batch, positions_for(batch))
    assert plain.labels is not None
    assert items.labels is not None
    assert torch.equal(showing.targets(batch), 1 - batch.targets)
    assert torch.equal(items.labels, 1 - plain.labels)


def test_regions_and_change_points_hold_for_items_by_their_keys_and_times() -> None:
    batch = own_batch()
    showing = draw(batch, rehearsal=replace(SWAP, region=1.0, change_point=1.0))
    items, rules = showing.items(batch, positions_for(batch)), showing.rules
    _, fetched = batch.inputs.show(positions_for(batch), features=True, ages=True)
    assert items.labels is not None
    assert fetched.labels is not None
    assert fetched.times is not None
    assert rules is not None
    # In this task the key of an item is its features, without the recency coordinate.
    side = (fetched.features["x"] * rules.direction[:, None, None]).sum(-1) > rules.threshold[:, None, None]
    holds = side & (fetched.times >= rules.since[:, None, None])
    assert 0 < int(holds.sum()) < holds.numel()
    assert torch.equal(items.labels, torch.where(holds, 1 - fetched.labels, fetched.labels))


def test_labels_of_the_whole_history_are_those_that_items_are_shown_with() -> None:
    batch = own_batch()
    showing = draw(batch, rehearsal=RehearsalMix(0.8, novel=0.5))
    items = showing.items(batch, positions_for(batch))
    assert items.labels is not None
    assert torch.equal(showing.labels_of_all(batch), items.labels.flatten(1))


@pytest.mark.parametrize(
    ("dropouts", "filled"), [(Dropouts(context=1.0), True), (Dropouts(item=1.0), True), (Dropouts(), False)]
)
def test_nothing_is_rehearsed_where_nothing_is_shown(dropouts: Dropouts, filled: bool) -> None:
    batch = shared_batch()
    assert torch.equal(draw(batch, dropouts, SWAP, filled=filled).targets(batch), batch.targets)


def test_items_without_labels_or_times_are_not_rehearsed() -> None:
    needle = episode_batch(NeedleTask.draw(7, seeded(0), key_dim=4).sample(5, seeded(1)))
    assert draw(needle, rehearsal=SWAP).rules is None
    task = replace(RotatingTask.draw(seeded(0), dimensions=4), history_size=6)
    timeless = replace(task.sample(torch.ones(5, dtype=torch.float64), seeded(1)), times=None)
    batch = episode_batch(timeless)
    showing = draw(batch, rehearsal=SWAP, ages=False)
    assert torch.equal(showing.targets(batch), batch.targets)


def test_relabelling_a_shared_history_for_every_input_is_refused() -> None:
    batch = shared_batch()
    message = 'use estimator "leave_one_out", or set the rehearsal probability to 0'
    with pytest.raises(SettingError, match=re.escape(message)):
        draw(batch, rehearsal=SWAP).labels_of_all(batch)
