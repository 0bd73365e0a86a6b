"""Features of every kind become vectors and tokens; features that do not fit are named."""

import re

import pytest
import torch
from torch import Tensor

from recollect.errors import SettingError
from recollect.model.blocks import FourierBands
from recollect.model.encoders import FlatEncoder, TokenEncoder, column_places
from recollect.records import Features, FeatureSpec

TEXT = FeatureSpec("text", "embedded", 5, bands=9)  # bands mean something for numeric features only
VOTES = FeatureSpec("votes", "numeric", 2, bands=3, max_frequency=8.0)
PRICE = FeatureSpec("price", "numeric", 1)
SHOP = FeatureSpec("shop.id", "categorical", 4)
SPECS = [TEXT, VOTES, PRICE, SHOP]
LEADS = [(), (3,), (2, 1, 3), (2, 0)]


def make_features(lead: tuple[int, ...]) -> Features:
    generator = torch.Generator().manual_seed(0)
    return {
        "text": torch.randn(*lead, 5, generator=generator),
        "votes": torch.randn(*lead, 2, generator=generator),
        "price": torch.randn(*lead, 1, generator=generator),
        "shop.id": torch.randint(4, lead, generator=generator),
        "unused": torch.zeros(1),
    }


@pytest.mark.parametrize("lead", LEADS)
def test_flat_puts_all_kinds_side_by_side(lead: tuple[int, ...]) -> None:
    encoder, features = FlatEncoder(SPECS), make_features(lead)
    flat = encoder(features, lead)
    assert encoder.flat_width == 5 + 2 * 7 + 1 + 4
    assert flat.shape == (*lead, encoder.flat_width)
    expected = [
        features["text"],
        FourierBands(3, 8.0)(features["votes"]),
        features["price"],
        torch.nn.functional.one_hot(features["shop.id"], 4).float(),
    ]
    assert torch.equal(flat, torch.cat(expected, dim=-1))


def test_columns_stand_behind_their_bands() -> None:
    flat, features = FlatEncoder(SPECS)(make_features((3,)), (3,)), make_features((3,))
    places = dict(zip((spec.name for spec in SPECS), column_places(SPECS), strict=True))
    for name in ("text", "votes", "price"):
        assert torch.equal(flat[:, places[name][1]], features[name])
    assert torch.equal(flat[:, places["votes"][0]], FourierBands(3, 8.0)(features["votes"])[:, :-2])


@pytest.mark.parametrize("lead", LEADS)
def test_tokens_have_one_row_per_feature(lead: tuple[int, ...]) -> None:
    encoder, features = TokenEncoder(SPECS, width=6), make_features(lead)
    tokens = encoder(features, lead)
    assert tokens.shape == (*lead, 4, 6)
    weights = dict(encoder.layers.named_parameters())
    expected = [
        features["text"] @ weights["0.1.weight"].T + weights["0.1.bias"],
        FourierBands(3, 8.0)(features["votes"]) @ weights["1.1.weight"].T + weights["1.1.bias"],
        features["price"] @ weights["2.1.weight"].T + weights["2.1.bias"],
        weights["3.weight"][features["shop.id"]],
    ]
    torch.testing.assert_close(tokens, torch.stack(expected, dim=-2) + encoder.marks)


@pytest.mark.parametrize("lead", LEADS)
def test_no_specs_give_nothing_of_the_right_shape(lead: tuple[int, ...]) -> None:
    assert FlatEncoder([]).flat_width == 0
    assert FlatEncoder([])({}, lead).shape == (*lead, 0)
    assert TokenEncoder([], width=6)({}, lead).shape == (*lead, 0, 6)


@pytest.mark.parametrize("unseen", [-1, 4, 1000])
def test_a_category_first_met_after_training_adds_nothing(unseen: int) -> None:
    features = {"shop.id": torch.tensor([unseen, 2])}
    flat = FlatEncoder([SHOP])(features, (2,))
    assert torch.equal(flat, torch.tensor([[0.0, 0, 0, 0], [0, 0, 1, 0]]))
    tokens = TokenEncoder([SHOP], width=6)
    assert torch.equal(tokens(features, (2,))[0], tokens.marks)
    tokens(features, (2,)).sum().backward()
    weight_grad = tokens.layers[0].weight.grad
    assert isinstance(weight_grad, Tensor)
    assert weight_grad[2].all()
    assert not weight_grad[4].any()


def test_half_precision_features_are_read_in_the_precision_of_the_model() -> None:
    features = {"text": make_features((3,))["text"].half()}
    assert FlatEncoder([TEXT])(features, (3,)).dtype == torch.float32
    assert TokenEncoder([TEXT], width=6)(features, (3,)).dtype == torch.float32
    assert FlatEncoder([TEXT]).double()(features, (3,)).dtype == torch.float64


def test_gradients_reach_every_parameter() -> None:
    encoder = TokenEncoder(SPECS, width=6)
    encoder(make_features((9,)), (9,)).square().sum().backward()
    assert [name for name, p in encoder.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert list(FlatEncoder(SPECS).parameters()) == []


@pytest.mark.parametrize("encoder", [FlatEncoder(SPECS), TokenEncoder(SPECS, width=6)])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"text": torch.zeros(3, 4)},
            'feature "text" (embedded, width 5) must have shape [3, 5], but [3, 4] came: give it the width',
        ),
        (
            {"votes": torch.zeros(3)},
            'feature "votes" (numeric, width 2) must have shape [3, 2], but [3] came: give it the width',
        ),
        (
            {"shop.id": torch.zeros(3, 1, dtype=torch.long)},
            'feature "shop.id" (categorical, width 4) must have shape [3], but [3, 1] came: give it the width',
        ),
        (
            {"shop.id": torch.zeros(3)},
            'feature "shop.id" (categorical, width 4) must be integers, but torch.float32 came: give the',
        ),
    ],
)
def test_a_feature_that_does_not_fit_is_named(
    encoder: FlatEncoder | TokenEncoder, changes: Features, message: str
) -> None:
    with pytest.raises(SettingError, match=re.escape(message)):
        encoder(make_features((3,)) | changes, (3,))


@pytest.mark.parametrize("encoder", [FlatEncoder([TEXT]), TokenEncoder([TEXT], width=6)])
@pytest.mark.parametrize(
    ("features", "came"),
    [({}, "no features"), ({"title": torch.zeros(3, 5), "age": torch.zeros(3, 1)}, '"title", "age"')],
)
def test_a_missing_feature_is_named(encoder: FlatEncoder | TokenEncoder, features: Features, came: str) -> None:
    message = f'feature "text" (embedded, width 5) is missing, {came} came: give every feature'
    with pytest.raises(SettingError, match=re.escape(message)):
        encoder(features, (3,))
