"""Does it help on my data? One table in; Recollect, its peers, a replay of all after the cutoff and a verdict out."""

import resource
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from recollect import __version__
from recollect.comparison.ours import Ours
from recollect.comparison.page import write_page
from recollect.comparison.runs import PARTS, Arrays, Kept, Runs, run_peers
from recollect.comparison.story import calibration, label_rates, moment, over_time, precedent_story
from recollect.comparison.verdict import judge
from recollect.config import Scale
from recollect.data.events import Events
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.evaluation.answer_table import answer_table, write_table
from recollect.evaluation.metrics import accuracy, interval, previous_labels, scores_by_bin
from recollect.evaluation.output import claim, finish
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import results_table, summarise
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared, prepare
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
    embedder: str = "wordllama"
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
    # Whom else it is compared with, by how many seeds and refits, changes no run: what is there is taken.
    settings = {name: value for name, value in asdict(options).items() if name not in ("peers", "seeds", "refit")}
    kept = Kept(out / PARTS, {"data": stream.digest(), "schema": schema.to_json(), **settings})
    period = (stream.time[-1].item() - stream.cutoff) / options.bins
    year = min(YEAR, 4 * period) if np.issubdtype(stream.time.dtype, np.integer) else 4 * period
    with Display() as display:
        for seed in options.seeds:
            ours = Ours(stream, seed, options.scale, display, kept)
            ours.save(out / f"model-{seed}", prepared)
            found = ours.frozen()
            seconds = float(found["train_seconds"] + found["answer_seconds"])
            runs.add("recollect", found["log_probs"], seconds, float(found["before"]))
            runs.add("no_context", found["no_context"], seconds, float(found["before_no_context"]))
            if options.refit is not None:
                again = ours.refitted(options.refit)
                runs.add("recollect_refit", again["log_probs"], float(again["seconds"]))
            if seed == options.seeds[0]:
                first = found
        run_peers(stream, options.peers, period, year, runs, display, kept)
    report = _report(name, prepared, runs, first, options, schema)
    write_predictions(out / "predictions.parquet", prepared, first)
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
    if options.cutoff is not None:
        return options.cutoff
    if not 0 < options.share < 1:
        raise SettingError(f"the share before the cutoff is {options.share}: it must be between 0 and 1")
    moments = np.sort(events.time)
    found: int | float = moments[int(options.share * len(moments))].item()
    return found


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
    for column in prepared.intake.features.categorical:
        if column.shared:
            found.append(f"rare and unknown values of {column.name} share one place")
    for name in (*prepared.intake.schema.numeric, *prepared.intake.schema.categorical):
        missing = prepared.events.columns[name].is_null().mean()
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
