"""What looking things up costs and what it brings: accuracy after the cutoff against time and memory.

On the electricity market, labels known at once and full items retrieved, over the number of slots and over how many of
the last items an input sees (K). Judged is the network alone, asked warily, as a predictor answers by itself. Times are
milliseconds of CPU on one thread, so that other work on the machine counts little, and each comes with its ratio to the
same network without slots, measured in turns with it.
"""

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.config import Recipe, Scale, recipe_named
from recollect.console import plain_console
from recollect.evaluation.metrics import accuracy, mean_over_bins
from recollect.evaluation.output import claim, finish, save_figure
from recollect.evaluation.results import summary
from recollect.evaluation.stream import Stream
from recollect.history.key_table import TableView
from recollect.inputs import Inputs
from recollect.predictor import TILE_ROWS
from recollect.reproduction.peak import peak_extra_bytes
from recollect.reproduction.tradeoff_figures import draw, tradeoff_table
from recollect.training.batches import HistoryRows
from recollect.training.fit import Fitted, Sizes, fit, sizes_for
from recollect.training.loop import Run, train
from recollect.training.one_thread import one_thread
from recollect.training.progress import Display
from recollect.training.slots import select_beforehand
from recollect.training.step import StepResult

WARMING_UP = 3
"""Runs that aren't timed: the first ones fill caches."""

AT_A_TIME = 5
"""Steps of one model before it is the other's turn."""


@dataclass(frozen=True)
class Grid:
    """Numbers of slots and windows to go through; None is the whole history. One row in `every` is asked."""

    slots: tuple[int, ...]
    windows: tuple[int | None, ...]
    steps: int
    every: int
    repeats: int


GRIDS: dict[Scale, Grid] = {
    "quick": Grid((4, 32), (512, 8192), 100, 20, 15),
    "default": Grid((4, 8, 32), (512, 8192, None), 600, 3, 30),
}


@dataclass(frozen=True)
class Cost:
    """Of one prediction and of one step of training. Selections are found once for a whole training: a step bears its
    share of that. Bytes are the most that was allocated at once, for a tile of predictions and for a step."""

    ms_per_prediction: float
    ms_per_step: float
    ms_selecting: float
    prediction_bytes: int
    step_bytes: int
    table_bytes: int


def run(
    *, scale: Scale, seeds: Sequence[int], out: Path, force: bool, stream: Stream, name: str = "electricity"
) -> dict[str, Any]:
    """Train without slots and at every point of the grid, measure, and write the report."""
    claim(out, force=force)
    grid = GRIDS[scale]
    found: list[list[dict[str, Any]]] = []
    with Display() as display, one_thread():
        for seed in seeds:
            plain = trained(stream, 0, None, grid, seed, display)
            found.append([{"slots": 0, "window": 0, **measured(stream, plain, plain, grid)}])
            for slots in grid.slots:
                for window in grid.windows:
                    fitted = trained(stream, slots, window, grid, seed, display)
                    point = {"slots": slots, "window": window, **measured(stream, fitted, plain, grid)}
                    found[-1].append(point)
                    display.say(
                        f"{slots} slots, window {window}, seed {seed}: accuracy {point['accuracy']:.3f}, "
                        f"{point['ms_per_prediction']:.2f} ms a prediction, {point['ms_per_step']:.1f} ms a step"
                    )
    points = [over_seeds(same) for same in zip(*found, strict=True)]
    report = {"data": name, "scale": scale, "seeds": list(seeds), "grid": asdict(grid), "points": points}
    save_figure(draw(points, name), out, "tradeoff")
    path = finish(out, report)
    plain_console().print(tradeoff_table(points, name))
    plain_console().print(f"report: {path}")
    return report


def over_seeds(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The same point with every seed: what was measured becomes a mean with its deviation."""
    first = points[0]
    found = [name for name in first if name not in ("slots", "window")]
    means = {name: summary([float(point[name]) for point in points]) for name in found}
    return {"slots": first["slots"], "window": first["window"], **means}


def sizes_of(stream: Stream, slots: int, window: int | None, grid: Grid) -> Sizes:
    sizes = replace(sizes_for(len(stream.past)), num_retrieved=slots, window=window)
    return replace(sizes, steps=grid.steps, validate_every=max(1, grid.steps // 4))


def recipe() -> Recipe:
    return recipe_named("default")


def trained(stream: Stream, slots: int, window: int | None, grid: Grid, seed: int, display: Display) -> Fitted:
    sizes = sizes_of(stream, slots, window, grid)
    bar = display.bar(f"{slots} slots, window {window}, seed {seed}", sizes.steps)
    return fit(stream, recipe(), seed=seed, sizes=sizes, bar=bar)


def measured(stream: Stream, fitted: Fitted, plain: Fitted, grid: Grid) -> dict[str, float]:
    """The accuracy of a model, its costs, and how many times as much time it takes as the one without slots."""
    cost, base = costs(stream, fitted, plain, grid)
    return {
        "accuracy": accuracy_of(stream, fitted, grid.every),
        **asdict(cost),
        "times_prediction": cost.ms_per_prediction / base.ms_per_prediction,
        "times_step": cost.ms_per_step / base.ms_per_step,
    }


def accuracy_of(stream: Stream, fitted: Fitted, every: int) -> float:
    """The mean over periods after the cutoff."""
    position_of = np.empty(len(stream), np.int64)
    position_of[np.argsort(stream.known_at, kind="stable")] = np.arange(len(stream))
    asked = stream.asked[::every]
    chunks = torch.from_numpy(position_of[asked]).split(1024)
    answers = [fitted.model.predictor.predict(fitted.lookup.inputs_at(chunk)).log_probs.numpy() for chunk in chunks]
    return mean_over_bins(accuracy, np.concatenate(answers), stream.labels[asked], stream.bins[asked])


def costs(stream: Stream, fitted: Fitted, plain: Fitted, grid: Grid) -> tuple[Cost, Cost]:
    """Of a model and of the one without slots, measured in turns."""
    both = (fitted, plain)
    tiles = [last_tile(each) for each in both]
    predict = [partial(each.model.predictor.predict, tile) for each, tile in zip(both, tiles, strict=True)]
    rows, selecting = zip(*(selected_rows(each, len(stream.past)) for each in both), strict=True)
    per_tile = in_turns(predict, grid.repeats)
    per_step = steps_in_turns(both, rows, grid.repeats)
    steps = sizes_of(stream, 0, None, grid).steps
    found = []
    for index, each in enumerate(both):
        with peak_extra_bytes() as of_prediction:
            predict[index]()
        with peak_extra_bytes() as of_step:
            step_times(each, rows[index], 2)
        found.append(
            Cost(
                ms_per_prediction=1e3 * per_tile[index] / TILE_ROWS,
                ms_per_step=1e3 * (per_step[index] + selecting[index] / steps),
                ms_selecting=1e3 * selecting[index] / steps,
                prediction_bytes=of_prediction.bytes,
                step_bytes=of_step.bytes,
                table_bytes=table_bytes(each.lookup.view, each.lookup.window.items)
                if rows[index].selected is not None
                else 0,
            )
        )
    return found[0], found[1]


def last_tile(fitted: Fitted) -> Inputs:
    """The newest rows, which see as much history as there is."""
    items = len(fitted.lookup.view.items)
    return fitted.lookup.inputs_at(torch.arange(items - TILE_ROWS, items))


def in_turns(actions: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The median CPU time of each action, one after the other again and again: then all meet the same machine."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats + WARMING_UP):
        for action, times in zip(actions, taken, strict=True):
            started = time.process_time()
            action()
            times.append(time.process_time() - started)
    return [statistics.median(times[WARMING_UP:]) for times in taken]


def selected_rows(fitted: Fitted, known: int) -> tuple[HistoryRows, float]:
    """The rows that a model trains on with what each selects, and the seconds it took to find that."""
    started = time.process_time()
    selected = None
    if fitted.objective.system.num_retrieved:
        selected = select_beforehand(fitted.objective.system, fitted.lookup, known)
    return HistoryRows(fitted.lookup, fitted.trained, selected), time.process_time() - started


def steps_in_turns(models: Sequence[Fitted], rows: Sequence[HistoryRows], repeats: int) -> list[float]:
    """The median CPU time of a step of each model: a few steps of one, a few of the other, and again."""
    taken: list[list[float]] = [[] for _ in models]
    for _ in range(max(1, repeats // AT_A_TIME)):
        for model, mine, times in zip(models, rows, taken, strict=True):
            times += step_times(model, mine, AT_A_TIME + 1)[1:]
    return [statistics.median(times) for times in taken]


def step_times(fitted: Fitted, rows: HistoryRows, steps: int) -> list[float]:
    """CPU seconds of each step of training a copy, with the reading of its batch."""
    stamps = [time.process_time()]

    def stamp(step: int, result: StepResult) -> None:
        stamps.append(time.process_time())

    settings = replace(recipe().train, patience=None)
    batch_size = sizes_for(len(fitted.trained)).batch_size
    train(copy.deepcopy(fitted.objective), rows, None, settings, Run(steps, batch_size, on_step=stamp))
    return [after - before for before, after in pairwise(stamps)]


def table_bytes(view: TableView, window: int | None) -> int:
    """What the key table holds of the items that an input may see: keys, labels and times."""
    items = len(view.items) if window is None else min(window, len(view.items))
    columns: list[Tensor] = [getattr(view.items, field.name) for field in fields(view.items)]
    return items * sum(column[:1].numel() * column.element_size() for column in columns)
