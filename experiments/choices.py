"""Choices of the default recipe that can be made again by anyone, on streams that no result is reported on.

    python experiments/choices.py [--reviews FILE] [--accidents FILE] [--multiflow FOLDER] [--stream NAME ...]

For each stream: the recipe as it is; items not told how they differ from the input; all slots the nearest items; all
slots the most recent; corrections with offsets alone, without a slope; heads weighed by their overall record alone; no
trees grown anew, and each of these alone. What comes after the slots answers with the network of the first. Accuracy
and nll are means over periods after the stream's cutoff.
`--keep` saves what every head said of each row. Prints one JSON object as its last line.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from streams import streams
from torch import Tensor

from recollect.answering import heads
from recollect.cli_options import default_cache
from recollect.comparison.runs import asked_and_before
from recollect.config import recipe_named, with_model
from recollect.evaluation.metrics import MEASURES, mean_over_bins
from recollect.evaluation.replay import Replayed, hedged_by, replay
from recollect.evaluation.stream import Stream
from recollect.model.neighbours import centred
from recollect.reproduction.ablation import without
from recollect.training.fit import Fitted, fit, sizes_for
from recollect.training.judge import pool_by

OFFSET_STEPS = 8


def offsets_alone(plain: Tensor, plain_of_items: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """In place of `corrected`: the same prior and neighbours, the slope held at one. Newton's steps, none halved: with
    the slope fixed the loss is that of a prior and counts, and steps from nothing stay short."""
    classes = plain_of_items.shape[2]
    weights = weights * (labels < classes)
    target = F.one_hot(labels.clamp(0, classes - 1), classes).float()
    logits, theta = centred(plain_of_items), torch.zeros(plain.shape[0], classes)
    for _ in range(OFFSET_STEPS):
        p = F.softmax(logits + theta.unsqueeze(1), dim=2)
        weighted = weights.unsqueeze(2) * p
        gradient = (weighted - weights.unsqueeze(2) * target).sum(1) + theta
        hessian = torch.diag_embed(weighted.sum(1) + 1.0) - weighted.transpose(1, 2) @ p
        theta = theta - torch.linalg.solve(hessian, gradient)
    return F.log_softmax(centred(plain) + theta, dim=1)


def variants(stream: Stream, retrieve: str, seed: int, keep: Path | None) -> Iterator[tuple[str, dict[str, float]]]:
    """Scores by what is another than in the recipe."""
    full = with_model(recipe_named("default"), retrieve=retrieve)
    usual = sizes_for(len(stream.past))

    def scores(replayed: Replayed, log_probs: Tensor) -> dict[str, float]:
        answers, _ = asked_and_before(stream, replayed, log_probs)
        rows = stream.asked
        return {
            measure: mean_over_bins(MEASURES[measure], answers, stream.labels[rows], stream.bins[rows])
            for measure in ("accuracy", "balanced_accuracy", "nll")
        }

    def asked(fitted: Fitted) -> dict[str, float]:
        replayed = replay(fitted.live())
        return scores(replayed, replayed.log_probs)

    fitted = fit(stream, full, seed=seed)
    live = fitted.live()
    replayed = replay(live)
    if keep is not None:
        _save(keep, stream, fitted, replayed)
    yield "as it is", scores(replayed, replayed.log_probs)
    yield "by the overall record alone", scores(replayed, hedged_by(live, replayed, nearby=False))
    regrown = [name for name in heads.HEADS if name.startswith("regrown")]
    held_out_rows = int((stream.known_at < stream.cutoff).sum()) - live.untrained_from
    yield "no trees grown anew", scores(replayed, without(live, replayed, regrown, held_out_rows))
    for name in regrown:
        yield f"{name} alone", scores(replayed, replayed.head(name))
    with patch.object(heads, "corrected", offsets_alone):
        held_out = torch.arange(live.untrained_from, int((stream.known_at < stream.cutoff).sum()))
        pool = pool_by(fitted.live(), held_out)
        yield "offsets alone", asked(replace(fitted, model=replace(fitted.model, pool=pool)))
    yield "no differences", asked(fit(stream, with_model(full, differences=False), seed=seed))
    yield "all slots nearest", asked(fit(stream, full, seed=seed, sizes=replace(usual, recent_share=0.0)))
    yield "all slots recent", asked(fit(stream, full, seed=seed, sizes=replace(usual, recent_share=1.0)))


def _save(path: Path, stream: Stream, fitted: Fitted, replayed: Replayed) -> None:
    view, positions = fitted.lookup.view, replayed.positions
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {
            "said": replayed.answers.heads,
            "near": replayed.answers.said.near,
            "closeness": replayed.answers.said.closeness,
            "mixed": replayed.log_probs,
            "positions": positions,
            **{name: view.at(name, positions) for name in ("label", "time", "known_at")},
            "cutoff": stream.cutoff,
            "bins": torch.from_numpy(stream.bins[torch.from_numpy(stream.known_at).argsort(stable=True)[positions]]),
        },
        path,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("reviews", "accidents", "multiflow", "keep"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--stream", action="append")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    made = streams(default_cache(), arguments.reviews, arguments.accidents, arguments.multiflow)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in arguments.stream or made:
        stream = made[name]()
        # As in the reports: reviews by their labels alone, the others by full items.
        retrieve = "labels" if name == "reviews" else "items"
        keep = None if arguments.keep is None else arguments.keep / f"{name}-{arguments.seed}.pt"
        found[name] = {}
        for what, scores in variants(stream, retrieve, arguments.seed, keep):
            found[name][what] = scores
            print(f"{name}, {what}:", *(f"{measure} {value:.4f}" for measure, value in scores.items()), flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
