"""The loop: stopped anywhere and resumed it ends with the same bits; its settings do what they say."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import TensorBoardLogger
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from recollect.checkpoint import complete_checkpoints, read_checkpoint
from recollect.config import Dropouts, RehearsalMix, StepSettings, TrainSettings
from recollect.errors import CheckpointError, SettingError
from recollect.training.batches import Batch
from recollect.training.loop import Progress, Run, initial_groups, moment_at, step_generator, train
from recollect.training.step import Moment, Objective, StepResult
from tests.tiny import CLASSES, make_objective, make_rows, seeded

SOURCE = make_rows().between(20, 50)
VALIDATION = make_rows().between(50, 60)
STEP = StepSettings(samples=2, dropouts=Dropouts(0.2, 0.1, 0.1), rehearsal=RehearsalMix(0.5))
RUN = Run(steps=6, batch_size=4, seed=3, validate_every=2, validation_size=4, checkpoint_every=3)
PLAIN = TrainSettings(learning_rate=1e-3, scheduled=False)
ALL_SCHEDULES = TrainSettings(learning_rate=0.02, last_temperature=0.1, entropy_bonus=0.05, clip_jointly=False)
IMPATIENT = TrainSettings(learning_rate=0.3, patience=1)


class Worsening(Objective):
    """An objective whose validation loss only grows: the further its weights go, the worse."""

    def validate(self, batch: Batch, generator: torch.Generator, *, rehearsed: bool) -> Tensor:
        return torch.stack([p.detach().square().mean() for p in self.parameters()]).sum()


def make_for(settings: TrainSettings, seed: int = 0) -> Objective:
    objective = make_objective(STEP, seed=seed)
    return Worsening(objective.system, STEP, CLASSES, ages=True) if settings is IMPATIENT else objective


def run_once(settings: TrainSettings, run: Run, validation: bool = True) -> tuple[Objective, Progress]:
    objective = make_for(settings)
    progress = train(objective, SOURCE, VALIDATION if validation else None, settings, run)
    return objective, progress


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class Killed(Exception):
    pass


def kill_at(step: int) -> Callable[[int, StepResult], None]:
    def on_step(now: int, result: StepResult) -> None:
        if now == step:
            raise Killed

    return on_step


@pytest.fixture(scope="module", params=[PLAIN, ALL_SCHEDULES, IMPATIENT], ids=["plain", "schedules", "early stopping"])
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainSettings, Objective, Progress, Path]:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    objective, progress = run_once(request.param, replace(RUN, checkpoints=folder))
    assert (progress.step < RUN.steps) == (request.param is IMPATIENT)
    return request.param, objective, progress, folder


Whole = tuple[TrainSettings, Objective, Progress, Path]


def assert_same_end(whole: Whole, objective: Objective, progress: Progress, folder: Path) -> None:
    """The weights, what was best, and in the last checkpoint the state of the optimiser, bit for bit."""
    _, expected, expected_progress, expected_folder = whole
    assert same(objective.state_dict(), expected.state_dict())
    assert same(progress.best_weights, expected_progress.best_weights)
    for name in ("step", "best_loss", "best_step"):
        assert getattr(progress, name) == getattr(expected_progress, name)
    # Where patience ended the run, it may have been stopped at a step that has a checkpoint of its own.
    last, expected_last = (read_checkpoint(complete_checkpoints(each)[-1]) for each in (folder, expected_folder))
    if last.step == expected_last.step:
        assert same(last.tensors, expected_last.tensors)
        assert last.state == expected_last.state
        assert any(name.startswith("optimizer.") for name in last.tensors)


@pytest.mark.parametrize("stop", range(1, RUN.steps + 1))
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(whole: Whole, stop: int, tmp_path: Path) -> None:
    run = replace(RUN, checkpoints=tmp_path)
    run_once(whole[0], replace(run, stop_after=stop))
    # A new process has new weights, which the checkpoint must replace.
    objective = make_for(whole[0], seed=99)
    progress = train(objective, SOURCE, VALIDATION, whole[0], run)
    assert_same_end(whole, objective, progress, tmp_path)


def test_a_run_that_is_stopped_at_every_step_ends_with_the_same_bits(whole: Whole, tmp_path: Path) -> None:
    for stop in range(1, RUN.steps + 1):
        objective, progress = run_once(whole[0], replace(RUN, checkpoints=tmp_path, stop_after=stop))
    assert_same_end(whole, objective, progress, tmp_path)


@pytest.mark.parametrize("step", [0, 3])
def test_a_run_that_is_killed_goes_on_from_its_last_checkpoint(whole: Whole, step: int, tmp_path: Path) -> None:
    run = replace(RUN, checkpoints=tmp_path)
    with pytest.raises(Killed):
        run_once(whole[0], replace(run, on_step=kill_at(step)))
    steps: list[int] = []
    objective, progress = run_once(whole[0], replace(run, on_step=lambda now, _: steps.append(now)))
    assert steps[0] == step // RUN.checkpoint_every * RUN.checkpoint_every
    assert_same_end(whole, objective, progress, tmp_path)


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    run = replace(RUN, checkpoints=tmp_path)
    first, _ = run_once(PLAIN, run)
    steps: list[int] = []
    again, _ = run_once(PLAIN, replace(run, on_step=lambda now, _: steps.append(now)))
    assert steps == []
    assert same(first.state_dict(), again.state_dict())


def test_checkpoints_are_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path))
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-00000003", "step-00000006"]


def test_without_validation_the_last_weights_stand(tmp_path: Path) -> None:
    objective, progress = run_once(PLAIN, replace(RUN, checkpoints=tmp_path), validation=False)
    assert (progress.best_weights, progress.best_loss) == ({}, float("inf"))
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path / "other", stop_after=5), validation=False)
    resumed, _ = run_once(PLAIN, replace(RUN, checkpoints=tmp_path / "other"), validation=False)
    assert same(objective.state_dict(), resumed.state_dict())


@pytest.mark.parametrize(("name", "other"), [("seed", 4), ("steps", 7), ("batch_size", 5), ("validate_every", 9)])
def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path, name: str, other: int) -> None:
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path, stop_after=1))
    message = (
        f"step-00000001 is of a run with {name} {getattr(RUN, name)}, this one has {other}: "
        "use another directory, or remove it to start anew"
    )
    with pytest.raises(CheckpointError, match=message):
        run_once(PLAIN, replace(RUN, checkpoints=tmp_path, **{name: other}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [dict(estimator="multi_sample"), dict(rehearsal=RehearsalMix(0.9)), dict(dropouts=Dropouts(item=0.5))],
    ids=str,
)
def test_the_checkpoint_of_another_objective_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run = replace(RUN, checkpoints=tmp_path, stop_after=1)
    run_once(PLAIN, run)
    with pytest.raises(CheckpointError, match=f"is of a run with {next(iter(change))} .*: use another directory"):
        train(make_objective(replace(STEP, **change)), SOURCE, VALIDATION, PLAIN, run)


def test_a_run_that_stops_early_leaves_its_last_step(tmp_path: Path) -> None:
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path, stop_when=lambda step: step == 2))
    assert [path.name for path in complete_checkpoints(tmp_path)] == ["step-00000002"]


def test_the_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path, stop_after=1))
    with pytest.raises(CheckpointError, match=f"with learning_rate {PLAIN.learning_rate}, this one has 0.5: use"):
        run_once(replace(PLAIN, learning_rate=0.5), replace(RUN, checkpoints=tmp_path))


@pytest.mark.parametrize("changes", [dict(architecture="mlp"), dict(num_retrieved=5)], ids=str)
def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    run = replace(RUN, checkpoints=tmp_path, stop_after=1)
    run_once(PLAIN, run)
    with pytest.raises(CheckpointError, match="is of a run with num_classes 3, this one has 4: use another directory"):
        train(make_objective(STEP, classes=4), SOURCE, None, PLAIN, run)
    with pytest.raises(CheckpointError, match="is of another model: use another directory, or remove it"):
        train(make_objective(STEP, **changes), SOURCE, None, PLAIN, run)  # type: ignore[arg-type]


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    run_once(PLAIN, replace(RUN, checkpoints=tmp_path, stop_after=1))
    (tmp_path / "step-00000001" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="remove it and resume from the one before"):
        run_once(PLAIN, replace(RUN, checkpoints=tmp_path))


# Seeds.


def test_a_seed_repeats_and_another_differs() -> None:
    one, again, other = (run_once(PLAIN, replace(RUN, seed=seed), validation=False)[0] for seed in (3, 3, 4))
    assert same(one.state_dict(), again.state_dict())
    assert not same(one.state_dict(), other.state_dict())


def test_generators_of_neighbouring_steps_seeds_ranks_and_uses_share_nothing() -> None:
    keys = [(0, 0, 0, "data"), (1, 0, 0, "data"), (0, 1, 0, "data"), (0, 0, 1, "data"), (0, 0, 0, "choices")]
    numbers = [torch.rand(4, generator=step_generator(*key)).tolist() for key in keys]
    assert len({tuple(row) for row in numbers}) == len(keys)
    assert numbers[0] == torch.rand(4, generator=step_generator(0, 0)).tolist()


# Early stopping.


def losses_of(objective: Objective) -> float:
    """Plain plus rehearsed validation loss, as the loop takes it."""
    batch = VALIDATION.batch(RUN.validation_size, step_generator(RUN.seed, -1))
    generator = step_generator(RUN.seed, -1, use="choices")
    return sum(float(objective.validate(batch, generator, rehearsed=rehearsed)) for rehearsed in (False, True))


def test_early_stopping_restores_the_best_weights() -> None:
    long = replace(RUN, steps=40)
    objective, progress = run_once(IMPATIENT, long)
    assert progress.step < 40
    assert progress.step - progress.best_step == RUN.validate_every
    assert same(objective.state_dict(), progress.best_weights)
    assert losses_of(objective) == progress.best_loss
    # They are the weights the run had at its best step.
    stopped, _ = run_once(IMPATIENT, replace(long, stop_after=progress.best_step))
    assert same(stopped.state_dict(), progress.best_weights)


def test_the_best_loss_is_the_least_of_those_seen() -> None:
    seen: dict[int, float] = {}
    for stop in range(RUN.validate_every, RUN.steps + 1, RUN.validate_every):
        seen[stop] = losses_of(run_once(ALL_SCHEDULES, replace(RUN, stop_after=stop))[0])
    # At the last step the best weights are put in place already.
    _, progress = run_once(ALL_SCHEDULES, RUN)
    assert progress.best_loss == min(seen.values())


def test_the_last_step_is_validated_whenever_it_comes() -> None:
    _, progress = run_once(PLAIN, replace(RUN, steps=3, validate_every=100))
    assert progress.best_step == 3


def test_validation_takes_no_more_inputs_at_once_than_training() -> None:
    sizes: list[int] = []

    class Counting(Objective):
        def validate(self, batch: Batch, generator: torch.Generator, *, rehearsed: bool) -> Tensor:
            sizes.append(len(batch.targets))
            return torch.tensor(float(batch.targets.shape[0]))

    objective = Counting(make_objective(STEP).system, STEP, CLASSES, ages=True)
    progress = train(objective, SOURCE, VALIDATION, PLAIN, replace(RUN, steps=1, validation_size=10))
    assert sizes == [4, 4, 4, 4, 2, 2]  # plain and rehearsed
    # Every input counts alike.
    assert progress.best_loss == pytest.approx(2 * (4 * 4 + 4 * 4 + 2 * 2) / 10)


def test_without_rehearsal_only_the_plain_loss_counts() -> None:
    objective = make_objective(StepSettings(samples=2))
    progress = train(objective, SOURCE, VALIDATION, PLAIN, replace(RUN, steps=1))
    batch = VALIDATION.batch(RUN.validation_size, step_generator(RUN.seed, -1))
    assert progress.best_loss == float(objective.validate(batch, seeded(0), rehearsed=False))


def test_patience_without_validation_is_refused() -> None:
    with pytest.raises(SettingError, match="patience 1 counts validations, but there is no validation source: give"):
        run_once(IMPATIENT, RUN, validation=False)


# The optimiser.


def gradient_norms(settings: TrainSettings) -> tuple[float, float]:
    """Norms that the optimiser meets at the first step, of the retrieval parameters and of the rest."""
    objective = make_objective(STEP)
    norms: list[tuple[float, float]] = []

    def watch(optimizer: Optimizer, args: object, kwargs: object) -> None:
        rest, retrieval = (
            torch.cat([p.grad.flatten() for p in group["params"] if p.grad is not None]).norm().item()
            for group in initial_groups(objective, settings)
        )
        norms.append((retrieval, rest))

    hook = register_optimizer_step_pre_hook(watch)
    train(objective, SOURCE, None, settings, replace(RUN, steps=1))
    hook.remove()
    return norms[0]


def test_gradients_are_clipped_jointly_or_group_by_group() -> None:
    free = gradient_norms(replace(PLAIN, clip=None))
    assert min(free) > 1e-3
    jointly = gradient_norms(replace(PLAIN, clip=1e-3))
    assert (jointly[0] ** 2 + jointly[1] ** 2) ** 0.5 == pytest.approx(1e-3, rel=1e-2)
    assert jointly[0] / jointly[1] == pytest.approx(free[0] / free[1], rel=1e-3)
    apart = gradient_norms(replace(PLAIN, clip=1e-3, clip_jointly=False))
    assert apart == pytest.approx((1e-3, 1e-3), rel=1e-2)
    assert gradient_norms(replace(PLAIN, clip=1e3)) == pytest.approx(free)


def moved(settings: TrainSettings, run: Run = RUN) -> tuple[float, float]:
    """The furthest any retrieval weight, and any other, goes in one step."""
    objective, start = make_objective(STEP), make_objective(STEP)
    train(objective, SOURCE, None, settings, replace(run, stop_after=1))
    retrieval = {id(p) for p in objective.system.retrieval_parameters()}
    distances: dict[bool, float] = {True: 0.0, False: 0.0}
    for after, before in zip(objective.parameters(), start.parameters(), strict=True):
        distance = float((after - before).detach().abs().max())
        distances[id(after) in retrieval] = max(distances[id(after) in retrieval], distance)
    return distances[True], distances[False]


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_retrieval_has_its_own_rate(factor: float) -> None:
    # The first step of Adam is as long as its rate.
    settings = replace(PLAIN, weight_decay=0.0, retrieval_rate_factor=factor)
    assert moved(settings) == pytest.approx((factor * 1e-3, 1e-3), rel=1e-2)


def test_the_rate_follows_its_schedule() -> None:
    settings = replace(PLAIN, weight_decay=0.0, scheduled=True, retrieval_rate_factor=1.0)
    assert moved(settings, replace(RUN, steps=50)) == pytest.approx((1e-3 / 5, 1e-3 / 5), rel=1e-2)


def test_a_system_without_slots_has_one_group() -> None:
    plain = make_objective(STEP, num_retrieved=0)
    groups = initial_groups(plain, PLAIN)
    assert [group["lr"] for group in groups] == [1e-3]
    before = [p.detach().clone() for p in plain.parameters()]
    train(plain, SOURCE, VALIDATION, replace(PLAIN, clip_jointly=False), replace(RUN, steps=2))
    assert not all(torch.equal(one, other) for one, other in zip(before, plain.parameters(), strict=True))


class Watching(Objective):
    """An objective that keeps the moments it was trained at."""

    moments: list[Moment]

    def forward(self, take: Callable[[], tuple[Batch, Moment]], generator: torch.Generator) -> StepResult:
        self.moments.append(take()[1])
        result: StepResult = super().forward(take, generator)
        return result


def test_temperature_and_bonus_follow_their_schedules() -> None:
    objective = Watching(make_objective(STEP).system, STEP, CLASSES, ages=True)
    objective.moments = []
    train(objective, SOURCE, None, ALL_SCHEDULES, RUN)
    assert objective.moments == [moment_at(ALL_SCHEDULES, step, RUN.steps) for step in range(RUN.steps)]
    assert objective.moments[0] == Moment(1.0, 0.05)
    assert objective.moments[-1].temperature == pytest.approx(0.1)
    assert objective.moments[-1].entropy_bonus == pytest.approx(0.05 / 6)


# What is told of a run, and how it can be ended.


def test_every_step_is_told() -> None:
    told: list[tuple[int, StepResult]] = []
    run_once(PLAIN, replace(RUN, on_step=lambda step, result: told.append((step, result))))
    assert [step for step, _ in told] == list(range(RUN.steps))
    assert all(result.nll.isfinite() and not result.nll.requires_grad for _, result in told)


def test_a_run_stops_when_told_to() -> None:
    asked: list[int] = []

    def enough(step: int) -> bool:
        asked.append(step)
        return step == 3

    _, progress = run_once(PLAIN, replace(RUN, stop_when=enough))
    assert asked == [0, 1, 2, 3]
    assert progress.step == 3


def test_loggers_are_told_what_the_bar_shows(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fabric = Fabric(accelerator="cpu", devices=1, loggers=TensorBoardLogger(tmp_path))
    nll: list[float] = []
    run = replace(RUN, on_step=lambda _, result: nll.append(float(result.nll)))
    train(make_objective(STEP), SOURCE, None, PLAIN, run, fabric)
    fabric.logger.finalize("success")
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    found = EventAccumulator(str(events)).Reload()
    assert {"nll", "entropy", "age"} <= set(found.Tags()["scalars"])
    assert [event.value for event in found.Scalars("nll")] == pytest.approx(nll)
    assert [event.step for event in found.Scalars("age")] == list(range(RUN.steps))


def test_mixed_precision_trains() -> None:
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    results: list[StepResult] = []
    objective = make_objective(STEP)
    run = replace(RUN, on_step=lambda _, result: results.append(result))
    progress = train(objective, SOURCE, VALIDATION, ALL_SCHEDULES, run, fabric)
    assert progress.step == RUN.steps
    assert all(value.isfinite() and value.dtype == torch.float32 for result in results for value in result)
    assert all(p.dtype == torch.float32 and bool(p.isfinite().all()) for p in objective.parameters())
    exact, _ = run_once(ALL_SCHEDULES, RUN)
    assert not same(objective.state_dict(), exact.state_dict())


TWO_DEVICES = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from lightning_fabric import Fabric
from safetensors.torch import save_file
from tests.training.test_loop import ALL_SCHEDULES, RUN, SOURCE, STEP, VALIDATION
from tests.tiny import make_objective
from dataclasses import replace
from recollect.training.loop import train

if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    objective = make_objective(STEP)
    train(objective, SOURCE, VALIDATION, ALL_SCHEDULES, replace(RUN, checkpoints=Path(sys.argv[1]) / "steps"), fabric)
    weights = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    save_file(weights, f"{sys.argv[1]}/rank{fabric.global_rank}.safetensors")
"""


def test_two_devices_end_with_the_same_weights(tmp_path: Path) -> None:
    script = tmp_path / "two_devices.py"
    script.write_text(TWO_DEVICES)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, re.sub(r"\n+", "\n", done.stderr)[-2000:]
    first, second = (load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(2))
    assert same(first, second)
    # Each had data of its own, so that it is not the run of one device.
    assert not same(first, run_once(ALL_SCHEDULES, RUN)[0].state_dict())
    assert len(complete_checkpoints(tmp_path / "steps")) == 2
