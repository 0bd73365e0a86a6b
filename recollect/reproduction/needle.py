"""The paper's needle in a haystack: can retrieval be learned from the classification loss alone, and how fast?

Trains the paper's recipe and ours for growing histories and writes the paper's three panels (classification loss,
selection loss, selection entropy), a look at why entropy falls too early, and a fit of exploration time against K.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Generator

from recollect.config import FETCH_BUDGET, Dropouts, Recipe, Scale, recipe_named, with_model, with_step, with_train
from recollect.console import plain_console
from recollect.data.synthetic import NeedleTask
from recollect.evaluation.output import claim, finish, save_figure
from recollect.records import FeatureSpec
from recollect.reproduction.fabric import make_fabric
from recollect.reproduction.needle_figures import draw_entropy, draw_panels
from recollect.retrieval.gradients import entropy, log_normaliser, retrieve
from recollect.training.batches import Batch, episode_batch
from recollect.training.loop import Run, step_generator, train
from recollect.training.objective import make_objective
from recollect.training.progress import Display
from recollect.training.step import Objective, StepResult

SOLVED_BELOW = 0.35
KEY_DIM = 64


@dataclass(frozen=True)
class Sizes:
    """How much of it: histories per recipe, shared pools for ours, batch and steps; whether to stop once solved."""

    paper: tuple[int, ...]
    default: tuple[int, ...]
    pools: tuple[int, ...]
    batch: int
    steps: int
    stop_when_solved: bool


SIZES: dict[Scale, Sizes] = {
    "quick": Sizes((2, 8), (2, 8, 64), (), 128, 800, True),
    "default": Sizes((2, 4, 8, 16, 32, 64, 128, 256), (2, 4, 8, 16, 32, 64, 128, 256, 1024), (), 256, 4000, True),
    "paper": Sizes((2, 4, 8, 16, 32, 64, 128, 256), (2, 4, 8, 16, 32, 64, 128, 256, 1024), (4096,), 1000, 4000, False),
}


@dataclass(frozen=True)
class NeedleBatches:
    task: NeedleTask
    device: torch.device

    def batch(self, size: int, generator: Generator) -> Batch:
        return episode_batch(self.task.sample(size, generator), device=self.device)


def needle_recipe(name: str, history_size: int) -> Recipe:
    """The recipe with the appendix's one slot; the paper's with its learning rate.

    Ours hides the input from the classifier nine times in ten, as the paper does on its reviews: here the input is only
    the address of an item, and what the classifier reads into it drowns what the item says. What there is to learn is
    where to look, so the loss is that of many looks together (`multi_sample`): more of them, the rarer a hit, by a
    classifier narrow enough to afford them. Rates are constant: a run stops when it is solved, so there is no known end
    to anneal towards.
    """
    recipe = with_model(recipe_named(name), num_retrieved=1)
    if name == "paper":
        return with_train(recipe, learning_rate=2e-4)
    recipe = with_step(recipe, estimator="multi_sample", samples=max(FETCH_BUDGET, history_size // 4))
    recipe = with_step(with_model(recipe, width=32), dropouts=Dropouts(input=0.9))
    return with_train(recipe, learning_rate=1e-3, scheduled=False)


def run(*, scale: Scale, recipes: list[str], seeds: list[int], out: Path, force: bool, log: Path | None = None) -> None:
    """Train every recipe on every history size and write the report."""
    claim(out, force=force)
    sizes = SIZES[scale]
    curves: list[dict[str, Any]] = []
    with Display() as display:
        for seed in seeds:
            for name in recipes:
                for history_size, shared in histories(sizes, name):
                    curves.append(learn(name, history_size, shared, seed, sizes, display, log))
                    solved = curves[-1]["solved_at_step"] or "not solved"
                    display.say(f"{name} K={history_size}: {solved}")
                    (out / "curves.json").write_text(json.dumps(curves))
    report = make_report(scale, sizes, recipes, curves)
    save_figure(draw_panels(curves), out, "needle")
    save_figure(draw_entropy(curves), out, "needle-entropy")
    path = finish(out, report)
    print_table(report)
    plain_console().print(f"report: {path}")


def histories(sizes: Sizes, recipe: str) -> list[tuple[int, bool]]:
    own = sizes.paper if recipe == "paper" else sizes.default
    pools = () if recipe == "paper" else sizes.pools
    return [(size, False) for size in own] + [(size, True) for size in pools]


def learn(
    name: str, history_size: int, shared: bool, seed: int, sizes: Sizes, display: Display, log: Path | None
) -> dict[str, Any]:
    """Train one system on one history size; curves of what greedy prediction does on fresh inputs."""
    recipe = needle_recipe(name, history_size)
    task = NeedleTask.draw(
        history_size,
        step_generator(seed, 0, use="task"),
        shared_pool=shared,
        standardised=name == "default",  # bits as -1 and 1; to the paper's recipe, as the paper has them
    )
    objective = make_objective(
        recipe,
        [FeatureSpec("x", "embedded", KEY_DIM)],
        [FeatureSpec("x", "embedded", task.num_bits)],
        key_dim=KEY_DIM,
        num_classes=2,
        label_classes=0,
        has_times=False,
        seed=seed,
    )
    title = f"{name} K={history_size}{' shared' if shared else ''} seed {seed}"
    fabric = make_fabric(log, title)
    source = NeedleBatches(task, fabric.device)
    watcher = Watcher(objective, source.batch(512, step_generator(seed, -1, use="watch")), started=time.perf_counter())
    settings = Run(
        sizes.steps, sizes.batch, seed, bar=display.bar(title, sizes.steps), on_step=watcher, stop_when=watcher.finished
    )
    watcher.stop_when_solved = sizes.stop_when_solved
    train(objective, source, None, recipe.train, settings, fabric)
    return {
        "recipe": name,
        "history_size": history_size,
        "shared": shared,
        "seed": seed,
        "solved_at_step": watcher.solved_at,
        "seconds": watcher.seconds,
        "curve": watcher.rows,
    }


class Watcher:
    """Looks at a training run every few steps: losses, entropy, and how much of the queries all inputs share."""

    every = 20
    linger = 60

    def __init__(self, objective: Objective, batch: Batch, started: float) -> None:
        self.objective, self.batch = objective, batch
        self.rows: list[dict[str, float]] = []
        self.solved_at: int | None = None
        self.seconds = 0.0
        self.clock = started
        self.stop_when_solved = False

    def __call__(self, step: int, result: StepResult) -> None:
        if self.solved_at is None:
            self.seconds += time.perf_counter() - self.clock
        if (step + 1) % self.every == 0:
            row = watch(self.objective, self.batch)
            self.rows.append({"step": step + 1, **row})
            if self.solved_at is None and row["loss"] < SOLVED_BELOW:
                self.solved_at = step + 1
        self.clock = time.perf_counter()

    def finished(self, step: int) -> bool:
        return self.stop_when_solved and self.solved_at is not None and step >= self.solved_at + self.linger


@torch.no_grad()
def watch(objective: Objective, batch: Batch) -> dict[str, float]:
    """Greedy classification loss, selection loss and entropy on one batch, and the queries' common part."""
    assert batch.needle is not None
    inputs = batch.inputs
    queries = objective.system.queries(objective.system.encode(inputs.features), inputs.own_keys)
    found = retrieve(queries, inputs.keys, inputs.visible, temperature=1.0, keep_bytes=1 << 28)
    needle_keys = inputs.keys.at(batch.needle.unsqueeze(1))
    needle_logits = (queries * needle_keys).sum(-1) * found.scores.scale
    log_p = needle_logits - log_normaliser(queries, found.scores)
    common = queries.mean(0).square().sum() / queries.square().sum(-1).mean()
    generator = step_generator(0, 0, use="watch", device=queries.device)
    return {
        "loss": float(objective.validate(batch, generator, rehearsed=False)),
        "selection_loss": float(-log_p.mean()),
        "entropy": float(entropy(queries, found.scores).mean()),
        "common_part": float(common),
    }


def make_report(scale: Scale, sizes: Sizes, recipes: list[str], curves: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps and seconds until solved; of several seeds those of the median one, null if most never got there."""
    report: dict[str, Any] = {"scale": scale, "sizes": asdict(sizes), "solved_below": SOLVED_BELOW}
    for key in ("solved_at_step", "seconds", "shared_pool"):
        report[key] = {name: {} for name in recipes}
    for name in recipes:
        own = [curve for curve in curves if curve["recipe"] == name]
        for size, shared in sorted({(curve["history_size"], curve["shared"]) for curve in own}):
            runs = [curve for curve in own if (curve["history_size"], curve["shared"]) == (size, shared)]
            median = middle(runs)
            medians = {key: median[key] for key in ("solved_at_step", "seconds")}
            if shared:
                report["shared_pool"][name][str(size)] = medians
            else:
                for key, value in medians.items():
                    report[key][name][str(size)] = value
    report["exploration"] = {name: exploration_fit(report["solved_at_step"][name]) for name in recipes}
    report["curves"] = curves
    return report


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median number of steps, counting those that were never solved as longer than any other."""
    steps = [float("inf") if run["solved_at_step"] is None else run["solved_at_step"] for run in runs]
    return runs[sorted(range(len(runs)), key=steps.__getitem__)[(len(runs) - 1) // 2]]


def exploration_fit(solved: dict[str, int | None]) -> dict[str, float] | None:
    """Power law and straight line through the steps that exploration took, over the history sizes that were solved."""
    pairs = [(int(size), step) for size, step in solved.items() if step is not None and int(size) >= 8]
    if len(pairs) < 3:
        return None
    sizes, steps = np.array(pairs, dtype=float).T
    exponent, _ = np.polyfit(np.log(sizes), np.log(steps), 1)
    slope, intercept = np.polyfit(sizes, steps, 1)
    left = steps - (slope * sizes + intercept)
    spread = float(((steps - steps.mean()) ** 2).sum())
    return {
        "power": float(exponent),
        "steps_per_item": float(slope),
        "intercept": float(intercept),
        "linear_r2": 1.0 - float((left**2).sum()) / spread if spread else 1.0,
    }


def print_table(report: dict[str, Any]) -> None:
    table = Table(title=f"steps (seconds) until the loss falls below {SOLVED_BELOW}")
    table.add_column("K")
    names = list(report["solved_at_step"])
    for name in names:
        table.add_column(name)
    every = sorted({int(size) for name in names for size in report["solved_at_step"][name]})
    for size in every:
        cells = []
        for name in names:
            solved = report["solved_at_step"][name].get(str(size), "")
            cells.append(
                "not solved"
                if solved is None
                else f"{solved}" + (f" ({report['seconds'][name][str(size)]:.0f} s)" if solved != "" else "")
            )
        table.add_row(str(size), *cells)
    for name in names:
        for size, pool in report["shared_pool"][name].items():
            table.add_row(f"{size} shared", *[str(pool["solved_at_step"]) if other == name else "" for other in names])
    plain_console().print(table)
