"""The parts of a system meet where they should: state, queries, answer."""

import pytest
import torch

from recollect.errors import SettingError
from recollect.model.build import Architecture
from recollect.model.query_generator import SimilarityResidual
from recollect.records import Items
from tests.tiny import ARCHITECTURES, CLASSES, KEY_DIM, RETRIEVED, make_rows, make_system, seeded

BATCH = make_rows().rows(torch.arange(40, 45))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("recency", [None, 0.1])
def test_queries_have_the_width_of_the_keys(architecture: Architecture, recency: float | None) -> None:
    system = make_system(architecture, recency=recency)
    queries = system.queries(system.encode(BATCH.inputs.features), BATCH.inputs.own_keys)
    assert queries.shape == (5, RETRIEVED, KEY_DIM + (recency is not None))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_queries_are_learned_then_mixed_then_given_their_recency(architecture: Architecture) -> None:
    system = make_system(architecture, similarity=True)
    state = system.encode(BATCH.inputs.features)
    assert isinstance(system.similarity, SimilarityResidual)
    assert system.query_generator is not None
    assert system.recency is not None
    with torch.no_grad():
        system.similarity.alpha_logit.fill_(-1.0)
        system.recency.layer.weight.normal_(generator=seeded(0))
        queries = system.queries(state, BATCH.inputs.own_keys)
        alpha = torch.sigmoid(torch.tensor(-1.0))
        mixed = alpha * system.query_generator(state) + (1 - alpha) * BATCH.inputs.own_keys[:, None]
        summary = state.mean(1) if architecture == "perceiver" else state
        recency = system.recency.initial * system.recency.layer(summary).exp()
    torch.testing.assert_close(queries, torch.cat([mixed, recency[..., None]], dim=-1))
    assert len(recency.unique()) == recency.numel()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_state_is_read_by_the_classifier(architecture: Architecture) -> None:
    system = make_system(architecture)
    items, _ = BATCH.inputs.show(torch.arange(15).view(5, 1, RETRIEVED), features=True, ages=True)
    keep = torch.ones(5, dtype=torch.bool)
    answer = system.classify(system.encode(BATCH.inputs.features), items, keep)
    assert answer.log_probs.shape == (5, 1, CLASSES)
    other = BATCH.inputs.features | {"amount": BATCH.inputs.features["amount"] + 0.5}
    assert not torch.equal(answer.log_probs, system.classify(system.encode(other), items, keep).log_probs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_retrieval_parameters_are_those_of_the_queries(architecture: Architecture) -> None:
    system = make_system(architecture, similarity=True)
    found = {id(parameter) for parameter in system.retrieval_parameters()}
    named = {name.split(".")[0] for name, parameter in system.named_parameters() if id(parameter) in found}
    rest = {name.split(".")[0] for name, parameter in system.named_parameters() if id(parameter) not in found}
    assert named == {"query_generator", "similarity", "recency"}
    assert not named & rest


def test_a_system_without_slots_has_nothing_to_retrieve_with() -> None:
    system = make_system(num_retrieved=0, similarity=True)
    assert list(system.retrieval_parameters()) == []
    nothing = Items(torch.zeros(5, 1, 0, dtype=torch.bool), {})
    state = system.encode(BATCH.inputs.features)
    assert system.classify(state, nothing, torch.ones(5, dtype=torch.bool)).log_probs.isfinite().all()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_by_similarity_alone_the_own_key_asks_in_every_slot_and_nothing_of_it_is_learned(
    architecture: Architecture,
) -> None:
    system = make_system(architecture, similarity="only", recency=None)
    queries = system.queries(system.encode(BATCH.inputs.features), BATCH.inputs.own_keys)
    assert torch.equal(queries, BATCH.inputs.own_keys[:, None].expand(-1, RETRIEVED, -1))
    assert list(system.retrieval_parameters()) == []


def test_similarity_alone_has_no_recency() -> None:
    with pytest.raises(SettingError, match="set recency to None"):
        make_system(similarity="only", recency=0.1)
