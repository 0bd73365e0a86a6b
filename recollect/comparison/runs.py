"""Our model and its peers on one stream: each trained before the cutoff, asked everything after it, and timed.

What is done is kept in a folder, run by run, so that an interrupted comparison goes on where it stopped.
"""

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import recollect
from recollect.answering.live import Live
from recollect.config import Scale, recipe_named, with_model
from recollect.data.splits import HELD_OUT
from recollect.evaluation.metrics import LogProbs, accuracy
from recollect.evaluation.peers import SLOW, Peer, peers
from recollect.evaluation.refitted_peers import FEWEST_ROWS
from recollect.evaluation.replay import Replayed, replay
from recollect.evaluation.simple_peers import by_period
from recollect.evaluation.stream import Stream
from recollect.trained import Trained
from recollect.training.fit import Fitted, Sizes, fit, sizes_for
from recollect.training.progress import Display

QUICK_STEPS = 150

PARTS = "parts"
"""The folder beside a result in which single runs are kept."""

Arrays = dict[str, NDArray[Any]]


@dataclass
class Runs:
    """Log-probabilities of the asked rows by model and seed, the accuracy before the cutoff, and how long it took."""

    log_probs: dict[str, list[LogProbs]] = field(default_factory=dict)
    in_distribution: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    never_refitted: list[str] = field(default_factory=list)

    def add(self, name: str, log_probs: LogProbs, seconds: float, before: float | None = None) -> None:
        self.log_probs.setdefault(name, []).append(log_probs)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        if before is not None and not np.isnan(before):
            self.in_distribution.setdefault(name, []).append(before)


class Kept:
    """Results of single runs as .npz files; those of other settings, or of other code, are left alone."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        made_of = json.dumps(settings, sort_keys=True, default=str) + code_fingerprint()
        digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
        self.folder = None if folder is None else folder / digest

    def get(self, name: str, compute: Callable[[], Arrays]) -> Arrays:
        """What was computed before under this name, or is now."""
        if self.folder is None:
            return compute()
        path = self.folder / f"{name}.npz"
        if path.exists():
            with np.load(path) as found:
                return dict(found)
        result = compute()
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.stem}.tmp.npz")
        np.savez(beside, **result)  # type: ignore[arg-type]
        beside.rename(path)
        return result

    def model(self, name: str, train: Callable[[], Trained]) -> tuple[Trained, float]:
        """The same of a model, with the seconds that its training took."""
        fresh = []

        def timed() -> Arrays:
            started = time.perf_counter()
            fresh.append(train())
            seconds = time.perf_counter() - started
            if self.folder is not None:
                fresh[0].save(self.folder / name, force=True)
            return {"seconds": np.array(seconds)}

        seconds = float(self.get(name, timed)["seconds"])
        if self.folder is None or fresh:
            return fresh[0], seconds
        return Trained.load(self.folder / name), seconds


@functools.cache
def code_fingerprint() -> str:
    """Of all of this package: what other code computed is not what this one would."""
    package = Path(recollect.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sizes_at(stream: Stream, scale: Scale) -> Sizes:
    """What the data ask for, in fewer steps where it is to be quick."""
    sizes = sizes_for(len(stream.past))
    return replace(sizes, steps=min(QUICK_STEPS, sizes.steps), validate_every=50) if scale == "quick" else sizes


def fit_default(stream: Stream, seed: int, scale: Scale, display: Display, name: str, **model: object) -> Fitted:
    """The default recipe, with some of the model's settings changed."""
    sizes = sizes_at(stream, scale)
    recipe = with_model(recipe_named("default"), **model)
    return fit(stream, recipe, seed=seed, sizes=sizes, bar=display.bar(f"{name} {seed}", sizes.steps))


def answer_all(live: Live, stream: Stream, display: Display, name: str) -> Replayed:
    """Everything that was not trained on, in order of time, with a bar."""
    with display.rows(f"{name}: answering", len(stream) - live.untrained_from) as advance:
        return replay(live, lambda done, total: advance(done))


def asked_and_before(stream: Stream, result: Replayed, log_probs: Tensor) -> tuple[LogProbs, float]:
    """Answers to the asked rows in the stream's order, and the accuracy on rows of the past that were held out."""
    row_of = torch.from_numpy(stream.known_at).argsort(stable=True).numpy()
    answers = np.full((len(stream), log_probs.shape[1]), np.nan, np.float32)
    rows = row_of[result.positions.numpy()]
    answers[rows] = log_probs.numpy()
    held_out = rows[stream.known_at[rows] < stream.cutoff]
    before = accuracy(answers[held_out], stream.labels[held_out]) if len(held_out) else float("nan")
    return answers[stream.asked], before


def own_answers(stream: Stream, result: Replayed) -> Arrays:
    """Ours and those of its head without context, each with its accuracy before the cutoff."""
    answers, before = asked_and_before(stream, result, result.log_probs)
    plain, before_plain = asked_and_before(stream, result, result.head("no_context"))
    return {
        "log_probs": answers,
        "no_context": plain,
        "before": np.array(before),
        "before_no_context": np.array(before_plain),
    }


def run_peers(
    stream: Stream,
    names: Sequence[str],
    period: int | float,
    year: int | float,
    runs: Runs,
    display: Display,
    kept: Kept | None = None,
    *,
    every: int | float | None = None,
    called: Mapping[str, str] | None = None,
) -> None:
    """Every peer once, and once more on the newest part of the past, with what came before that as its past.

    There it learns, or is refitted, as it does after the cutoff. The slow ones are spared that: it would take as long.
    Refits come `every` so often, by default with every bin. `called` are other names for some of the peers.
    """
    if not names:
        return  # the past is copied for nobody: it may be large
    before = held_out_stream(stream)
    kept = kept or Kept(None, {})
    for name in names:
        skipped: list[int | float] = []
        with display.rows(name, 1) as advance:
            (peer,) = peers(
                period=period, year=year, every=every, names=[name], on_progress=advance, on_skip=skipped.append
            )
            found = kept.get(name, functools.partial(_asked_peer, peer, stream, skipped))
            if name in SLOW or not (len(before.past) and len(before.asked)):
                accuracy_before = float("nan")
            else:
                earlier = kept.get(f"{name}-before", functools.partial(_asked_peer, peer, before, skipped))
                accuracy_before = accuracy(earlier["log_probs"], before.labels[before.asked])
        shown = (called or {}).get(name, name)
        runs.add(shown, found["log_probs"], float(found["seconds"]), accuracy_before)
        if "_refit_" in name and int(found["skipped"]) == len(by_period(stream, every)):
            runs.never_refitted.append(shown)
        if found["skipped"]:
            runs.notes.append(
                f"{shown}: {int(found['skipped'])} refits were left out, too few rows ({FEWEST_ROWS} are needed, of "
                "two classes) were known in the span it looks back on; the fit before was kept"
            )


def _asked_peer(peer: Peer, stream: Stream, skipped: list[int | float]) -> Arrays:
    """`skipped` is where the peer tells of refits that it left out."""
    skipped.clear()
    started = time.perf_counter()
    answers = peer.predict(stream)
    seconds = time.perf_counter() - started
    return {"log_probs": answers, "seconds": np.array(seconds), "skipped": np.array(len(skipped))}


def newest_of_past(stream: Stream) -> NDArray[np.int64]:
    """The rows by which it is told how a model does before anything changed."""
    return stream.past[int((1 - HELD_OUT) * len(stream.past)) :]


def held_out_stream(stream: Stream) -> Stream:
    """The past alone, with its newest part to be asked."""
    past, newest = stream.take(stream.past), newest_of_past(stream)
    return replace(past, cutoff=stream.time[newest[0]].item()) if len(newest) else past
