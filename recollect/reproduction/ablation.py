"""What each idea is worth: our recipe with one of them taken away at a time, and the paper's with one of its tricks.

On the rotating boundary, as the paper has it and as rows of a table, and on a stream of real rows where there is one.
Trained before the cutoff, judged after it; whatever only weighs answers differently is computed from the answers of the
full recipe, and nothing is trained again.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from recollect.answering.heads import HEADS, NEWEST, POOLED, places_of
from recollect.answering.item_record import Told
from recollect.answering.live import Live
from recollect.answering.newest import Untrained
from recollect.answering.pools import Pools
from recollect.comparison.runs import PARTS, Arrays, Kept, answer_all, asked_and_before, sizes_at
from recollect.config import Recipe, Scale, recipe_named, with_model
from recollect.console import plain_console
from recollect.data.features import WORDS
from recollect.evaluation.metrics import MEASURES, LogProbs, accuracy, mean_over_bins, per_bin
from recollect.evaluation.output import claim, finish, save_figure
from recollect.evaluation.replay import Replayed, hedged_by
from recollect.evaluation.results import summary
from recollect.evaluation.stream import Stream
from recollect.model.pool import even, fit_pool, frozen
from recollect.predictor import TILE_ROWS
from recollect.reproduction import rotating
from recollect.reproduction.ablation_figures import ablation_table, draw
from recollect.reproduction.ablation_recipes import (
    FULL,
    Ours,
    less_one_trick,
    our_recipes,
    papers_on_rotating,
    rotating_recipes,
)
from recollect.reproduction.drift import PAPER_KEY_DIM
from recollect.reproduction.reviews_paper import Variant, run_paper_recipe
from recollect.reproduction.tables import rotating_stream
from recollect.training.fit import fit
from recollect.training.judge import POOLED_ROWS
from recollect.training.progress import Display

TREES = "trees, as a head and in what is corrected"
WORDS_ANEW = "words fitted anew (their scores stay)"

ALONE = ("wary", "trusting", "no_context")
"""Heads that are also asked without any hedge."""

Scores = dict[str, float]
Group = dict[str, list[Scores]]
"""By what was taken away, the scores of each seed."""


@dataclass(frozen=True)
class Extent:
    """How much of a stream is used: so many of the newest rows of the past, and so many bins after the cutoff, of
    these no more than the first `asked` rows. Trained is at most `steps` long, but for the paper's recipe on rows."""

    past: int | None
    bins: int
    asked: int | None = None
    steps: int | None = None


EXTENTS: dict[Scale, Extent] = {
    "quick": Extent(2500, 1, 1500),
    "default": Extent(None, 4, steps=600),
    "paper": Extent(None, 4),
}

GROUPS = ("ours", "paper", "rotating", "table")


def run(
    *,
    scale: Scale,
    seeds: Sequence[int],
    out: Path,
    force: bool,
    stream: Stream | None = None,
    name: str = "reviews",
    paper_keys: Float[Tensor, "rows width"] | None = None,
    reading: Mapping[str, Any] | None = None,
    parts: Sequence[str] = GROUPS,
) -> dict[str, Any]:
    """Train with and without each idea, and write the report. Without a stream there is the rotating boundary alone.

    `reading` is what was left out of the stream's data, for the report.
    """
    claim(out, force=force, resumable=PARTS)
    kept = Kept(out / PARTS, {"scale": scale, "data": None if stream is None else stream.digest()})
    groups: dict[str, Group] = {}
    with Display() as display:
        for seed in seeds:
            if stream is not None:
                rows = rows_within(stream, EXTENTS[scale])
                cut = stream.take(rows)
                if "ours" in parts:
                    _add(groups, f"{name}, ours", on_stream(cut, "ours", seed, scale, display, kept), display)
                if "paper" in parts:
                    keys = None if paper_keys is None else paper_keys[torch.from_numpy(rows)]
                    _add(
                        groups,
                        f"{name}, the paper's",
                        papers_tricks(cut.without(WORDS), keys, seed, scale, display, kept),
                        display,
                    )
            if "rotating" in parts:
                sizes = rotating.SIZES[scale]
                ours, papers = rotating_recipes(sizes), papers_on_rotating(sizes)
                _add(groups, "rotating boundary", on_rotating(ours, seed, scale, display, kept), display)
                _add(groups, "rotating boundary, the paper's", on_rotating(papers, seed, scale, display, kept), display)
            if "table" in parts:
                table = rotating_stream()
                cut = table.take(rows_within(table, EXTENTS[scale]))
                found = on_stream(cut, "table", seed, scale, display, kept)
                _add(groups, "rotating boundary as a table, ours", found, display)
    results = {title: compared(group) for title, group in groups.items()}
    report = {"scale": scale, "seeds": list(seeds), "reading": reading, "groups": results}
    save_figure(draw(results), out, "ablation")
    path = finish(out, report)
    for title, variants in results.items():
        plain_console().print(ablation_table(title, variants))
    plain_console().print(f"report: {path}")
    return report


def rows_within(stream: Stream, extent: Extent) -> NDArray[np.int64]:
    """Neighbouring rows around the cutoff. The first of them is of the past, so nothing known is left out after it."""
    first = 0 if extent.past is None else int(stream.past[-extent.past :][0])
    bins = np.unique(stream.bins[stream.asked])[: extent.bins]
    last = int(stream.asked[np.isin(stream.bins[stream.asked], bins)][: extent.asked][-1])
    return np.arange(first, last + 1)


def _add(groups: dict[str, Group], title: str, found: Iterator[tuple[str, Scores]], display: Display) -> None:
    group = groups.setdefault(title, {})
    for taken, scores in found:
        group.setdefault(taken, []).append(scores)
        what = "with everything" if taken == FULL else f"without {taken}"
        display.say(f"{title}, {what}: accuracy {scores['accuracy']:.3f}, {scores['seconds']:.0f} s")


def on_stream(
    stream: Stream, group: str, seed: int, scale: Scale, display: Display, kept: Kept
) -> Iterator[tuple[str, Scores]]:
    """Our recipe by labels alone, as in the paper's main result; what only weighs heads comes from the full one."""
    full = with_model(recipe_named("default"), retrieve="labels")
    usual = sizes_at(stream, scale)
    steps = min(usual.steps, EXTENTS[scale].steps or usual.steps)
    usual = replace(usual, steps=steps, validate_every=max(20, steps // 12))

    def scores(name: str, ours: Ours) -> Group:
        started = time.perf_counter()
        sizes = replace(usual, recent_share=ours.recent_share)
        bar = display.bar(f"{name} {seed}", sizes.steps)
        given = stream if ours.words else stream.without(WORDS)
        fitted = fit(given, ours.recipe, seed=seed, sizes=sizes, bar=bar, key_refreshes=ours.key_refreshes)
        live = fitted.live()
        replayed = answer_all(live, stream, display, name)
        seconds = time.perf_counter() - started
        found = {name: [_scores_on(stream, replayed, replayed.log_probs, seconds)]}
        if name == FULL:
            held_out = int((stream.known_at < stream.cutoff).sum()) - live.untrained_from
            for less, log_probs in other_hedges(live, replayed, held_out).items():
                found[less] = [_scores_on(stream, replayed, log_probs, 0.0)]
            if WORDS in stream.features:
                live = replace(fitted, model=replace(fitted.model, terms=False)).live()
                replayed = answer_all(live, stream, display, WORDS_ANEW)
                found[WORDS_ANEW] = [_scores_on(stream, replayed, replayed.log_probs, 0.0)]
            # The same network; the head of the trees would then say again what it says.
            live = replace(fitted, model=replace(fitted.model, trees=None)).live()
            replayed = answer_all(live, stream, display, TREES)
            found[TREES] = [_scores_on(stream, replayed, without(live, replayed, ["trees"], held_out), 0.0)]
        return found

    for name, ours in our_recipes(full).items():
        if ours.words or WORDS in stream.features:
            yield from _once(kept, f"{group}-{name}-{seed}", partial(scores, name, ours))


def _once(kept: Kept, name: str, compute: Callable[[], Group]) -> Iterator[tuple[str, Scores]]:
    """What was computed before an interruption is not computed again."""

    def as_array() -> Arrays:
        return {"scores": np.array(json.dumps(compute()))}

    found: Group = json.loads(str(kept.get(name.replace("/", " "), as_array)["scores"]))
    for taken, (scores,) in found.items():
        yield taken, scores


def other_hedges(live: Live, replayed: Replayed, held_out: int) -> dict[str, Float[Tensor, "rows classes"]]:
    """The same answers of the heads, mixed without one of them, by their overall record alone, and not at all."""
    taken = {f"the head {name}": [name] for name in HEADS}
    taken["both regressions"] = [name for name in HEADS if name.startswith("regression")]
    taken["trees grown anew"] = [name for name in HEADS if name.startswith("regrown")]
    taken["pools fitted anew"] = [name for name in HEADS if name.startswith("repooled")]
    found = {name: without(live, replayed, heads, held_out) for name, heads in taken.items()}
    found["weights by near items"] = hedged_by(live, replayed, nearby=False)
    return found | {f"the hedge (head {name} alone)": replayed.head(name) for name in ALONE}


def without(live: Live, replayed: Replayed, heads: Sequence[str], held_out: int) -> Float[Tensor, "rows classes"]:
    """What the hedge would have answered if some heads had never been: they have no part in the pools either, whose
    weights are fitted anew, those of the first to the newest of the first `held_out` rows."""
    kept, classes = [name for name in HEADS if name not in heads], live.num_classes
    places = places_of([name for name in HEADS[:POOLED] if name not in heads])
    if len(places) == POOLED:  # the pools stay as they are
        return hedged_by(live, replayed, kept)
    log_probs = replayed.answers.heads.clone()
    others = log_probs[:, places, :classes]
    labels = live.lookup.view.at("label", replayed.positions)
    newest = torch.arange(max(0, held_out - POOLED_ROWS), held_out)
    newest = newest[labels[newest] < classes]
    first = fit_pool(others[newest], labels[newest]) if len(newest) else frozen(even(len(places)), classes)
    # What it leaves to classes that no training knew stays as it is.
    rest = log_probs[:, POOLED, :classes].logsumexp(1, keepdim=True)
    found = [first(others), *(_repooled(live, replayed, places, first.weights, window) for window in NEWEST)]
    log_probs[:, POOLED:, :classes] = torch.stack(found, dim=1) + rest.unsqueeze(1)
    said = replace(replayed.answers.said, log_probs=log_probs)
    answers = replace(replayed.answers, said=said)
    return hedged_by(live.rescored(replayed.positions, log_probs), replace(replayed, answers=answers), kept)


def _repooled(
    live: Live, replayed: Replayed, places: list[int], start: Float[Tensor, " heads"], window: int
) -> Float[Tensor, "rows classes"]:
    """What pools of some of the heads say that are fitted anew to the newest items."""
    heads, view = live.heads, live.lookup.view
    untrained, visible = Untrained(view, heads.untrained_from), view.visible(view.at("time", replayed.positions))
    told = Told(heads.record.told.log_probs[:, places], heads.record.told.there)
    said, pools = replayed.answers.heads[:, places, : live.num_classes], Pools()
    return torch.cat(
        [
            pools.answers(said[part], start, visible.take(part), window, untrained, told)
            for part in torch.arange(len(said)).split(TILE_ROWS)
        ]
    )


def _scores_on(stream: Stream, replayed: Replayed, log_probs: Tensor, seconds: float) -> Scores:
    answers, _ = asked_and_before(stream, replayed, log_probs)
    return scores_of(answers, stream.labels[stream.asked], stream.bins[stream.asked], seconds)


def papers_tricks(
    stream: Stream, keys: Float[Tensor, "rows width"] | None, seed: int, scale: Scale, display: Display, kept: Kept
) -> Iterator[tuple[str, Scores]]:
    """The paper's recipe, labels only by learned queries, less one trick at a time."""
    table = torch.from_numpy(stream.model_table) if keys is None else keys
    first_columns = table[:, :PAPER_KEY_DIM].float()
    asked = stream.asked

    def scores(name: str, variant: Variant) -> Group:
        started = time.perf_counter()
        answers = run_paper_recipe(stream, first_columns, variant, scale, seed, display=display)
        seconds = time.perf_counter() - started
        return {name: [scores_of(answers, stream.labels[asked], stream.bins[asked], seconds)]}

    for name, tricks in less_one_trick().items():
        yield from _once(kept, f"paper-{name}-{seed}", partial(scores, name, Variant(tricks=tricks)))


def on_rotating(
    recipes: Mapping[str, Recipe], seed: int, scale: Scale, display: Display, kept: Kept
) -> Iterator[tuple[str, Scores]]:
    """Judged over the five tenths of time after the cutoff."""
    sizes = rotating.SIZES[scale]

    def scores(name: str, recipe: Recipe) -> Group:
        started = time.perf_counter()
        steps, batch_size = sizes.ours if recipe.model.architecture == "precedents" else sizes.papers
        steps = min(steps, EXTENTS[scale].steps or steps)
        predictor, everything = rotating.train_before_cutoff(recipe, seed, (steps, batch_size), name, display)
        log_probs, labels, bins = [], [], []
        for index in range(round(rotating.CUTOFF * rotating.BINS), rotating.BINS):
            answers, targets = rotating.ask_bin(predictor, everything, index, sizes.per_bin, seed)
            log_probs.append(answers.log_probs.cpu().numpy())
            labels.append(targets.cpu().numpy())
            bins.append(np.full(len(labels[-1]), 10 * index // rotating.BINS))
        seconds = time.perf_counter() - started
        joined = (np.concatenate(log_probs), np.concatenate(labels), np.concatenate(bins))
        return {name: [scores_of(*joined, seconds)]}

    papers = recipes[FULL].model.architecture != "precedents"
    for name, recipe in recipes.items():
        kept_as = f"rotating-{'paper-' * papers}{name}-{seed}"
        yield from _once(kept, kept_as, partial(scores, name, recipe))


def scores_of(log_probs: LogProbs, labels: NDArray[np.int64], bins: NDArray[np.int64], seconds: float) -> Scores:
    """Means over bins after the cutoff, the accuracy of the first of them, and how long it took to get there."""
    means = ("accuracy", "balanced_accuracy", "nll")
    found = {measure: mean_over_bins(MEASURES[measure], log_probs, labels, bins) for measure in means}
    return {**found, "first_bin": float(per_bin(accuracy, log_probs, labels, bins)[0]), "seconds": seconds}


def compared(group: Group) -> dict[str, dict[str, Any]]:
    """Scores over seeds, and how far each is from the full recipe with the same seed."""
    return {
        name: {
            **{measure: summary([scores[measure] for scores in seeds]) for measure in seeds[0]},
            "difference": {
                measure: summary([one[measure] - other[measure] for one, other in zip(seeds, group[FULL], strict=True)])
                for measure in seeds[0]
                if measure != "seconds"
            },
        }
        for name, seeds in group.items()
    }
