"""The paper's rotating decision boundary: trained on the first half of time, asked over the whole of it.

Accuracy against time for the plain classifier, the paper's recipe and ours, with the Bayes accuracy as a line.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from matplotlib.figure import Figure
from rich.table import Table
from torch import Generator, Tensor

from recollect.config import Recipe, Scale, recipe_named, with_model, with_train
from recollect.console import plain_console
from recollect.data.synthetic import RotatingTask
from recollect.evaluation.output import claim, finish, save_figure
from recollect.evaluation.results import summary
from recollect.predictor import Predictions, Predictor
from recollect.records import FeatureSpec
from recollect.reproduction.fabric import make_fabric
from recollect.training.batches import Batch, episode_batch
from recollect.training.loop import Run, step_generator, train
from recollect.training.objective import make_objective, make_predictor
from recollect.training.progress import Display

CUTOFF = 0.5
BINS = 40


@dataclass(frozen=True)
class Sizes:
    """Steps and batch for ours and for the paper's nets, their learning rate, and inputs asked per bin of time."""

    ours: tuple[int, int]
    papers: tuple[int, int]
    papers_rate: float
    per_bin: int


SIZES: dict[Scale, Sizes] = {
    "quick": Sizes((300, 128), (250, 128), 3e-4, 64),
    "default": Sizes((1500, 256), (2000, 256), 3e-4, 2048),
    "paper": Sizes((2500, 4096), (2500, 4096), 5e-5, 1024),
}


@dataclass(frozen=True)
class RotatingBatches:
    """Inputs at uniform moments of [first, last)."""

    task: RotatingTask
    recency: bool
    first: float
    last: float
    device: torch.device

    def batch(self, size: int, generator: Generator) -> Batch:
        moments = torch.rand(size, generator=generator, dtype=torch.float64)
        moments = self.first + (self.last - self.first) * moments
        return episode_batch(self.task.sample(moments, generator), recency=self.recency, device=self.device)


def rotating_recipe(name: str, sizes: Sizes) -> Recipe:
    """The recipe with the appendix's sizes: 16 slots, and for the paper's nets two hidden layers."""
    recipe = recipe_named(name)
    if name == "default":
        return with_model(recipe, num_retrieved=16)
    recipe = with_train(recipe, learning_rate=sizes.papers_rate)
    return with_model(recipe, num_retrieved=0 if name == "no_context" else 16, hidden=(512, 512))


def run(*, scale: Scale, recipes: list[str], seeds: list[int], out: Path, force: bool, log: Path | None = None) -> None:
    """Train every recipe with every seed, ask over time, and write the report."""
    claim(out, force=force)
    sizes = SIZES[scale]
    curves: dict[str, list[dict[str, Any]]] = {name: [] for name in recipes}
    with Display() as display:
        for seed in seeds:
            for name in recipes:
                curves[name].append(learn(name, seed, sizes, display, log))
                worst = min(tenths(curves[name][-1]["accuracy"])[5:])
                display.say(f"{name} seed {seed}: {worst:.3f} in the worst tenth after the cutoff")
    report = make_report(scale, sizes, seeds, curves)
    save_figure(draw(report), out, "rotating")
    path = finish(out, report)
    print_table(report)
    plain_console().print(f"report: {path}")


def learn(name: str, seed: int, sizes: Sizes, display: Display, log: Path | None) -> dict[str, Any]:
    """Train one system before the cutoff, then ask it over all of time with frozen weights."""
    started = time.perf_counter()
    predictor, everything = train_before_cutoff(
        rotating_recipe(name, sizes), seed, sizes.ours if name == "default" else sizes.papers, name, display, log
    )
    seconds = time.perf_counter() - started
    accuracy, age = ask_over_time(predictor, everything, sizes.per_bin, seed)
    return {"seed": seed, "seconds": seconds, "accuracy": accuracy, "age": age}


def train_before_cutoff(
    recipe: Recipe, seed: int, steps_and_batch: tuple[int, int], name: str, display: Display, log: Path | None = None
) -> tuple[Predictor, RotatingBatches]:
    """A system trained on the first half of time, and inputs from the whole of it to ask."""
    steps, batch_size = steps_and_batch
    task = RotatingTask.draw(step_generator(seed, 0, use="task"), dates=recipe.model.dates)
    specs = [FeatureSpec("x", "embedded", task.width)]
    objective = make_objective(
        recipe, specs, specs, key_dim=task.width, num_classes=2, label_classes=2, has_times=True, seed=seed
    )
    title = f"{name} seed {seed}"
    fabric = make_fabric(log, title)
    everything = RotatingBatches(task, recipe.model.recency is not None, 0.0, 1.0, fabric.device)
    settings = Run(steps, batch_size, seed, bar=display.bar(title, steps))
    train(objective, replace(everything, last=CUTOFF), None, recipe.train, settings, fabric)
    return make_predictor(objective, recipe), everything


def ask_over_time(
    predictor: Predictor, source: RotatingBatches, per_bin: int, seed: int
) -> tuple[list[float], list[float]]:
    """Accuracy and mean age of the precedents in each bin of time."""
    accuracy, age = [], []
    for index in range(BINS):
        answers, targets = ask_bin(predictor, source, index, per_bin, seed)
        accuracy.append(float((answers.log_probs.argmax(1) == targets).float().mean()))
        age.append(float(answers.age.mean()) if answers.age is not None and answers.age.numel() else 0.0)
    return accuracy, age


def ask_bin(
    predictor: Predictor, source: RotatingBatches, index: int, per_bin: int, seed: int
) -> tuple[Predictions, Int[Tensor, " batch"]]:
    """Answers to inputs from one bin of time, and what would have been right; the same inputs for every predictor."""
    generator = step_generator(seed, index, use="ask")
    batch = replace(source, first=index / BINS, last=(index + 1) / BINS).batch(per_bin, generator)
    return predictor.predict(batch.inputs), batch.targets


def tenths(bins: Sequence[float]) -> list[float]:
    width = len(bins) // 10
    return [sum(bins[width * tenth : width * (tenth + 1)]) / width for tenth in range(10)]


def make_report(
    scale: Scale, sizes: Sizes, seeds: list[int], curves: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    bayes = RotatingTask.draw(step_generator(0, 0)).bayes_accuracy
    report: dict[str, Any] = {
        "scale": scale,
        "sizes": asdict(sizes),
        "seeds": seeds,
        "cutoff": CUTOFF,
        "bayes": bayes,
        "recipes": {},
    }
    for name, runs in curves.items():
        by_seed = [tenths(run["accuracy"]) for run in runs]
        report["recipes"][name] = {
            "accuracy_by_tenth": [summary([seed[tenth] for seed in by_seed]) for tenth in range(10)],
            "worst_ood": summary([min(seed[5:]) for seed in by_seed]),
            "mean_age_by_tenth": [summary([tenths(run["age"])[tenth] for run in runs]) for tenth in range(10)],
            "seconds": summary([run["seconds"] for run in runs]),
            "accuracy_by_bin": [run["accuracy"] for run in runs],
        }
    return report


def draw(report: dict[str, Any]) -> Figure:
    """Accuracy over time with a band over seeds, the cutoff and the Bayes accuracy."""
    figure = Figure(figsize=(7.5, 4))
    axis = figure.subplots()
    middles = [(index + 0.5) / BINS for index in range(BINS)]
    for name, entry in report["recipes"].items():
        values = torch.tensor(entry["accuracy_by_bin"])
        mean = values.mean(0)
        (line,) = axis.plot(middles, mean.tolist(), label=name.replace("_", " "))
        low, high = values.min(0).values.tolist(), values.max(0).values.tolist()
        axis.fill_between(middles, low, high, color=line.get_color(), alpha=0.2, lw=0)
    axis.axhline(report["bayes"], color="black", lw=0.8, ls=":", label="Bayes")
    axis.axvline(report["cutoff"], color="grey", lw=0.8, ls="--", label="end of training data")
    axis.set(xlabel="time", ylabel="accuracy", ylim=(0, 1.02), xlim=(0, 1), title="Rotating decision boundary")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower left", fontsize=8)
    return figure


def print_table(report: dict[str, Any]) -> None:
    table = Table(title=f"accuracy by time, trained before {CUTOFF} (Bayes {report['bayes']:.3f})")
    for column in ("recipe", "0-.5", ".5-.6", ".6-.7", ".7-.8", ".8-.9", ".9-1", "worst", "seconds"):
        table.add_column(column)
    for name, entry in report["recipes"].items():
        means = [tenth["mean"] for tenth in entry["accuracy_by_tenth"]]
        cells = [sum(means[:5]) / 5, *means[5:], entry["worst_ood"]["mean"]]
        table.add_row(name, *[f"{value:.3f}" for value in cells], f"{entry['seconds']['mean']:.0f}")
    plain_console().print(table)
