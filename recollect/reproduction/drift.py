"""Our recipe, the paper's and their peers on one stream of real rows: trained before the cutoff, judged after it.

The same for every stream: nothing here knows which data it is given.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from recollect.config import RecipeName, Scale, recipe_named, with_model
from recollect.evaluation.metrics import LogProbs, accuracy
from recollect.evaluation.peers import DEFAULT, peers
from recollect.evaluation.replay import Replayed, replay
from recollect.evaluation.results import draw_over_time, results_table, summarise
from recollect.evaluation.stream import Stream
from recollect.reproduction.output import claim, finish, save_figure
from recollect.reproduction.reviews_paper import Variant, run_paper_recipe
from recollect.training.fit import HELD_OUT, Fitted, fit, sizes_for
from recollect.training.progress import Display

DAY = 24 * 3600 * 10**9
QUICK_STEPS = 150
PAPER_KEY_DIM = 64

PAPERS = {
    "recollect_paper": Variant(),
    "recollect_paper_items": Variant(retrieve="items"),
    "similarity": Variant(retrieval="similarity"),
}
"""The paper's recipe by the names of the report: labels only and full items by learned queries, and labels by
similarity alone. Each is trained with the first seed only: they take many times as long as ours."""


@dataclass
class Runs:
    """Log-probabilities of the asked rows by model and seed, the accuracy before the cutoff, and how long it took."""

    log_probs: dict[str, list[LogProbs]] = field(default_factory=dict)
    in_distribution: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, log_probs: LogProbs, seconds: float, before: float | None = None) -> None:
        self.log_probs.setdefault(name, []).append(log_probs)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        if before is not None:
            self.in_distribution.setdefault(name, []).append(before)


def run(
    stream: Stream,
    *,
    name: str,
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    force: bool,
    period: int = 90 * DAY,
    year: int = 365 * DAY,
    papers: Sequence[str] = tuple(PAPERS),
    paper_keys: Tensor | None = None,
    peer_names: Sequence[str] = DEFAULT,
) -> dict[str, Any]:
    """Train and ask everyone, and write the report with its figure.

    `paper_keys` are those of the paper's recipe: the first columns of the raw embedding; without them, of the features.
    """
    claim(out, force=force)
    runs = Runs()
    keys = torch.from_numpy(stream.model_table) if paper_keys is None else paper_keys
    keys = keys[:, :PAPER_KEY_DIM].float()
    with Display() as display:
        for seed in seeds:
            _ours(stream, seed, scale, runs, display)
        for paper in papers:
            display.say(f"{paper}, seed {seeds[0]}")
            started = time.perf_counter()
            answers = run_paper_recipe(stream, keys, PAPERS[paper], scale, seeds[0], display=display)
            runs.add(paper, answers, time.perf_counter() - started)
        _peers(stream, peer_names, period, year, runs, display)
    models = summarise(runs.log_probs, stream, runs.in_distribution)
    report = {
        "data": name,
        "scale": scale,
        "seeds": list(seeds),
        "rows": {"past": len(stream.past), "asked": len(stream.asked)},
        "models": models,
        "seconds": runs.seconds,
    }
    save_figure(draw_over_time(runs.log_probs, stream), out, name)
    path = finish(out, report)
    Console().print(results_table(models, f"{name}: means over bins after the cutoff"))
    Console().print(f"report: {path}")
    return report


def _ours(stream: Stream, seed: int, scale: Scale, runs: Runs, display: Display) -> None:
    """Labels only and full items; the plain classifier is the labels' network with every slot empty."""
    for name, retrieve in (("recollect", "labels"), ("recollect_items", "items")):
        started = time.perf_counter()
        fitted = fit_default(stream, seed, scale, display, name, retrieve=retrieve)
        display.say(f"{name}, seed {seed}: answering")
        result = replay(fitted.live())
        seconds = time.perf_counter() - started
        runs.add(name, *_parts(stream, fitted, result, result.log_probs, seconds))
        if name == "recollect":
            runs.add("no_context", *_parts(stream, fitted, result, result.head("no_context"), seconds))


def fit_default(stream: Stream, seed: int, scale: Scale, display: Display, name: str, **model: object) -> Fitted:
    """The default recipe, with some of the model's settings changed."""
    sizes = sizes_for(len(stream.past))
    if scale == "quick":
        sizes = replace(sizes, steps=min(QUICK_STEPS, sizes.steps), validate_every=50)
    recipe_name: RecipeName = "default"
    recipe = with_model(recipe_named(recipe_name), **model)
    return fit(stream, recipe, seed=seed, sizes=sizes, bar=display.bar(f"{name} {seed}", sizes.steps))


def _parts(
    stream: Stream, fitted: Fitted, result: Replayed, log_probs: Tensor, seconds: float
) -> tuple[LogProbs, float, float]:
    """Answers to the asked rows in the stream's order, and the accuracy on held-out rows of the past."""
    row_of = torch.from_numpy(stream.known_at).argsort(stable=True)
    answers = np.full((len(stream), log_probs.shape[1]), np.nan, np.float32)
    answers[row_of[result.positions].numpy()] = log_probs.numpy()
    held_out = row_of[len(fitted.trained) : len(stream.past)].numpy()
    return answers[stream.asked], seconds, accuracy(answers[held_out], stream.labels[held_out])


def _peers(stream: Stream, names: Sequence[str], period: int, year: int, runs: Runs, display: Display) -> None:
    before = held_out_stream(stream)
    for peer in peers(period=period, year=year, names=names):
        display.say(peer.name)
        started = time.perf_counter()
        answers = peer.predict(stream)
        seconds = time.perf_counter() - started
        accuracy_before = None
        if peer.name.endswith("_frozen"):
            accuracy_before = accuracy(peer.predict(before), before.labels[before.asked])
        runs.add(peer.name, answers, seconds, accuracy_before)


def held_out_stream(stream: Stream) -> Stream:
    """The past alone, with its newest part to be asked: how a model does before anything changed."""
    past = stream.past
    first = past[int((1 - HELD_OUT) * len(past))]
    return replace(stream.take(past), cutoff=stream.time[first].item())
