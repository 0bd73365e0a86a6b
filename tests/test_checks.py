"""The contracts of `checks.py`, held to by all architectures with and without context."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recollect.config import RECIPES, RehearsalMix, StepSettings, TrainSettings, with_model
from recollect.data.synthetic import RotatingTask
from recollect.predictor import Predictor
from recollect.records import FeatureSpec
from recollect.training.batches import HistoryRows, episode_batch
from recollect.training.loop import Run, train
from recollect.training.objective import make_objective as build_objective
from tests import checks
from tests.tiny import ARCHITECTURES, CLASSES, make_history, make_objective, make_rows, rows_of, seeded

CASES = [(architecture, kind) for architecture in ARCHITECTURES for kind in ("items", "labels", "no_context")]

Make = Callable[[int], Predictor]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def make(request: pytest.FixtureRequest) -> Make:
    """Predictors trained for a few steps, by their seed."""
    architecture, kind = request.param
    retrieve = "labels" if kind == "labels" else "items"
    made: dict[int, Predictor] = {}

    def trained(seed: int) -> Predictor:
        objective = make_objective(
            StepSettings(samples=2, rehearsal=RehearsalMix(0.5)),
            architecture,
            retrieve=retrieve,
            num_retrieved=0 if kind == "no_context" else 3,
            seed=seed,
        )
        source = make_rows().between(20, 40)
        train(objective, source, None, TrainSettings(learning_rate=0.01), Run(2, 8, seed))
        return Predictor(objective.system, retrieve=retrieve)

    def remembered(seed: int) -> Predictor:
        # Seed 1 is made anew each time: its check is that this changes nothing.
        if seed == 1 or seed not in made:
            made[seed] = trained(seed)
        return made[seed]

    return remembered


def make_some(new_class: bool) -> HistoryRows:
    history = make_history()
    if new_class:
        history.labels[30:34] = CLASSES + 1
    return rows_of(history)


ROWS = make_some(new_class=False)
# More than a tile of inputs, some of which see nothing.
INPUTS = ROWS.rows(torch.arange(60)).inputs


@pytest.mark.parametrize("new_class", [False, True], ids=["known classes", "new class"])
@pytest.mark.parametrize("row", [0, 10, 35])
def test_sees_no_future(make: Make, row: int, new_class: bool) -> None:
    checks.check_sees_no_future(make(0), make_some(new_class), row)


def test_changes_no_input(make: Make) -> None:
    checks.check_changes_no_input(make(0), ROWS, INPUTS)


@pytest.mark.parametrize("new_class", [False, True], ids=["known classes", "new class"])
def test_batch_equals_one_by_one(make: Make, new_class: bool) -> None:
    checks.check_batch_equals_one_by_one(make(0), make_some(new_class).rows(torch.arange(60)).inputs)


def test_empty_history_works(make: Make) -> None:
    checks.check_empty_history_works(make(0), ROWS, INPUTS)


def test_seed_repeats(make: Make) -> None:
    checks.check_seed_repeats(make, INPUTS)


def test_save_and_load_agree(make: Make, tmp_path: Path) -> None:
    checks.check_save_and_load_agree(make(0), make, INPUTS, tmp_path)


@pytest.mark.parametrize("width", [16, 21, 65])
def test_batch_equals_one_by_one_with_a_history_for_each_input(width: int) -> None:
    task = replace(RotatingTask.draw(seeded(0), dimensions=width, dates=False), history_size=40)
    specs = [FeatureSpec("x", "embedded", task.width)]
    objective = build_objective(
        with_model(RECIPES["default"], num_retrieved=5, width=16, blocks=1),
        specs,
        specs,
        key_dim=task.width,
        num_classes=2,
        label_classes=2,
        has_times=True,
        seed=0,
    )
    moments = torch.rand(60, generator=seeded(1), dtype=torch.float64)
    inputs = episode_batch(task.sample(moments, seeded(2)), recency=True).inputs
    checks.check_batch_equals_one_by_one(Predictor(objective.system), inputs)
