"""Our recipe, the paper's and their peers on one stream of real rows: trained before the cutoff, judged after it.

The same for every stream: nothing here knows which data it is given. What an interrupted run had done is kept.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.comparison.runs import (
    PARTS,
    Arrays,
    Kept,
    Runs,
    answer_all,
    fit_default,
    held_out_stream,
    newest_of_past,
    own_answers,
    run_peers,
)
from recollect.config import Scale
from recollect.console import plain_console
from recollect.data.features import WORDS
from recollect.data.splits import LEAST_PAST
from recollect.errors import SettingError
from recollect.evaluation.metrics import accuracy
from recollect.evaluation.output import claim, finish, save_figure
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import draw_over_time, means_by_bin, results_table, summarise
from recollect.evaluation.stream import Stream
from recollect.reproduction.reviews_paper import (
    BAG_OF_TRICKS,
    Architecture,
    Trick,
    Variant,
    papers_splits,
    run_paper_recipe,
)
from recollect.training.progress import Display

DAY = 24 * 3600 * 10**9
PAPER_KEY_DIM = 64

PAPERS = {
    "recollect_paper": Variant(),
    "recollect_paper_items": Variant(retrieve="items"),
    "similarity": Variant(retrieval="similarity"),
    "no_context_paper": Variant(retrieval="none"),
}
"""The paper's recipe by the names of the report: labels only and full items by learned queries, labels by similarity
alone, and its own network without context. They read what the paper's do: no scores of words."""


def run(
    stream: Stream,
    *,
    name: str,
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    force: bool,
    period: int | float = 90 * DAY,
    year: int | float = 365 * DAY,
    ours: bool = True,
    papers: Sequence[str] = tuple(PAPERS),
    architecture: Architecture = "perceiver",
    without: Collection[str] = (),
    terms: Collection[Trick] = (),
    paper_keys: Tensor | None = None,
    peer_names: Sequence[str] = DEFAULT,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train and ask everyone, and write the report with its figure.

    `paper_keys` are those of the paper's recipe: the first columns of the raw embedding; without them, of the features.
    `architecture` is that of its networks, `without` are the tricks of its bag that are left out, `terms` what it found
    of no use and is added. `reading` is what was left out of the data, for the report.
    """
    check_papers(papers, scale, architecture, without, terms)
    claim(out, force=force, resumable=PARTS)
    runs = Runs()
    settings = {"scale": scale, "period": period, "year": year}
    kept = Kept(out / PARTS, {"data": stream.digest(), **settings})
    as_papers = stream.without(WORDS)
    kept_papers = kept if as_papers is stream else Kept(out / PARTS, {"data": as_papers.digest(), **settings})
    keys = torch.from_numpy(as_papers.model_table) if paper_keys is None else paper_keys
    keys = keys[:, :PAPER_KEY_DIM].float()
    with Display() as display:
        if ours:
            _add_ours(stream, seeds, scale, runs, display, kept)
        for paper in papers:
            tricks = frozenset(trick for trick in PAPERS[paper].tricks if trick not in without) | {*terms}
            variant = replace(PAPERS[paper], architecture=architecture, tricks=tricks)
            for seed in seeds:
                compute = partial(_papers, as_papers, keys, paper, variant, scale, seed, display)
                found = kept_papers.get(f"{paper}{changes_of(variant)}-{seed}", compute)
                runs.add(paper, found["log_probs"], float(found["seconds"]), float(found["before"]))
        run_peers(stream, peer_names, period, year, runs, display, kept)
    models = summarise(runs.log_probs, stream, runs.in_distribution)
    report = {
        "data": name,
        "scale": scale,
        "seeds": list(seeds),
        "rows": {"past": len(stream.past), "asked": len(stream.asked)},
        "reading": reading,
        "notes": runs.notes,
        "paper": None
        if not papers
        else {"architecture": architecture, "without": sorted(map(str, without)), "terms": sorted(map(str, terms))},
        "models": models,
        "bins": means_by_bin(runs.log_probs, stream),
        "seconds": runs.seconds,
    }
    before = (newest_of_past(stream), runs.in_distribution)
    save_figure(draw_over_time(runs.log_probs, stream, before), out, name)
    path = finish(out, report)
    plain_console().print(results_table(models, f"{name}: means over bins after the cutoff"))
    for note in runs.notes:
        plain_console().print(note)
    plain_console().print(f"report: {path}")
    return report


def check_papers(
    papers: Sequence[str],
    scale: Scale,
    architecture: Architecture = "perceiver",
    without: Collection[str] = (),
    terms: Collection[str] = (),
) -> None:
    """Raises where what is asked of the paper's recipe can't be, or it isn't asked for at all."""
    unknown = sorted(set(without) - BAG_OF_TRICKS)
    if unknown:
        raise SettingError(
            f"there is no trick {unknown[0]} to leave out: choose among {', '.join(sorted(BAG_OF_TRICKS))}"
        )
    if not papers and (scale == "paper" or architecture != "perceiver" or without or terms):
        raise SettingError(
            "--scale paper, --architecture, --without and --term are of the paper's recipe, which is not asked for: "
            "add --part paper, or leave them out"
        )


def _add_ours(stream: Stream, seeds: Sequence[int], scale: Scale, runs: Runs, display: Display, kept: Kept) -> None:
    """Labels only and full items; the plain classifier is the labels' network with every slot empty.

    Each is trained once more before the newest part of the past and asked that, as peers are: these rows decide when
    the training of the first one stops, and much else of it.
    """
    before = held_out_stream(stream)
    tells = len(before.past) >= LEAST_PAST and len(before.asked) > 0
    for seed in seeds:
        for name, retrieve in (("recollect", "labels"), ("recollect_items", "items")):
            found = kept.get(f"{name}-{seed}", partial(_ours, stream, seed, scale, display, name, retrieve))
            compute = partial(_ours, before, seed, scale, display, f"{name}, before", retrieve)
            earlier = kept.get(f"{name}-{seed}-before", compute) if tells else None
            shown = {name: "log_probs"} | ({"no_context": "no_context"} if retrieve == "labels" else {})
            for model, answers in shown.items():
                told = None if earlier is None else accuracy(earlier[answers], before.labels[before.asked])
                runs.add(model, found[answers], float(found["seconds"]), told)


def _ours(stream: Stream, seed: int, scale: Scale, display: Display, name: str, retrieve: str) -> Arrays:
    started = time.perf_counter()
    fitted = fit_default(stream, seed, scale, display, name, retrieve=retrieve)
    result = answer_all(fitted.live(), stream, display, f"{name}, seed {seed}")
    seconds = time.perf_counter() - started
    return {
        **own_answers(stream, result),
        "seconds": np.array(seconds),
    }


def changes_of(variant: Variant) -> str:
    """What of the paper's recipe is another than the usual, to be put behind a name; nothing if all is as ever."""
    usual = Variant()
    changed: list[str] = [] if variant.architecture == usual.architecture else [variant.architecture]
    changed += [f"without_{trick}" for trick in sorted(usual.tricks - variant.tricks)]
    changed += [f"with_{trick}" for trick in sorted(variant.tricks - usual.tricks)]
    return "".join(f"-{change}" for change in changed)


def _papers(
    stream: Stream, keys: Tensor, name: str, variant: Variant, scale: Scale, seed: int, display: Display
) -> Arrays:
    display.say(f"{name}, seed {seed}")
    started = time.perf_counter()
    # The newest rows of the past, like everyone's, but of these only such as no weight was trained or chosen by.
    newest = stream.among_drawn(newest_of_past(stream))
    held_out = np.setdiff1d(newest, papers_splits(stream, scale, seed).examples)
    asked = np.concatenate([held_out, stream.asked])
    answers = run_paper_recipe(stream, keys, variant, scale, seed, asked=asked, display=display)
    earlier, later = np.split(answers, [len(held_out)])
    before = accuracy(earlier, stream.labels[held_out]) if len(held_out) else np.nan
    return {"log_probs": later, "before": np.array(before), "seconds": np.array(time.perf_counter() - started)}
