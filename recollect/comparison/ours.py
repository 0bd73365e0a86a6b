"""Recollect itself in a comparison: trained once at the cutoff, or anew every so often, and asked all that comes after.

Every model is kept as soon as it is trained and its answers as soon as they are complete: a stop costs one of these.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from recollect.comparison.runs import Arrays, Kept, answer_all, fit_default, own_answers
from recollect.config import Scale
from recollect.evaluation.replay import Replayed
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared
from recollect.trained import Trained
from recollect.training.fit import history_of
from recollect.training.progress import Display


class Ours:
    """Our runs with one seed, by how the weights come about."""

    def __init__(self, stream: Stream, seed: int, scale: Scale, display: Display, kept: Kept) -> None:
        self.stream, self.seed, self.scale, self.display, self.kept = stream, seed, scale, display, kept

    def save(self, folder: Path, prepared: Prepared) -> None:
        """The model of the cutoff, as it can be served: with names of classes, and what makes features of raw rows."""
        model, _ = self._trained(self.stream.cutoff, "recollect")
        classes = prepared.classes[: self.stream.num_classes]
        replace(model, classes=classes, intake=prepared.intake).save(folder, force=True)

    def frozen(self) -> Arrays:
        """Weights of the cutoff, asked everything; precedents are rows of the stream."""
        model, train_seconds = self._trained(self.stream.cutoff, "recollect")
        name = f"recollect-{self.seed}"
        answers = self.kept.get(name, partial(self._answers, model, self.stream, f"recollect, seed {self.seed}"))
        return {**answers, "train_seconds": np.array(train_seconds)}

    def refitted(self, every: int | float) -> Arrays:
        """Weights trained anew every so often on all that was known by then; the history grows in between as ever.

        Until the first time they are those of the cutoff, which are there already.
        """
        stream = self.stream
        count = int((stream.time[-1].item() - stream.cutoff) // every) + 1
        starts = [stream.cutoff + number * every for number in range(count)]
        parts, seconds = [], 0.0
        for number, start in enumerate(starts):
            stop = starts[number + 1] if number + 1 < count else None
            here = _between(stream, start, stop)
            if not len(here.asked):
                continue
            if number == 0:
                found = self.frozen()
                part = found["log_probs"][: len(here.asked)]
            else:
                called = f"recollect, refit {number} of {count - 1}"
                model, train_seconds = self._trained(start, called)
                name = f"recollect-{self.seed}-from-{start}-to-{stop}"
                found = self.kept.get(name, partial(self._answers, model, here, called))
                found["train_seconds"] = np.array(train_seconds)
                part = found["log_probs"]
            parts.append(part)
            seconds += float(found["train_seconds"] + found["answer_seconds"])
        width = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-np.inf) for part in parts]
        return {"log_probs": np.concatenate(padded), "seconds": np.array(seconds)}

    def _trained(self, moment: int | float, called: str) -> tuple[Trained, float]:
        """On all that was known before a moment; spans that meet in one share its model."""
        stream = replace(self.stream, cutoff=moment)

        def train() -> Trained:
            return fit_default(stream, self.seed, self.scale, self.display, called).model

        return self.kept.model(f"recollect-{self.seed}-trained-{moment}", train)

    def _answers(self, model: Trained, stream: Stream, called: str) -> Arrays:
        started = time.perf_counter()
        live = model.live()
        live.follow(history_of(stream, model.keys, model.clock, model.window).view.source)
        result = answer_all(live, stream, self.display, called)
        seconds = time.perf_counter() - started
        return {
            **own_answers(stream, result),
            "answer_seconds": np.array(seconds),
            "answered": np.array(len(result.positions)),
            **_precedents(stream, result),
        }


def _between(stream: Stream, start: int | float, stop: int | float | None) -> Stream:
    """Rows before `stop` only, those from `start` on to be asked: what comes later changes none of their answers."""
    rows = stream if stop is None else stream.take(np.flatnonzero(stream.time < stop))
    return replace(rows, cutoff=start)


def _precedents(stream: Stream, result: Replayed) -> Arrays:
    row_of = torch.from_numpy(stream.known_at).argsort(stable=True).numpy()
    place = np.empty(len(stream), np.int64)
    place[row_of[result.positions.numpy()]] = np.arange(len(result.positions))
    chosen = place[stream.asked]
    precedents = result.answers.precedents.numpy()[chosen]
    return {
        "precedents": np.where(precedents >= 0, row_of[np.maximum(precedents, 0)], -1),
        "attention": result.answers.attention.numpy()[chosen],
    }
