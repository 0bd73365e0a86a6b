"""Does it help on my data? One table in; Recollect, its peers, a replay of all after the cutoff and a verdict out."""

import resource
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from recollect import __version__
from recollect.comparison.answers import write_every_answer
from recollect.comparison.page import write_page
from recollect.comparison.runs import PARTS, Arrays, Kept, Runs, answer_all, asked_and_before, fit_default, run_peers
from recollect.comparison.story import calibration, label_rates, over_time, precedent_story
from recollect.comparison.verdict import judge
from recollect.config import Scale
from recollect.data.embedding import EmbedderSpec
from recollect.data.events import Events
from recollect.data.inference import NOT_THE_IDS
from recollect.data.schema import TableSchema
from recollect.data.tables.raw import column_of
from recollect.evaluation.answer_table import answer_table, write_table
from recollect.evaluation.metrics import accuracy, interval, previous_labels, scores_by_bin
from recollect.evaluation.output import claim, finish, moment
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import results_table, summarise
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared, after_share, prepare
from recollect.training.progress import Display

DAY = 24 * 3600 * 10**9
YEAR = 365 * DAY


@dataclass(frozen=True)
class Options:
    """What a comparison may be told. `cutoff` is a moment of the data, or the share of rows that come before it.

    `label_delay` and `refit` are spans in the data's own unit of time (nanoseconds, or plain numbers).
    """

    cutoff: int | float | None = None
    share: float = 0.5
    label_delay: int | float = 0
    bins: int = 10
    refit: int | float | None = None
    seeds: tuple[int, ...] = (0,)
    peers: tuple[str, ...] = DEFAULT
    embedder: EmbedderSpec = field(default_factory=EmbedderSpec)
    scale: Scale = "default"


def compare(
    events: Events,
    schema: TableSchema,
    options: Options,
    *,
    name: str,
    out: Path,
    cache: Path,
    force: bool = False,
) -> dict[str, Any]:
    """Train and ask everyone, and write report.json, report.html, predictions.parquet, the model and the settings."""
    claim(out, force=force, resumable=PARTS)
    prepared = prepare(
        _delayed(events, options.label_delay),
        schema,
        cutoff=_cutoff(events, options),
        bins=options.bins,
        embedder=options.embedder,
        cache=cache,
    )
    stream, runs = prepared.stream, Runs()
    # Whom else it is compared with, and by how many seeds, changes no run: what is there is taken.
    settings = {name: value for name, value in asdict(options).items() if name not in ("peers", "seeds")}
    kept = Kept(out / PARTS, {"data": stream.digest(), "schema": schema.to_json(), **settings})
    period = (stream.time[-1].item() - stream.cutoff) / options.bins
    year = min(YEAR, 4 * period) if np.issubdtype(stream.time.dtype, np.integer) else 4 * period
    with Display() as display:
        for seed in options.seeds:
            ours = kept.get(f"recollect-{seed}", partial(_ours, prepared, seed, options, display, out))
            seconds = float(ours["train_seconds"] + ours["answer_seconds"])
            runs.add("recollect", ours["log_probs"], seconds, float(ours["before"]))
            runs.add("no_context", ours["no_context"], seconds, float(ours["before_no_context"]))
            if options.refit is not None:
                compute = partial(_refitted, stream, options.refit, seed, options, display)
                again = kept.get(f"recollect_refit-{seed}", compute)
                runs.add("recollect_refit", again["log_probs"], float(again["seconds"]))
            if seed == options.seeds[0]:
                first = ours
        run_peers(stream, options.peers, period, year, runs, display, kept)
    report = _report(name, prepared, runs, first, options, schema)
    write_predictions(out / "predictions.parquet", prepared, first)
    write_every_answer(out, prepared, runs, options.seeds, options.peers)
    write_page(report, out / "report.html")
    finish(out, report)
    _show(report, out)
    return report


def _show(report: dict[str, Any], out: Path) -> None:
    console = Console()
    console.print(results_table(report["models"], f"{report['data']}: means over periods after the cutoff"))
    console.print(f"\n{report['verdict']['headline']}", style="bold")
    for line in report["verdict"]["lines"]:
        console.print(f"  {line}")
    console.print(f"\nreport: {out / 'report.html'} (report.json and predictions.parquet beside it)")


def _delayed(events: Events, delay: int | float) -> Events:
    """Labels known so much later than their rows happened, where no column says when."""
    return events if delay == 0 else replace(events, known_at=events.time + delay)


def _cutoff(events: Events, options: Options) -> int | float:
    """The moment given, or the one before which a share of the rows happened."""
    return after_share(events.time, options.share) if options.cutoff is None else options.cutoff


def _ours(prepared: Prepared, seed: int, options: Options, display: Display, out: Path) -> Arrays:
    """Trained, saved beside the report, and asked everything; precedents as rows of the stream."""
    stream = prepared.stream
    started = time.perf_counter()
    fitted = fit_default(stream, seed, options.scale, display, "recollect")
    train_seconds = time.perf_counter() - started
    model = replace(fitted.model, classes=prepared.classes[: stream.num_classes], intake=prepared.intake)
    model.save(out / f"model-{seed}", force=True)
    started = time.perf_counter()
    result = answer_all(fitted.live(), stream, display, f"recollect, seed {seed}")
    answer_seconds = time.perf_counter() - started
    answers, before = asked_and_before(stream, result, result.log_probs)
    plain, before_plain = asked_and_before(stream, result, result.head("no_context"))
    row_of = torch.from_numpy(stream.known_at).argsort(stable=True).numpy()
    place = np.empty(len(stream), np.int64)
    place[row_of[result.positions.numpy()]] = np.arange(len(result.positions))
    chosen = place[stream.asked]
    precedents = result.answers.precedents.numpy()[chosen]
    return {
        "log_probs": answers,
        "no_context": plain,
        "before": np.array(before),
        "before_no_context": np.array(before_plain),
        "train_seconds": np.array(train_seconds),
        "answer_seconds": np.array(answer_seconds),
        "answered": np.array(len(result.positions)),
        "precedents": np.where(precedents >= 0, row_of[np.maximum(precedents, 0)], -1),
        "attention": result.answers.attention.numpy()[chosen],
    }


def _refitted(stream: Stream, every: int | float, seed: int, options: Options, display: Display) -> Arrays:
    """Weights trained anew every so often on all that was known by then; the history grows in between as ever."""
    started = time.perf_counter()
    starts = np.arange(stream.cutoff, stream.time[-1].item() + 1, every)
    parts = []
    for number, start in enumerate(starts.tolist()):
        stop = starts[number + 1] if number + 1 < len(starts) else np.inf
        here = replace(stream, cutoff=start)
        mine = stream.time[here.asked] < stop
        if mine.any():
            name = f"recollect, refit {number + 1} of {len(starts)}"
            fitted = fit_default(here, seed, options.scale, display, name)
            result = answer_all(fitted.live(), here, display, name)
            parts.append(asked_and_before(here, result, result.log_probs)[0][mine])
    width = max(part.shape[1] for part in parts)
    padded = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-np.inf) for part in parts]
    return {"log_probs": np.concatenate(padded), "seconds": np.array(time.perf_counter() - started)}


def _report(
    name: str, prepared: Prepared, runs: Runs, ours: Arrays, options: Options, schema: TableSchema
) -> dict[str, Any]:
    stream = prepared.stream
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    verdict = judge(runs.log_probs, labels, bins)
    previous = previous_labels(stream.labels, stream.time, stream.known_at)[stream.asked]
    confident = interval(accuracy, ours["log_probs"], labels, bins, resamples=300)
    return {
        "data": name,
        "recollect": __version__,
        "cutoff": moment(stream.time[stream.asked[0]]),
        "label_delay": _delay_text(stream),
        "rows": {"past": len(stream.past), "asked": len(stream.asked)},
        "schema": schema.roles(),
        "notes": notes(prepared),
        "verdict": {
            "helps": verdict.helps,
            "headline": verdict.headline,
            "lines": verdict.lines,
            "differences": {peer: asdict(found) for peer, found in verdict.differences.items()},
            "accuracy": asdict(confident),
        },
        "models": summarise(runs.log_probs, stream, runs.in_distribution),
        "over_time": over_time(runs.log_probs, stream),
        "periods": scores_by_bin(ours["log_probs"], labels, bins, previous),
        "cumulative": scores_by_bin(ours["log_probs"], labels, bins, previous, cumulative=True),
        "calibration": {
            each: calibration(runs.log_probs[each][0], labels)
            for each in ("recollect", "no_context", "logreg_frozen", "lightgbm_frozen")
            if each in runs.log_probs
        },
        "label_rates": label_rates(stream, prepared.classes),
        "precedents": precedent_story(stream, prepared.events, prepared.classes, ours),
        "cost": {
            "train_seconds": float(ours["train_seconds"]),
            "answer_ms": 1000 * float(ours["answer_seconds"]) / max(1, int(ours["answered"])),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "seconds": runs.seconds,
        },
        "config": {**asdict(options), "schema": schema.to_json()},
    }


def notes(prepared: Prepared) -> list[str]:
    """What was handled without asking, for people to know."""
    stream = prepared.stream
    ignored = {name: why for name, why in prepared.intake.schema.ignored.items() if why != "declared"}
    left_out = {**ignored, **prepared.intake.features.left_out}
    found = [f"column {name} is left out: {why}" for name, why in left_out.items()]
    for name, why in prepared.intake.schema.why.items():
        if why.endswith(NOT_THE_IDS.format(name=name)):
            found.append(f"column {name}: {why}")
    for column in prepared.intake.features.categorical:
        if column.shared:
            found.append(f"rare and unknown values of {column.name} share one place")
    for name in (*prepared.intake.schema.numeric, *prepared.intake.schema.categorical):
        missing = column_of(prepared.events.columns, name).is_null().mean()
        if isinstance(missing, float) and missing > 0:
            found.append(f"{100 * missing:.0f}% of {name} is missing; that is a signal of its own")
    for code in range(stream.num_classes, len(prepared.classes)):
        first = int(np.flatnonzero(stream.labels == code)[0])
        found.append(
            f"class {prepared.classes[code]!r} first comes after the cutoff ({moment(stream.time[first])}); "
            "it can be answered once it has precedents"
        )
    return found


def _delay_text(stream: Stream) -> str:
    late = np.median(stream.known_at - stream.time)
    if late == 0:
        return "labels are known at once"
    if np.issubdtype(stream.time.dtype, np.integer):
        return f"labels are known {late / DAY:.3g} days later (median)"
    return f"labels are known {late:.3g} later (median)"


def write_predictions(path: Path, prepared: Prepared, ours: Arrays) -> None:
    """Every answer: id, time, label, probabilities by class, and the ids of its precedents with their weights."""
    stream, rows = prepared.stream, prepared.stream.asked
    order = np.argsort(-ours["attention"], axis=1, kind="stable")
    precedents = np.take_along_axis(ours["precedents"], order, axis=1)
    weights = np.take_along_axis(ours["attention"], order, axis=1)
    names = np.array(prepared.events.id.to_list(), dtype=object)
    table = answer_table(
        prepared.events.id.gather(rows),
        ours["log_probs"],
        prepared.classes,
        time=stream.time[rows],
        labels=stream.labels[rows],
        precedents=[names[found[found >= 0]].tolist() for found in precedents],
        weights=[each[found >= 0].tolist() for found, each in zip(precedents, weights, strict=True)],
    )
    write_table(table, path)
