"""The default classifier: attention over precedents, and a pointer to their labels."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.model.classifier import Classifier
from recollect.model.precedents import PrecedentClassifier
from recollect.records import FeatureSpec, Items
from tests.model.test_classifier import BATCH, CHAINS, RETRIEVED, SPECS, gradients, keep, make_items, spoil

STATE_WIDTH, WIDTH = 5, 8
INPUT_SPECS = (FeatureSpec("text", "embedded", STATE_WIDTH),)


def make(
    specs: Sequence[FeatureSpec] = SPECS,
    num_classes: int = 3,
    label_classes: int = 3,
    num_retrieved: int = RETRIEVED,
    ages: bool = True,
    input_specs: Sequence[FeatureSpec] = INPUT_SPECS,
    pointer: bool = True,
) -> PrecedentClassifier:
    torch.manual_seed(0)
    shape = {"width": WIDTH, "heads": 2, "blocks": 2}
    return PrecedentClassifier(
        input_specs, specs, num_retrieved, num_classes, label_classes, **shape, ages=ages, pointer=pointer
    )


def make_state(batch: int = BATCH, seed: int = 0, width: int = STATE_WIDTH) -> Tensor:
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(seed))


def always(classifier: PrecedentClassifier, gate: float) -> PrecedentClassifier:
    """The same classifier with a gate that is open this far for every input."""
    torch.nn.init.zeros_(classifier.gate.weight)
    torch.nn.init.constant_(classifier.gate.bias, math.log(gate / (1 - gate)))
    return classifier


def full(items: Items, label: int) -> Items:
    """Every slot filled with an item of one class."""
    filled = torch.ones_like(items.filled)
    return replace(items, filled=filled, labels=torch.full_like(filled, label, dtype=torch.long))


@pytest.mark.parametrize(
    ("batch", "chains", "retrieved", "num_classes"), [(3, 2, 4, 3), (1, 1, 1, 2), (5, 3, 2, 11), (0, 1, 2, 2)]
)
def test_answers_are_log_probabilities_for_any_sizes(batch: int, chains: int, retrieved: int, num_classes: int) -> None:
    classifier = make(num_classes=num_classes, label_classes=num_classes, num_retrieved=retrieved)
    items = make_items(batch, chains, retrieved, num_classes)
    answer = classifier(make_state(batch), items, keep(True, batch))
    assert answer.log_probs.shape == (batch, chains, num_classes)
    torch.testing.assert_close(answer.log_probs.exp().sum(-1), torch.ones(batch, chains))
    assert isinstance(classifier, Classifier)


def test_weights_sum_to_one_over_the_filled_slots() -> None:
    items = make_items()
    items.filled[0, 0] = False
    weights = make()(make_state(), items, keep(True)).weights
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), items.filled.any(-1).float())
    assert (weights[items.filled] > 0).all()
    assert not weights[~items.filled].any()


def test_nonsense_in_empty_slots_changes_no_answer_and_no_gradient() -> None:
    classifier, items, state = make(), make_items(), make_state()
    assert not items.filled.all()
    plain, spoilt = classifier(state, items, keep(True)), classifier(state, spoil(items), keep(True))
    assert plain.weights is not None
    assert spoilt.weights is not None
    assert torch.equal(plain.log_probs, spoilt.log_probs)
    assert torch.equal(plain.weights, spoilt.weights)
    one, other = gradients(classifier, state, items), gradients(classifier, state, spoil(items))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_without_items_the_head_answers_alone() -> None:
    classifier, items, state = make(), make_items(), make_state()
    nothing = spoil(replace(items, filled=torch.zeros_like(items.filled)))
    token = classifier.embed_input(state) + classifier.marks[0]
    for block in classifier.blocks:
        token = token + block.feed_forward(token)
    alone = classifier.head(classifier.norm(token)).log_softmax(-1)
    for gate in (0.001, 0.5, 0.999):
        log_probs = always(classifier, gate)(state, nothing, keep(True)).log_probs
        torch.testing.assert_close(log_probs, alone[:, None].expand_as(log_probs))


def test_an_input_without_items_is_told_the_same_whether_others_have_some() -> None:
    classifier, items = make(), make_items()
    nobody = replace(items, filled=torch.zeros_like(items.filled))
    others = replace(items, filled=nobody.filled.clone())
    others.filled[-1] = True
    with torch.no_grad():
        alone, beside = (classifier(make_state(), each, keep(True)) for each in (nobody, others))
    assert torch.equal(alone.log_probs[:-1], beside.log_probs[:-1])
    assert torch.equal(alone.weights[:-1], beside.weights[:-1])


def test_without_items_gradients_are_finite_and_leave_the_pointer_alone() -> None:
    classifier, items = make(), make_items()
    nothing = spoil(replace(items, filled=torch.zeros_like(items.filled)))
    found = gradients(classifier, make_state(), nothing, kept=False)
    assert all(gradient.isfinite().all() for gradient in found.values())
    for name, gradient in found.items():
        if name.startswith(("point", "gate")):
            assert not gradient.any()


def test_a_class_that_only_precedents_have_is_answered() -> None:
    classifier, items = always(make(), 0.9), full(make_items(), 7)
    log_probs = classifier(make_state(), items, keep(True)).log_probs
    assert log_probs.shape == (BATCH, CHAINS, 8)
    assert (log_probs.argmax(-1) == 7).all()
    torch.testing.assert_close(log_probs[..., 7].exp(), torch.full((BATCH, CHAINS), 0.9))


def test_the_pointer_gives_each_class_the_attention_on_its_items() -> None:
    classifier, items, state = make(), make_items(classes=6), make_state()
    labels, filled = items.labels, items.filled
    assert labels is not None
    assert (labels[filled] >= 3).any()
    answer = always(classifier, 0.25)(state, items, keep(True))
    assert answer.weights is not None
    pointed = torch.stack([(answer.weights * (labels == label)).sum(-1) for label in range(6)], dim=-1)
    shown = filled.any(-1, keepdim=True)
    probs = answer.log_probs.exp()
    torch.testing.assert_close(probs[..., 3:], 0.25 * pointed[..., 3:])
    head = torch.where(shown, (probs[..., :3] - 0.25 * pointed[..., :3]) / 0.75, probs[..., :3])
    torch.testing.assert_close(head.sum(-1), torch.ones(BATCH, CHAINS))
    torch.testing.assert_close(probs.sum(-1), torch.ones(BATCH, CHAINS))


def test_without_a_pointer_labels_are_read_and_nothing_is_pointed_at() -> None:
    classifier, items = make(pointer=False), make_items()
    answer = classifier(make_state(), full(items, 0), keep(True))
    other = classifier(make_state(), full(items, 1), keep(True))
    assert answer.weights is None
    assert not torch.allclose(answer.log_probs, other.log_probs)
    assert classifier(make_state(), full(items, 7), keep(True)).log_probs.shape[-1] == 3


def test_without_differences_a_token_is_of_its_item_alone() -> None:
    shape = {"width": WIDTH, "heads": 2, "blocks": 2}
    torch.manual_seed(0)
    alone, beside = (
        PrecedentClassifier(SPECS, SPECS, RETRIEVED, 3, 3, **shape, differences=each) for each in (False, True)
    )
    items, one, other = make_items(), torch.zeros(BATCH, WIDTH), torch.ones(BATCH, WIDTH)
    assert torch.equal(alone._item_tokens(items, one), alone._item_tokens(items, other))
    assert not torch.equal(beside._item_tokens(items, one), beside._item_tokens(items, other))


def test_a_new_class_is_impossible_for_those_who_did_not_meet_it() -> None:
    items = full(make_items(), 1)
    assert items.labels is not None
    items.labels[0, 0, 2] = 5
    log_probs = make()(make_state(), items, keep(True)).log_probs
    assert log_probs[0, 0, 5] > -20
    assert (log_probs[1:, :, 3:] == -torch.inf).all()
    assert (log_probs[0, 0, 3:5] == -torch.inf).all()


def test_the_gate_learns_to_open_from_a_new_class() -> None:
    classifier, items = make(), full(make_items(), 4)
    (-classifier(make_state(), items, keep(True)).log_probs[..., 4].mean()).backward()
    assert classifier.gate.bias.grad is not None
    assert classifier.gate.bias.grad.item() < 0


def test_the_gradient_of_an_improbable_class_is_finite() -> None:
    classifier = always(make(), 1 - 1e-6)  # float32 has no room for less than all of it
    found = gradients(classifier, make_state(), full(make_items(), 1))
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_items_need_no_labels() -> None:
    classifier, items = make(label_classes=0, ages=False), make_items()
    without = classifier(make_state(), replace(items, labels=None, ages=None), keep(True))
    assert without.weights is None
    assert torch.equal(without.log_probs, classifier(make_state(), items, keep(True)).log_probs)
    assert not [name for name, _ in classifier.named_parameters() if name.startswith(("point", "gate", "embed_label"))]


def test_labels_alone_are_enough() -> None:
    classifier = make(specs=(), ages=False)
    bare = replace(make_items(), features={}, ages=None)
    assert classifier(make_state(), bare, keep(True)).log_probs.isfinite().all()
    assert classifier.embed_item is None


def test_with_no_slots_at_all_it_is_a_plain_classifier() -> None:
    classifier = make(specs=(), label_classes=0, num_retrieved=0, ages=False)
    items = make_items(chains=1, retrieved=0)
    assert classifier(make_state(), items, keep(True)).log_probs.isfinite().all()


def test_a_dropped_input_is_really_gone() -> None:
    classifier, items = make(), make_items()
    kept = torch.tensor([False, True, False])
    one, other = make_state(), make_state(seed=5)
    other[0] = math.nan
    first, second = classifier(one, items, kept).log_probs, classifier(other, items, kept).log_probs
    assert torch.equal(first[~kept], second[~kept])
    assert not torch.isclose(first[kept], second[kept]).any()


@pytest.mark.parametrize("changed", ["text", "votes", "shop", "labels", "ages"])
def test_everything_in_a_filled_slot_is_read(changed: str) -> None:
    classifier, items = make(), make_items()
    items = replace(items, filled=torch.ones_like(items.filled))
    assert items.labels is not None
    assert items.ages is not None
    other = {
        "text": replace(items, features=items.features | {"text": items.features["text"] + 1}),
        "votes": replace(items, features=items.features | {"votes": items.features["votes"] + 0.3}),
        "shop": replace(items, features=items.features | {"shop": (items.features["shop"] + 1) % 3}),
        "labels": replace(items, labels=(items.labels + 1) % 3),
        "ages": replace(items, ages=2 * items.ages),
    }[changed]
    before = classifier(make_state(), items, keep(True)).log_probs
    assert not torch.equal(before, classifier(make_state(), other, keep(True)).log_probs)


def test_the_order_of_precedents_does_not_matter() -> None:
    classifier, items = make(), make_items()
    turned = Items(
        items.filled.flip(-1),
        {name: value.flip(2) for name, value in items.features.items()},
        None if items.labels is None else items.labels.flip(-1),
        None if items.ages is None else items.ages.flip(-1),
    )
    one, other = (classifier(make_state(), each, keep(True)) for each in (items, turned))
    torch.testing.assert_close(one.log_probs, other.log_probs)
    assert one.weights is not None
    torch.testing.assert_close(one.weights.flip(-1), other.weights)


def test_all_unseen_labels_read_alike_and_unlike_every_seen_one() -> None:
    classifier, items = make(), make_items()

    def weights(label: int) -> Tensor:
        read = full(items, 0)
        assert read.labels is not None
        read.labels[:, :, 0] = label
        found = classifier(make_state(), read, keep(True)).weights
        assert found is not None
        return found

    assert torch.equal(weights(3), weights(1000))
    assert not any(torch.equal(weights(3), weights(seen)) for seen in range(3))


def test_items_like_inputs_are_embedded_by_the_same_layer() -> None:
    same = make(specs=INPUT_SPECS)
    assert same.embed_item is same.embed_input
    assert make().embed_item is not make().embed_input


def test_probabilities_are_float32_in_mixed_precision() -> None:
    classifier, items = make(), make_items()
    with torch.autocast("cpu", torch.bfloat16):
        answer = classifier(make_state(), items, keep(True))
    assert answer.weights is not None
    assert (answer.log_probs.dtype, answer.weights.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(answer.log_probs.exp().sum(-1), torch.ones(BATCH, CHAINS))


def test_gradients_reach_every_parameter() -> None:
    found = gradients(make(), make_state(), make_items(chains=5))
    assert [name for name, gradient in found.items() if not gradient.any()] == []


@pytest.mark.parametrize("same", [True, False])
def test_one_selection_shown_in_several_ways_is_read_as_if_each_were_alone(same: bool) -> None:
    specs = INPUT_SPECS if same else SPECS
    classifier, state, items = make(specs), make_state(), make_items(chains=1)
    ways = [(False, False), (True, False), (True, True)]
    torch.nn.init.normal_(classifier.wary_mark)
    answer = classifier(state, items.in_ways(ways), keep(True))
    for chain, (shown, wary) in enumerate(ways):
        alone = replace(items, filled=items.filled & shown, wary=torch.full((BATCH, 1), wary))
        said = classifier(state, alone, keep(True))
        torch.testing.assert_close(answer.log_probs[:, chain], said.log_probs[:, 0])
        torch.testing.assert_close(answer.weights[:, chain], said.weights[:, 0])
