"""Records refuse shapes that disagree, and can't be changed once made."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from jaxtyping import TypeCheckError

from recollect.records import Answer, Clock, FeatureSpec, Items


def test_labels_and_ages_stand_in_the_slots_they_belong_to() -> None:
    filled = torch.ones(2, 1, 3, dtype=torch.bool)
    Items(filled, {}, torch.zeros(2, 1, 3, dtype=torch.long), torch.zeros(2, 1, 3))
    with pytest.raises(TypeCheckError, match="labels"):
        Items(filled, {}, torch.zeros(2, 1, 2, dtype=torch.long))
    with pytest.raises(TypeCheckError, match="ages"):
        Items(filled, {}, ages=torch.zeros(2, 2, 3))
    with pytest.raises(TypeCheckError, match="filled"):
        Items(filled.float(), {})


def test_an_answer_has_one_distribution_per_chain() -> None:
    Answer(torch.zeros(2, 3, 5), torch.zeros(2, 3, 4))
    with pytest.raises(TypeCheckError, match="weights"):
        Answer(torch.zeros(2, 3, 5), torch.zeros(2, 1, 4))


def test_specs_compare_by_value_and_are_frozen() -> None:
    spec = FeatureSpec("text", "embedded", 5)
    assert spec == FeatureSpec("text", "embedded", 5)
    assert spec != FeatureSpec("text", "embedded", 6)
    with pytest.raises(FrozenInstanceError):
        spec.width = 6  # type: ignore[misc]


def test_nanoseconds_with_no_origin_lose_nothing() -> None:
    moments = torch.tensor([1_400_000_000_000_000_000, 1_400_000_000_500_000_000])
    seconds = Clock(unit=10**9).model_time(moments)
    assert seconds.tolist() == [1_400_000_000.0, 1_400_000_000.5]
