"""The training loop: batches in, weights out; stopped at any step and resumed, it ends with the same bits.

Devices, precision, data parallelism and loggers come from Lightning Fabric. Every step is seeded by (seed, step, rank),
so that nothing but the checkpoint has to be carried over. Knows objectives, not what they estimate.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Generator, Tensor, nn
from torch.optim import AdamW, Optimizer

from recollect.checkpoint import Checkpoint, complete_checkpoints, read_checkpoint, write_checkpoint
from recollect.config import TrainSettings
from recollect.errors import CheckpointError, SettingError
from recollect.training.batches import Batch, BatchSource
from recollect.training.progress import StepBar
from recollect.training.schedules import exponential, linear_to_zero, warmup_then_cosine
from recollect.training.step import Moment, Objective, StepResult


@dataclass(frozen=True)
class Run:
    """Sizes and places of one run, which change how long it takes and where it stops, not what it optimises."""

    steps: int
    batch_size: int
    seed: int = 0
    validate_every: int = 100
    validation_size: int = 512
    checkpoints: Path | None = None
    checkpoint_every: int = 500
    stop_after: int | None = None
    bar: StepBar | None = None
    on_step: Callable[[int, StepResult], None] | None = None
    stop_when: Callable[[int], bool] | None = None


@dataclass
class Progress:
    """What a run has come to so far; all of it goes into the checkpoint."""

    step: int = 0
    best_loss: float = float("inf")
    best_step: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def patience_ended(self, settings: TrainSettings, validate_every: int) -> bool:
        waited = self.step - self.best_step
        return settings.patience is not None and waited >= settings.patience * validate_every


def train(
    objective: Objective,
    source: BatchSource,
    validation: BatchSource | None,
    settings: TrainSettings,
    run: Run,
    fabric: Fabric | None = None,
) -> Progress:
    """Train until the steps are done, or until validation stopped improving; then the best weights are in place.

    `validation` must come from the past only. Its loss is plain plus rehearsed: on the plain one alone, the model that
    ignores history would win.
    """
    if settings.patience is not None and validation is None:
        raise SettingError(
            f"patience {settings.patience} counts validations, but there is no validation source: give one, "
            "or set patience to None"
        )
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    optimizer = make_optimizer(objective, settings)
    identity = _identity(objective, settings, run)
    module, wrapped = fabric.setup(objective, optimizer)
    # After the set-up: then the optimiser's state goes where the weights are.
    progress = _resume(objective, optimizer, run, identity)
    rates = [group["lr"] for group in initial_groups(objective, settings)]
    saved = progress.step
    last = run.steps if run.stop_after is None else min(run.steps, run.stop_after)
    for step, batch in _batches(source, run, fabric, progress.step, last):
        if progress.patience_ended(settings, run.validate_every) or (run.stop_when and run.stop_when(step)):
            break
        generator = step_generator(run.seed, step, fabric.global_rank, "choices", fabric.device)
        _set_rates(optimizer, rates, warmup_then_cosine(step, run.steps) if settings.scheduled else 1.0)
        now = (batch, moment_at(settings, step, run.steps))
        result = module(partial(_same, now), generator)
        fabric.backward(result.loss)
        _clip(objective, settings)
        wrapped.step()
        wrapped.zero_grad()
        progress.step += 1
        _watch(fabric, run, step, result)
        if validation is not None and (progress.step % run.validate_every == 0 or progress.step == run.steps):
            _validate(objective, validation, run, progress)
        if progress.step % run.checkpoint_every == 0:
            _save(objective, optimizer, progress, run, identity, fabric)
            saved = progress.step
    if progress.step != saved:
        _save(objective, optimizer, progress, run, identity, fabric)
    done = progress.step == run.steps or progress.patience_ended(settings, run.validate_every)
    if done and progress.best_weights:
        objective.load_state_dict(progress.best_weights)
    return progress


def _batches(source: BatchSource, run: Run, fabric: Fabric, first: int, last: int) -> Iterator[tuple[int, Batch]]:
    """The batch of every step; the next one's inputs are read from wherever they are while this one computes."""

    def read(step: int) -> Batch:
        return source.batch(run.batch_size, step_generator(run.seed, step, fabric.global_rank, "data"))

    with ThreadPoolExecutor(1, "next-batch") as reader:
        following = reader.submit(read, first) if first < last else None
        for step in range(first, last):
            assert following is not None
            batch = following.result()
            following = reader.submit(read, step + 1) if step + 1 < last else None
            yield step, batch


def _same(now: tuple[Batch, Moment]) -> tuple[Batch, Moment]:
    return now


def step_generator(
    seed: int, step: int, rank: int = 0, use: str = "data", device: torch.device | str = "cpu"
) -> Generator:
    """A generator for one use in one step: hashed, so that neighbouring seeds and steps share nothing."""
    digest = hashlib.sha256(f"{seed} {step} {rank} {use}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def moment_at(settings: TrainSettings, step: int, steps: int) -> Moment:
    return Moment(
        exponential(step, steps, settings.first_temperature, settings.last_temperature),
        linear_to_zero(step, steps, settings.entropy_bonus),
    )


def initial_groups(objective: Objective, settings: TrainSettings) -> list[dict[str, object]]:
    """Two parameter groups: retrieval with its own learning rate, and the rest."""
    retrieval = list(objective.system.retrieval_parameters())
    known = {id(parameter) for parameter in retrieval}
    rest = [parameter for parameter in objective.parameters() if id(parameter) not in known]
    groups = [{"params": rest, "lr": settings.learning_rate}]
    if retrieval:
        groups.append({"params": retrieval, "lr": settings.learning_rate * settings.retrieval_rate_factor})
    return groups


def make_optimizer(objective: Objective, settings: TrainSettings) -> AdamW:
    # One pass over all weights: a loop over tensors of a few thousand numbers takes several times as long.
    return AdamW(initial_groups(objective, settings), weight_decay=settings.weight_decay, fused=True)


def _set_rates(optimizer: Optimizer, rates: list[object], factor: float) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        assert isinstance(rate, float)
        group["lr"] = rate * factor


def _clip(objective: Objective, settings: TrainSettings) -> None:
    """Bound the gradient's norm, jointly or retrieval and the rest apart: retrieval's grows as 1/temperature."""
    if settings.clip is None:
        return
    groups = [list(objective.parameters())]
    if not settings.clip_jointly:
        groups = [group["params"] for group in initial_groups(objective, settings)]  # type: ignore[misc]
    for parameters in groups:
        nn.utils.clip_grad_norm_(parameters, settings.clip)


def _watch(fabric: Fabric, run: Run, step: int, result: StepResult) -> None:
    if run.on_step is not None:
        run.on_step(step, result)
    if run.bar is not None:
        run.bar.update(step + 1, result)
    if fabric.loggers:
        values = {"nll": result.nll, "entropy": result.entropy, "age": result.age}
        fabric.log_dict({name: float(value) for name, value in values.items()}, step=step)


def _validate(objective: Objective, validation: BatchSource, run: Run, progress: Progress) -> None:
    """The same inputs every time, no more at once than a step trains with: validation needs no memory of its own.

    The best weights so far are kept.
    """
    loss, kinds = 0.0, (False, True) if objective.settings.rehearsal.probability > 0 else (False,)
    for index, first in enumerate(range(0, run.validation_size, run.batch_size)):
        size = min(run.batch_size, run.validation_size - first)
        batch = validation.batch(size, step_generator(run.seed, -1 - index))
        generator = step_generator(run.seed, -1 - index, use="choices", device=batch.targets.device)
        for rehearsed in kinds:
            loss += float(objective.validate(batch, generator, rehearsed=rehearsed)) * size / run.validation_size
    if loss < progress.best_loss:
        progress.best_loss, progress.best_step = loss, progress.step
        progress.best_weights = {name: tensor.clone() for name, tensor in objective.state_dict().items()}


def _identity(objective: Objective, settings: TrainSettings, run: Run) -> dict[str, Any]:
    """What decides the weights a run ends with, apart from the data: a run resumed with another one is refused."""
    sizes = ("steps", "batch_size", "seed", "validate_every", "validation_size")
    shown = {"features": objective.features, "ages": objective.ages, "num_classes": objective.num_classes}
    return {**{name: getattr(run, name) for name in sizes}, **asdict(settings), **asdict(objective.settings), **shown}


def _save(
    objective: Objective,
    optimizer: Optimizer,
    progress: Progress,
    run: Run,
    identity: dict[str, Any],
    fabric: Fabric,
) -> None:
    if run.checkpoints is None or not fabric.is_global_zero:
        return
    tensors = {f"weights.{name}": tensor for name, tensor in objective.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in progress.best_weights.items()}
    for index, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    state = {
        "run": identity,
        "best_loss": progress.best_loss if progress.best_weights else None,
        "best_step": progress.best_step,
    }
    write_checkpoint(run.checkpoints, Checkpoint(progress.step, tensors, state))


def _resume(objective: Objective, optimizer: Optimizer, run: Run, identity: dict[str, Any]) -> Progress:
    """Go on from the newest checkpoint, if there is one of this very run."""
    found = complete_checkpoints(run.checkpoints) if run.checkpoints is not None else []
    if not found:
        return Progress()
    checkpoint = read_checkpoint(found[-1])
    for name, value in identity.items():
        if checkpoint.state["run"].get(name) != value:
            raise CheckpointError(
                f"checkpoint {found[-1]} is of a run with {name} {checkpoint.state['run'].get(name)}, this one has "
                f"{value}: use another directory, or remove it to start anew"
            )
    try:
        objective.load_state_dict(_under("weights.", checkpoint.tensors))
    except RuntimeError as error:
        raise CheckpointError(
            f"checkpoint {found[-1]} is of another model: use another directory, or remove it to start anew"
        ) from error
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _under("optimizer.", checkpoint.tensors).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    best = checkpoint.state["best_loss"]
    return Progress(
        checkpoint.step,
        float("inf") if best is None else best,
        checkpoint.state["best_step"],
        _under("best.", checkpoint.tensors),
    )


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
