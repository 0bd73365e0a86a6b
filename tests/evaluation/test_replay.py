"""Replay answers as a service would have: nothing that became known later changes an answer, in any bit."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from recollect.answering.heads import HEADS, WITHOUT_A_RECORD
from recollect.answering.live import Live, TrainedOn, prior
from recollect.evaluation.replay import Replayed, hedged_by, replay
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import Window
from recollect.model.build import SlotGroup, build_system
from recollect.model.hedge import fixed_share, item_losses
from recollect.predictor import TILE_ROWS, Predictor
from recollect.records import Clock, FeatureSpec

SPECS = [FeatureSpec("x", "numeric", 3)]
CLASSES = 3


def model(slots: int = 6) -> Predictor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        groups = [SlotGroup(slots // 2, 1e-3, 50.0), SlotGroup(slots - slots // 2, 2.0, 1.0)]
        system = build_system(
            "precedents",
            SPECS,
            SPECS,
            key_dim=3,
            num_classes=CLASSES,
            label_classes=CLASSES,
            num_retrieved=slots,
            width=8,
            heads=2,
            blocks=1,
            ages=True,
            groups=groups,
        )
        for parameter in system.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)
    return Predictor(system, specs=tuple(SPECS))


MODEL = model()


@pytest.fixture(autouse=True)
def fits_of_few_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that these short histories have some, made anew every other item."""
    monkeypatch.setattr("recollect.answering.heads.NEWEST", (16, 32))
    monkeypatch.setattr("recollect.answering.regrown.LEAST_ROWS", 3)
    monkeypatch.setattr("recollect.answering.regrown.ROUNDS", 2)


def replayed(features: Tensor, labels: Tensor, times: Tensor, known_at: Tensor, untrained_from: int = 5) -> Replayed:
    history = MemoryHistory({"x": features}, features, labels, times, known_at)
    return replay(over(history, untrained_from))


def over(history: MemoryHistory, untrained_from: int) -> Live:
    trained_on = TrainedOn(-1.0, untrained_from)
    live = Live(MODEL, KeyTable(Clock(0.0, 10.0)), window=Window(items=40), trained_on=trained_on, num_classes=CLASSES)
    live.follow(history)
    return live


def rows(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(count, generator=generator, dtype=torch.float64).mul(40).round() / 4  # many ties
    late = torch.rand(count, generator=generator, dtype=torch.float64).mul(8).round() / 4
    known_at = times + late
    order = known_at.argsort(stable=True)
    features = torch.randn(count, 3, generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return features[order], labels[order], times[order], known_at[order]


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    share=st.floats(0.2, 0.9),
    change=st.sampled_from(["relabel", "remove", "add", "move"]),
)
def test_what_became_known_later_changes_no_answer(seed: int, share: float, change: str) -> None:
    features, labels, times, known_at = rows(90, seed)
    moment = known_at[int(share * 90)]
    before = known_at < moment
    keep = int(before.sum())
    later = (features[keep:].clone(), labels[keep:].clone(), times[keep:].clone(), known_at[keep:].clone())
    if change == "relabel":
        later = (later[0], (later[1] + 1) % CLASSES, later[2], later[3])
    elif change == "remove":
        later = tuple(column[::2] for column in later)  # type: ignore[assignment]
    elif change == "add":
        more = rows(30, seed + 1)
        shifted = (more[0], more[1], more[2] + moment, more[3] + moment)
        joined = [torch.cat(pair) for pair in zip(later, shifted, strict=True)]
        order = joined[3].argsort(stable=True)
        later = tuple(column[order] for column in joined)  # type: ignore[assignment]
    else:
        later = (later[0].flip(0) + 1.0, later[1], later[2], later[3])
    changed = [
        torch.cat([one[:keep], other]) for one, other in zip((features, labels, times, known_at), later, strict=True)
    ]
    one, other = replayed(features, labels, times, known_at), replayed(*changed)
    answered = keep - 5
    assert answered <= 0 or torch.equal(one.log_probs[:answered], other.log_probs[:answered])
    assert answered <= 0 or torch.equal(one.answers.heads[:answered], other.answers.heads[:answered])
    assert answered <= 0 or torch.equal(one.answers.weights[:answered], other.answers.weights[:answered])


def test_answers_are_probabilities_of_all_heads() -> None:
    result = replayed(*rows(60, 3))
    assert result.answers.heads.shape == (55, len(HEADS), CLASSES)
    torch.testing.assert_close(result.answers.heads.exp().sum(-1), torch.ones(55, len(HEADS)))
    torch.testing.assert_close(result.log_probs.exp().sum(-1), torch.ones(55))
    torch.testing.assert_close(result.answers.weights.sum(1), torch.ones(55))
    assert torch.equal(result.head("vote"), result.answers.heads[:, HEADS.index("vote")])


def live_over(count: int, seed: int) -> Live:
    features, labels, times, known_at = rows(count, seed)
    return over(MemoryHistory({"x": features}, features, labels, times, known_at), 5)


def test_heads_can_be_left_out_after_the_fact() -> None:
    live = live_over(60, 3)
    result = replay(live)
    assert torch.equal(hedged_by(live, result), result.log_probs)
    for name in HEADS:
        torch.testing.assert_close(hedged_by(live, result, [name]), result.head(name))
    without = hedged_by(live, result, [name for name in HEADS if name != "vote"])
    assert not torch.equal(without, result.log_probs)
    torch.testing.assert_close(without.exp().sum(-1), torch.ones(55))
    assert torch.equal(hedged_by(live, result), result.log_probs)  # what is left out once is not left out for good


def test_without_near_items_the_record_of_all_items_decides() -> None:
    live = live_over(60, 3)
    result = replay(live)
    as_of = live.lookup.view.at("time", result.positions)
    _, overall = live.mix(result.answers.said, as_of, nearby=False)
    losses = item_losses(result.answers.heads, live.lookup.view.items.label[5:])
    counts = torch.searchsorted(live.lookup.view.items.known_at[5:], as_of)
    torch.testing.assert_close(overall, fixed_share(losses, prior())[counts])
    assert not torch.equal(overall, result.answers.weights)


def test_a_row_is_answered_alike_alone_and_in_company() -> None:
    features, labels, times, known_at = rows(80, 5)
    history = MemoryHistory({"x": features}, features, labels, times, known_at)
    together = over(history, 0).answer_items(torch.arange(80))
    for row in (0, TILE_ROWS - 1, TILE_ROWS, 79):
        alone = over(history, 0).answer_items(torch.tensor([row]))
        assert torch.equal(alone.heads[0], together.heads[row])
        assert torch.equal(alone.log_probs[0], together.log_probs[row])


def test_before_any_label_is_known_the_wary_head_counts_half() -> None:
    assert float(prior()[HEADS.index(WITHOUT_A_RECORD)]) == pytest.approx(0.5)
    assert float(prior().sum()) == pytest.approx(1.0)
    assert prior(["vote", "corrected"]).tolist() == [0.5, 0.5]
    assert prior([WITHOUT_A_RECORD]).tolist() == [1.0]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    features, labels, times, known_at = rows(30, 0)
    history = MemoryHistory({"x": features}, features, labels, times, known_at)
    replay(over(history, 10), lambda done, total: told.append((done, total)))
    assert told == [(20, 20)]
