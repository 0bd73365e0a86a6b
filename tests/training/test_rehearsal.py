"""Rules of simulated drift: what they may do to which labels, where and since when."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recollect.config import RehearsalMix
from recollect.training.rehearsal import Rules, draw_rules
from tests.tiny import seeded

KEY_DIM = 3
ALWAYS = RehearsalMix(1.0, merge=0.0, three=0.0, region=0.0, change_point=0.0, novel=0.0)


@dataclass(frozen=True)
class Drawn:
    """Rules and what they were drawn for."""

    mix: RehearsalMix
    num_classes: int
    targets: Tensor
    own_keys: Tensor
    oldest: Tensor
    as_of: Tensor
    shown: Tensor
    rules: Rules


def draw(mix: RehearsalMix, num_classes: int, batch: int = 40, seed: int = 0, shown: float = 1.0) -> Drawn:
    generator = seeded(seed)
    targets = torch.randint(num_classes, (batch,), generator=generator)
    own_keys = torch.randn(batch, KEY_DIM, generator=generator)
    as_of = 100 * torch.rand(batch, generator=generator, dtype=torch.float64)
    oldest = as_of * torch.rand(batch, generator=generator, dtype=torch.float64)
    seen = torch.rand(batch, generator=generator) < shown
    rules = draw_rules(mix, targets, own_keys, oldest, as_of, seen, num_classes, generator)
    return Drawn(mix, num_classes, targets, own_keys, oldest, as_of, seen, rules)


chances = st.sampled_from([0.0, 0.3, 1.0])
mixes = st.builds(RehearsalMix, chances, chances, chances, chances, chances, chances)
drawings = st.builds(draw, mixes, st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**32), chances)


@given(drawings)
def test_a_rule_turns_or_merges_two_or_three_classes_the_targets_among_them(drawn: Drawn) -> None:
    mix, labels = drawn.mix, drawn.num_classes + 1
    assert drawn.rules.becomes.shape == (len(drawn.targets), labels)
    for target, becomes in zip(drawn.targets.tolist(), drawn.rules.becomes.tolist(), strict=True):
        moved = {label for label in range(labels) if becomes[label] != label}
        involved = moved | {becomes[label] for label in moved}
        if not moved:
            assert drawn.num_classes == 1  # a single class has nothing to turn with
            assert mix.novel < 1
            continue
        assert target in involved
        most = 3 if mix.three > 0 else 2
        least = 3 if mix.three == 1 and drawn.num_classes >= 3 else 2
        assert least <= len(involved) <= most
        turned = sorted(becomes) == list(range(labels))
        if turned:
            assert mix.merge < 1
            assert moved == involved
        else:
            assert mix.merge > 0
            assert len({becomes[label] for label in involved}) == 1
        if mix.novel == 0:
            assert drawn.num_classes not in involved
        if mix.novel == 1:
            assert drawn.num_classes in involved


@given(drawings)
def test_rules_are_active_only_where_something_is_shown(drawn: Drawn) -> None:
    active = drawn.rules.active
    assert not (active & ~drawn.shown).any()
    if drawn.mix.probability == 0:
        assert not active.any()
    if drawn.mix.probability == 1:
        assert torch.equal(active, drawn.shown)


@given(drawings)
def test_regions_and_change_points_are_drawn_where_asked_for(drawn: Drawn) -> None:
    rules = drawn.rules
    torch.testing.assert_close(rules.direction.norm(dim=1), torch.ones(len(drawn.targets)))
    everywhere, ever = rules.threshold == -torch.inf, rules.since == -torch.inf
    assert rules.threshold[~everywhere].isfinite().all()
    assert (rules.since[~ever] <= drawn.as_of[~ever]).all()
    assert (rules.since[~ever] >= drawn.oldest[~ever] - 1e-9).all()
    for where, chance in ((everywhere, drawn.mix.region), (ever, drawn.mix.change_point)):
        assert chance not in (0.0, 1.0) or bool((where == (chance == 0)).all())


@given(drawings, st.integers(0, 2**32))
def test_labels_change_by_the_rule_inside_its_region_since_its_change(drawn: Drawn, seed: int) -> None:
    generator, batch, rules = seeded(seed), len(drawn.targets), drawn.rules
    lead = (batch, 2, 3)
    # Some labels are beyond all the rule knows.
    labels = torch.randint(drawn.num_classes + 3, lead, generator=generator)
    keys = torch.randn(*lead, KEY_DIM, generator=generator)
    times = drawn.as_of[:, None, None] * torch.rand(lead, generator=generator, dtype=torch.float64)
    found = rules.relabel(labels, keys, times)
    for row in range(batch):
        for at in [(row, chain, slot) for chain in range(2) for slot in range(3)]:
            label = int(labels[at])
            inside = (keys[at] * rules.direction[row]).sum() > rules.threshold[row]
            if rules.active[row] and inside and times[at] >= rules.since[row] and label <= drawn.num_classes:
                label = int(rules.becomes[row, label])
            assert found[at] == label


@given(drawings)
def test_an_item_like_the_input_is_relabelled_like_the_target(drawn: Drawn) -> None:
    target = drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of)
    lead = (-1, 2, 3)
    items = drawn.rules.relabel(
        drawn.targets[:, None, None].expand(lead),
        drawn.own_keys[:, None, None].expand(*lead, -1),
        drawn.as_of[:, None, None].expand(lead),
    )
    assert torch.equal(items, target[:, None, None].expand(lead))
    assert torch.equal(target[~drawn.rules.active], drawn.targets[~drawn.rules.active])


def test_with_two_classes_a_swap_is_the_other_label() -> None:
    drawn = draw(ALWAYS, 2)
    assert torch.equal(drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of), 1 - drawn.targets)


def test_a_merge_takes_either_class_as_often() -> None:
    drawn = draw(replace(ALWAYS, merge=1.0), 5, batch=2000)
    kept = drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of) == drawn.targets
    assert float(kept.float().mean()) == pytest.approx(0.5, abs=0.05)


def test_every_class_is_met_by_every_other() -> None:
    drawn = draw(ALWAYS, 4, batch=4000)
    new = drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of)
    counts = torch.zeros(4, 4).index_put((drawn.targets, new), torch.ones(4000), accumulate=True)
    shares = counts / counts.sum(1, keepdim=True)
    torch.testing.assert_close(shares, (1 - torch.eye(4)) / 3, atol=0.06, rtol=0.0)


def test_a_novel_class_is_one_that_training_has_no_label_for() -> None:
    drawn = draw(replace(ALWAYS, novel=1.0), 3)
    assert (drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of) == 3).all()


def test_an_input_lies_inside_its_region_half_of_the_time() -> None:
    drawn = draw(replace(ALWAYS, region=1.0), 2, batch=4000)
    inside = drawn.rules.relabel(drawn.targets, drawn.own_keys, drawn.as_of) != drawn.targets
    assert float(inside.float().mean()) == pytest.approx(0.5, abs=0.04)


def test_changes_are_more_often_recent() -> None:
    drawn = draw(replace(ALWAYS, change_point=1.0), 2, batch=4000)
    back = (drawn.as_of - drawn.rules.since) / (drawn.as_of - drawn.oldest)
    assert float(back.mean()) == pytest.approx(1 / 3, abs=0.03)  # of a uniform number squared


def test_the_probability_is_the_share_that_is_rehearsed() -> None:
    drawn = draw(replace(ALWAYS, probability=0.7), 2, batch=4000)
    assert float(drawn.rules.active.float().mean()) == pytest.approx(0.7, abs=0.04)


def test_the_generator_decides() -> None:
    mix = RehearsalMix(0.5)
    one, same, other = draw(mix, 5, seed=1).rules, draw(mix, 5, seed=1).rules, draw(mix, 5, seed=2).rules
    for name in ("becomes", "direction", "threshold", "since", "active"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.direction, other.direction)
