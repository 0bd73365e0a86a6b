"""Every architecture with everything it can be given: all of it trains."""

import pytest
import torch

from recollect.config import StepSettings
from recollect.model.build import Architecture
from recollect.retrieval.kernels import LN_2
from recollect.retrieval.scoring import score
from recollect.training.step import Moment, Objective
from tests.tiny import ARCHITECTURES, make_objective, make_rows, make_system, nudged, seeded, without_gradient

BATCH = make_rows().rows(torch.arange(30, 60))


def differentiate(objective: Objective) -> None:
    objective(lambda: (BATCH, Moment()), seeded(0)).loss.backward()


@pytest.mark.parametrize("similarity", [False, True])
@pytest.mark.parametrize("ages", [False, True])
@pytest.mark.parametrize("retrieve", ["items", "labels"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_reach_every_parameter(
    architecture: Architecture, retrieve: str, ages: bool, similarity: bool
) -> None:
    objective = make_objective(
        StepSettings(samples=3), architecture, retrieve=retrieve, ages=ages, similarity=similarity
    )
    differentiate(nudged(objective))
    assert without_gradient(objective) == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_without_slots_it_is_the_plain_classifier(architecture: Architecture) -> None:
    system = make_system(architecture, num_retrieved=0, similarity=True)
    assert (system.query_generator, system.similarity, system.recency) == (None, None, None)
    objective = make_objective(architecture=architecture, num_retrieved=0)
    differentiate(objective)
    # The input's token has nothing to attend to: only what reads items stays as it was.
    reads_items = ("norm_query", "norm_source", "query", "key_value", "attended")
    left = [name for name in without_gradient(objective) if not set(name.split(".")) & set(reads_items)]
    assert left == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("num_retrieved", [1, 5])
def test_any_number_of_slots(architecture: Architecture, num_retrieved: int) -> None:
    result = make_objective(architecture=architecture, num_retrieved=num_retrieved)(
        lambda: (BATCH, Moment()), seeded(0)
    )
    assert result.loss.isfinite()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recency_is_so_many_logits_per_unit_of_time(architecture: Architecture) -> None:
    system, inputs = make_system(architecture, recency=0.7), BATCH.inputs
    plain = make_system(architecture, recency=None)
    with torch.no_grad():
        queries = system.queries(system.encode(inputs.features), inputs.own_keys)
        bare = plain.queries(plain.encode(inputs.features), inputs.own_keys)
    logits = score(queries, inputs.keys, inputs.visible, temperature=1.0, keep_bytes=1 << 20).kept
    assert logits is not None
    assert inputs.keys.width == bare.shape[2] + 1
    without = (bare @ inputs.keys.tile(0, 256)[:, :-1].T) / inputs.keys.width**0.5
    times = inputs.keys.tile(0, 256)[:, -1]
    torch.testing.assert_close(logits * LN_2 - without, (0.7 * times).expand_as(logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("estimator", ["greedy_baseline", "leave_one_out"])
def test_by_similarity_alone_all_that_is_left_trains(architecture: Architecture, estimator: str) -> None:
    objective = make_objective(
        StepSettings(samples=2, estimator=estimator),  # type: ignore[arg-type]
        architecture,
        similarity="only",
        recency=None,
    )
    assert objective.system.query_generator is None
    batch = make_rows(recency=False).rows(torch.arange(30, 60))
    nudged(objective)(lambda: (batch, Moment()), seeded(0)).loss.backward()
    assert without_gradient(objective) == []
