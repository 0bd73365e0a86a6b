"""Weights are counted exactly, for every architecture and option; activations grow with what they are made for."""

from dataclasses import replace

import pytest

from recollect.config import ModelSettings
from recollect.model import blocks
from recollect.planning import model
from recollect.planning.model import model_terms
from recollect.planning.sizes import Sizes
from recollect.reproduction.memory_step import objective_of
from tests.tiny import ARCHITECTURES

SIZES = Sizes(100, 6, 3, 5, 20, chains=2, classes=4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("retrieve", ["items", "labels"])
@pytest.mark.parametrize("ages", [True, False])
@pytest.mark.parametrize("recency", [1.0, None])
def test_weights_are_counted_exactly(architecture: str, retrieve: str, ages: bool, recency: float | None) -> None:
    settings = ModelSettings(
        architecture,  # type: ignore[arg-type]
        width=8,
        hidden=(12, 10),
        heads=2,
        latents=3,
        blocks=2,
        retrieve=retrieve,  # type: ignore[arg-type]
        ages=ages,
        recency=recency,
    )
    sizes = replace(SIZES, model=settings)
    parameters = [parameter.numel() for parameter in objective_of(sizes).parameters()]
    terms = model_terms(sizes)
    assert terms.parameters == sum(parameters)
    assert terms.largest_parameter <= terms.parameters


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_labels_alone_take_less_than_items(architecture: str) -> None:
    settings = ModelSettings(architecture, width=8, hidden=(8,), heads=2, latents=3, blocks=1)  # type: ignore[arg-type]
    items = model_terms(replace(SIZES, feature_width=512, model=settings))
    labels = model_terms(replace(SIZES, feature_width=512, model=replace(settings, retrieve="labels")))
    assert labels.reading < items.reading
    assert labels.read < items.read
    assert labels.parameters <= items.parameters


def test_rows_are_padded_as_linear_layers_do() -> None:
    assert model.ALIGNED == blocks.ALIGNED
    even, odd = (model_terms(replace(SIZES, feature_width=width)) for width in (32, 31))
    assert odd.read == even.read
    assert odd.reading > even.reading
