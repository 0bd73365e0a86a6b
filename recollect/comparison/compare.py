"""Does it help on my data? One table in; Recollect, its peers, a replay of all after the cutoff and a verdict out."""

import resource
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recollect import __version__
from recollect.comparison.answers import write_every_answer
from recollect.comparison.notes import AT_ONCE, delay_text, notes, reasons, show, window_note
from recollect.comparison.ours import Ours
from recollect.comparison.page import write_page
from recollect.comparison.runs import PARTS, Arrays, Kept, Runs, run_peers
from recollect.comparison.spans import YEAR, rough_text, span_text
from recollect.comparison.story import calibration, label_rates, over_time, precedent_story
from recollect.comparison.verdict import judge
from recollect.config import Scale
from recollect.console import plain_console
from recollect.data.embedding import EmbedderSpec
from recollect.data.events import Events
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.evaluation.answer_table import answer_table, write_table
from recollect.evaluation.metrics import accuracy, interval, previous_labels, scores_by_bin
from recollect.evaluation.output import claim, finish, moment
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import results_table, summarise
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import Prepared, after_share, prepare
from recollect.training.progress import Display

REFIT = "recollect_refit_"
"""Before the span, in the names of our models that are trained anew."""

MOST_REFITS = 1000

PERIODS = 4
"""What refitted peers look back on where times are plain numbers, which know no year."""


@dataclass(frozen=True)
class Options:
    """What a comparison may be told. `cutoff` is a moment of the data, or the share of rows that come before it.

    `label_delay`, each `refit`, `peer_window` and `peer_period` are spans in the data's own unit of time (nanoseconds,
    or plain numbers). Refitted peers look back on the window, None for a year, and are refitted every period, None for
    with every bin. `notes`, and `reading`, what was left out when the table was read, go into the report.
    """

    cutoff: int | float | None = None
    share: float = 0.5
    label_delay: int | float = 0
    bins: int = 10
    refit: tuple[int | float, ...] = ()
    seeds: tuple[int, ...] = (0,)
    peers: tuple[str, ...] = DEFAULT
    peer_window: int | float | None = None
    peer_period: int | float | None = None
    embedder: EmbedderSpec = field(default_factory=EmbedderSpec)
    scale: Scale = "default"
    notes: tuple[str, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=dict)


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
        events.delayed(options.label_delay),
        schema,
        cutoff=_cutoff(events, options),
        bins=options.bins,
        embedder=options.embedder,
        cache=cache,
    )
    stream, runs, plain = prepared.stream, Runs(), schema.plain_times
    # Nothing else changes a run: with one peer, seed or refit more, what is there is taken.
    data = {"data": stream.digest(), "schema": schema.to_json(), "embedder": options.embedder}
    kept = Kept(out / PARTS, {**data, "scale": options.scale})
    spans = PeerSpans.of(stream, options, plain)
    refits = {f"{REFIT}{span_text(every, plain)}": every for every in sorted(options.refit)}
    for every in options.refit:
        _check_refits(stream, every, span_text(every, plain))
    with Display() as display:
        for seed in options.seeds:
            ours = Ours(stream, seed, options.scale, display, kept)
            ours.save(out / f"model-{seed}", prepared)
            found = ours.frozen()
            seconds = float(found["train_seconds"] + found["answer_seconds"])
            runs.add("recollect", found["log_probs"], seconds, float(found["before"]))
            runs.add("no_context", found["no_context"], seconds, float(found["before_no_context"]))
            for refit, every in refits.items():
                again = ours.refitted(every)
                runs.add(refit, again["log_probs"], float(again["seconds"]))
            if seed == options.seeds[0]:
                first = found
        run_peers(
            stream,
            options.peers,
            spans.period,
            spans.window,
            runs,
            display,
            Kept(out / PARTS, {**data, "bins": options.bins, **asdict(spans)}),
            every=options.peer_period,
            called={peer: spans.called(peer) for peer in options.peers},
        )
    report = _report(name, prepared, runs, first, options, schema, spans)
    write_predictions(out / "predictions.parquet", prepared, first)
    write_every_answer(out, prepared, runs, options.seeds, [spans.called(peer) for peer in options.peers])
    write_page(report, out / "report.html")
    finish(out, report)
    _show(report, out)
    return report


@dataclass(frozen=True)
class PeerSpans:
    """What refitted peers look back on, and how often they are refitted: a `period`, and a longer `window`.

    `named` is what the window is called in the name of a peer: `year` unless another was asked for.
    """

    period: int | float
    window: int | float
    period_text: str
    window_text: str
    named: str = "year"

    @staticmethod
    def of(stream: Stream, options: Options, plain: bool) -> "PeerSpans":
        bin_span = (stream.time[-1].item() - stream.cutoff) / options.bins
        period, window = options.peer_period or bin_span, options.peer_window
        period_text = rough_text(period, plain) if options.peer_period is None else span_text(period, plain)
        if window is None and plain:
            return PeerSpans(period, PERIODS * period, period_text, f"{PERIODS} periods")
        if window is None or (window == YEAR and not plain):
            return PeerSpans(period, YEAR, period_text, "year")
        text = span_text(window, plain)
        return PeerSpans(period, window, period_text, text, text)

    def called(self, peer: str) -> str:
        """The name of a peer with what it really looks back on."""
        return f"{peer.removesuffix('year')}{self.named}" if peer.endswith("_refit_year") else peer

    def about(self, peers: Iterable[str]) -> dict[str, str]:
        """What refitted peers do, by name."""
        ends = {"_refit_period": "period", f"_refit_{self.named}": self.window_text}
        families = {"logreg": "logistic regression", "lightgbm": "LightGBM"}
        return {
            peer: f"{families[peer.split('_')[0]]}, fitted anew every {self.period_text}, on the last {what}"
            for peer in peers
            for end, what in ends.items()
            if peer.endswith(end) and peer.split("_")[0] in families
        }


def _show(report: dict[str, Any], out: Path) -> None:
    console = plain_console()
    console.print(results_table(report["models"], f"{report['data']}: means over periods after the cutoff"))
    console.print(f"\n{report['verdict']['headline']}", style="bold")
    for line in report["verdict"]["lines"]:
        console.print(f"  {line}")
    delay = report["label_delay"]
    if delay == AT_ONCE:
        delay += "; where they come later, say so with --label-delay or --known-at"
    show((delay, *report["notes"]))
    console.print(f"\nreport: {out / 'report.html'} (report.json and predictions.parquet beside it)")


def _check_refits(stream: Stream, every: int | float, text: str) -> None:
    """A unit mistaken is told before days are spent on it."""
    count = int((stream.time[-1].item() - stream.cutoff) // every)
    if count > MOST_REFITS:
        raise SettingError(f"--refit {text} would train {count:,} times: choose a longer span")


def _cutoff(events: Events, options: Options) -> int | float:
    """The moment given, or the one before which a share of the rows happened."""
    return after_share(events.time, options.share) if options.cutoff is None else options.cutoff


def _report(
    name: str, prepared: Prepared, runs: Runs, ours: Arrays, options: Options, schema: TableSchema, spans: PeerSpans
) -> dict[str, Any]:
    stream, plain = prepared.stream, schema.plain_times
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    refits = {each: each.removeprefix(REFIT) for each in runs.log_probs if each.startswith(REFIT)}
    verdict = judge(runs.log_probs, labels, bins, refits, runs.never_refitted)
    peers = spans.about(runs.log_probs)
    looking_back = any(peer.endswith(f"_{spans.named}") for peer in peers)
    previous = previous_labels(stream.labels, stream.time, stream.known_at)[stream.asked]
    confident = interval(accuracy, ours["log_probs"], labels, bins, resamples=300)
    return {
        "data": name,
        "recollect": __version__,
        "cutoff": moment(stream.cutoff),
        "label_delay": delay_text(stream, plain),
        "rows": {"past": len(stream.past), "asked": len(stream.asked)},
        "reading": dict(options.reading),
        "schema": schema.roles(),
        "why": reasons(schema),
        "notes": [
            *options.notes,
            *notes(prepared, ours["log_probs"]),
            *(window_note(stream, spans.window, plain) if looking_back else ()),
            *runs.notes,
        ],
        "about": peers | {each: f"our model, its weights trained anew every {span}" for each, span in refits.items()},
        "verdict": {
            "helps": verdict.helps,
            "headline": verdict.headline,
            "lines": verdict.lines,
            "differences": {peer: asdict(found) for peer, found in verdict.differences.items()},
            "accuracy": asdict(confident),
            "refits": verdict.refits,
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
        "config": {**_told(options, plain), "schema": schema.to_json()},
    }


def _told(options: Options, plain: bool) -> dict[str, Any]:
    """Options as people write them: spans and moments, not nanoseconds."""

    def told(span: int | float | None) -> str | None:
        return None if span is None else span_text(span, plain)

    settings = {name: value for name, value in asdict(options).items() if name not in ("notes", "reading")}
    return settings | {
        "cutoff": None if options.cutoff is None else moment(options.cutoff),
        "label_delay": told(options.label_delay),
        "refit": [told(span) for span in options.refit],
        "peer_window": told(options.peer_window),
        "peer_period": told(options.peer_period),
    }


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
