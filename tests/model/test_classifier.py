"""What both classifiers must hold to, whatever the features; then what is particular to each."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.classifier import Classifier, MLPClassifier, PerceiverClassifier
from recollect.records import FeatureSpec, Items

SPECS = (
    FeatureSpec("text", "embedded", 5),
    FeatureSpec("votes", "numeric", 1, bands=2, max_frequency=8.0),
    FeatureSpec("shop", "categorical", 3),
)
BATCH, CHAINS, RETRIEVED, WIDTH = 3, 2, 4, 6

Make = Callable[..., Classifier]


def make_mlp(
    specs: Sequence[FeatureSpec] = SPECS,
    num_classes: int = 3,
    label_classes: int = 3,
    num_retrieved: int = RETRIEVED,
    ages: bool = True,
    hidden: Sequence[int] = (7, 5),
) -> MLPClassifier:
    torch.manual_seed(0)
    return MLPClassifier(WIDTH, hidden, specs, num_retrieved, num_classes, label_classes, ages)


def make_perceiver(
    specs: Sequence[FeatureSpec] = SPECS,
    num_classes: int = 3,
    label_classes: int = 3,
    num_retrieved: int = RETRIEVED,
    ages: bool = True,
) -> PerceiverClassifier:
    torch.manual_seed(0)
    return PerceiverClassifier(WIDTH, 3, 2, 1, specs, num_classes, label_classes, num_retrieved, ages)


def make_state(classifier: Classifier, batch: int = BATCH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    flat = isinstance(classifier, MLPClassifier)
    return torch.randn((batch, WIDTH) if flat else (batch, 2, WIDTH), generator=generator)


def make_items(batch: int = BATCH, chains: int = CHAINS, retrieved: int = RETRIEVED, classes: int = 3) -> Items:
    generator = torch.Generator().manual_seed(1)
    lead = (batch, chains, retrieved)
    return Items(
        filled=torch.rand(lead, generator=generator) < 0.6,
        features={
            "text": torch.randn(*lead, 5, generator=generator),
            "votes": torch.randn(*lead, 1, generator=generator),
            "shop": torch.randint(3, lead, generator=generator),
        },
        labels=torch.randint(classes, lead, generator=generator),
        ages=100 * torch.rand(lead, generator=generator),
    )


def spoil(items: Items) -> Items:
    """The same items with nonsense in every empty slot."""
    assert items.labels is not None
    assert items.ages is not None
    empty, features = ~items.filled, dict(items.features)
    features["text"] = features["text"].masked_fill(empty[..., None], math.nan)
    features["votes"] = features["votes"].masked_fill(empty[..., None], math.inf)
    features["shop"] = features["shop"].masked_fill(empty, 10**9)
    return Items(items.filled, features, items.labels.masked_fill(empty, -7), items.ages.masked_fill(empty, -5.0))


def keep(value: bool, batch: int = BATCH) -> Tensor:
    return torch.full((batch,), value)


def gradients(classifier: Classifier, state: Tensor, items: Items, kept: bool = True) -> dict[str, Tensor]:
    assert isinstance(classifier, nn.Module)
    named = dict(classifier.named_parameters())
    nll = -classifier(state, items, keep(kept)).log_probs[..., 0].sum()
    return dict(zip(named, torch.autograd.grad(nll, list(named.values())), strict=True))


@pytest.fixture(params=[make_mlp, make_perceiver])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.mark.parametrize(
    ("batch", "chains", "retrieved", "num_classes"), [(3, 2, 4, 3), (1, 1, 1, 2), (5, 3, 2, 11), (0, 1, 2, 2)]
)
def test_answers_are_log_probabilities_for_any_sizes(
    make: Make, batch: int, chains: int, retrieved: int, num_classes: int
) -> None:
    classifier = make(num_classes=num_classes, label_classes=num_classes, num_retrieved=retrieved)
    items = make_items(batch, chains, retrieved, num_classes)
    answer = classifier(make_state(classifier, batch), items, keep(True, batch))
    assert answer.log_probs.shape == (batch, chains, num_classes)
    torch.testing.assert_close(answer.log_probs.exp().sum(-1), torch.ones(batch, chains))
    assert answer.weights is None
    assert isinstance(classifier, Classifier)


def test_nonsense_in_empty_slots_changes_no_answer_and_no_gradient(make: Make) -> None:
    classifier, items = make(), make_items()
    state = make_state(classifier)
    assert not items.filled.all()
    assert torch.equal(
        classifier(state, items, keep(True)).log_probs, classifier(state, spoil(items), keep(True)).log_probs
    )
    plain, spoilt = gradients(classifier, state, items), gradients(classifier, state, spoil(items))
    assert all(torch.equal(plain[name], spoilt[name]) for name in plain)


def test_without_items_the_answer_is_finite_and_depends_on_the_input_only(make: Make) -> None:
    classifier, items = make(), make_items()
    nothing = replace(items, filled=torch.zeros_like(items.filled))
    log_probs = classifier(make_state(classifier), nothing, keep(True)).log_probs
    assert log_probs.isfinite().all()
    torch.testing.assert_close(log_probs[:, 0], log_probs[:, 1])
    assert len(set(log_probs[:, 0, 0].tolist())) == BATCH


def test_with_no_slots_at_all_it_is_a_plain_classifier(make: Make) -> None:
    classifier = make(num_retrieved=0)
    log_probs = classifier(make_state(classifier), make_items(chains=1, retrieved=0), keep(True)).log_probs
    assert log_probs.isfinite().all()


def test_with_nothing_to_read_answers_and_gradients_are_finite(make: Make) -> None:
    classifier, items = make(), make_items()
    nothing = spoil(replace(items, filled=torch.zeros_like(items.filled)))
    log_probs = classifier(make_state(classifier), nothing, keep(False)).log_probs
    assert log_probs.isfinite().all()
    torch.testing.assert_close(log_probs, log_probs[:1, :1].expand_as(log_probs))
    found = gradients(classifier, make_state(classifier), nothing, kept=False)
    assert all(grad.isfinite().all() for grad in found.values())


def test_a_dropped_input_is_really_gone(make: Make) -> None:
    classifier, items = make(), make_items()
    kept = torch.tensor([False, True, False])
    one, other = make_state(classifier), make_state(classifier, seed=5)
    other[0] = math.nan
    first = classifier(one, items, kept).log_probs
    second = classifier(other, items, kept).log_probs
    assert torch.equal(first[~kept], second[~kept])
    assert not torch.isclose(first[kept], second[kept]).any()


@pytest.mark.parametrize("changed", ["text", "votes", "shop", "labels", "ages"])
def test_everything_in_a_filled_slot_is_read(make: Make, changed: str) -> None:
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
    state = make_state(classifier)
    before = classifier(state, items, keep(True)).log_probs
    assert not torch.equal(before, classifier(state, other, keep(True)).log_probs)


def test_slots_are_told_apart(make: Make) -> None:
    classifier, items = make(specs=(), ages=False), make_items()
    assert items.labels is not None
    items = Items(torch.ones_like(items.filled), {}, torch.arange(RETRIEVED).remainder(3).expand(BATCH, CHAINS, -1))
    assert items.labels is not None
    state = make_state(classifier)
    turned = replace(items, labels=items.labels.roll(1, dims=-1))
    before = classifier(state, items, keep(True)).log_probs
    assert not torch.equal(before, classifier(state, turned, keep(True)).log_probs)


def test_labels_alone_are_enough(make: Make) -> None:
    classifier, items = make(specs=(), ages=False), make_items()
    bare = replace(items, features={}, ages=None)
    assert classifier(make_state(classifier), bare, keep(True)).log_probs.isfinite().all()


def test_items_need_no_labels(make: Make) -> None:
    classifier, items = make(label_classes=0, ages=False), make_items()
    state = make_state(classifier)
    without = classifier(state, replace(items, labels=None, ages=None), keep(True)).log_probs
    assert torch.equal(without, classifier(state, items, keep(True)).log_probs)


def test_all_unseen_labels_read_alike_and_unlike_every_seen_one(make: Make) -> None:
    classifier, items = make(), make_items()
    items = replace(items, filled=torch.ones_like(items.filled))
    state = make_state(classifier)

    def answer(label: int) -> Tensor:
        labels = torch.full(items.filled.shape, label)
        return classifier(state, replace(items, labels=labels), keep(True)).log_probs

    assert torch.equal(answer(3), answer(1000))
    assert not any(torch.equal(answer(3), answer(seen)) for seen in range(3))


def test_gradients_reach_every_parameter(make: Make) -> None:
    classifier, items = make(), make_items(batch=BATCH, chains=5)
    found = gradients(classifier, make_state(classifier), items)
    assert [name for name, grad in found.items() if not grad.any()] == []


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (replace(make_items(), labels=None), 'feature "label of the item" (categorical, width 3) is missing'),
        (replace(make_items(), ages=None), 'feature "age of the item" (numeric, width 1) is missing'),
        (
            replace(make_items(), features={}),
            'feature "text" (embedded, width 5) is missing, "label of the item", "age of the item" came',
        ),
        (
            replace(make_items(), features={"text": torch.zeros(BATCH, CHAINS, RETRIEVED, 4)}),
            'feature "text" (embedded, width 5) must have shape [3, 2, 4, 5], but [3, 2, 4, 4] came',
        ),
        (make_items(retrieved=1), "the classifier reads 4 slots, but 1 came: mark unused ones as empty"),
    ],
)
def test_items_that_do_not_fit_are_named(make: Make, items: Items, message: str) -> None:
    classifier = make()
    with pytest.raises(SettingError, match=re.escape(message)):
        classifier(make_state(classifier), items, keep(True))


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
def test_the_split_first_layer_equals_the_plain_concatenation(hidden: tuple[int, ...]) -> None:
    classifier, items, kept = make_mlp(hidden=hidden), make_items(), torch.tensor([True, False, True])
    state = make_state(classifier)
    plain = torch.zeros(BATCH, CHAINS, 3)
    for row in range(BATCH):
        for chain in range(CHAINS):
            parts = [state[row] * kept[row]]
            for slot in range(RETRIEVED):
                at = (row, chain, slot)
                features = {name: value[at] for name, value in items.features.items()}
                assert items.labels is not None
                assert items.ages is not None
                angles = math.pi * torch.tensor([1.0, 4.0]) * features["votes"]
                content = [
                    features["text"],
                    *[angles.sin(), angles.cos(), features["votes"]],
                    torch.eye(3)[features["shop"]],
                    torch.eye(3)[items.labels[at]],
                    torch.log1p(items.ages[at])[None],
                    torch.ones(1),
                ]
                parts.append(torch.cat(content) * items.filled[at])
            plain[row, chain] = classifier.layers(torch.cat(parts)).log_softmax(-1)
    torch.testing.assert_close(classifier(state, items, kept).log_probs, plain)


def test_the_perceiver_reads_any_number_of_input_tokens() -> None:
    classifier, items = make_perceiver(), make_items()
    for tokens in (0, 1, 9):
        state = torch.randn(BATCH, tokens, WIDTH, generator=torch.Generator().manual_seed(2))
        assert classifier(state, items, keep(True)).log_probs.shape == (BATCH, CHAINS, 3)
