"""A history replayed through a saved model: what it would have answered to every item, and how good that was."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from rich import box
from rich.progress import Progress
from rich.table import Table

from recollect.answering.live import Answers, Live
from recollect.comparison.paired import compare_answers, paired_table, read_answers
from recollect.console import plain_console
from recollect.deployed import Deployed
from recollect.errors import SettingError
from recollect.evaluation.answer_table import answer_table, check_table_path, write_table
from recollect.evaluation.metrics import Interval, accuracy, interval, intervals, previous_labels, scores_by_bin
from recollect.evaluation.replay import replay
from recollect.evaluation.results import short_number
from recollect.evaluation.table_stream import equal_bins

SHOWN = {"accuracy": "acc", "balanced_accuracy": "bal", "auc": "auc", "nll": "nll", "brier": "brier", "ece": "ece"}
SHOWN |= {"kappa_temporal": "temporal"}
"""Measures and how their columns are headed; `temporal` is kappa against repeating the previous label."""

SHOWN_WIDE = SHOWN | {"kappa": "kappa", "coverage": "cover"}
WIDE = 100

RESAMPLES, FEWEST_RESAMPLES = 300, 40
RESAMPLED_ROWS = 4_000_000
"""In all: the interval of a long replay is narrow, and known well enough from fewer draws."""


def replay_history(
    model: Path, history: str, *, bins: int, out: Path | None = None, against: Path | None = None
) -> dict[str, Any]:
    """Test, then learn, over everything that was not trained on; every answer goes to `out`. A corrected item is judged
    by its newest label, and what is erased is not asked.

    `against` is a table of other answers to the same items, which these are compared with.
    """
    if out is not None:
        check_table_path(out)
    others = None if against is None else read_answers(against)
    deployed = Deployed.open(model, history)
    live, view = deployed.live, deployed.live.lookup.view
    ids = np.array(deployed.snapshot.column("id").tolist(), dtype=object)
    positions = _untrained(live, ids)
    if not len(positions):
        raise SettingError(
            f"the model was trained on all of {history}: append newer items first, with recollect ingest"
        )
    with Progress() as progress:
        task = progress.add_task("replaying", total=len(positions))
        result = replay(live, lambda done, total: progress.update(task, completed=done), torch.from_numpy(positions))
    time, known_at = (getattr(view.items, name).numpy() for name in ("time", "known_at"))
    labels = view.items.label.numpy()
    order = np.argsort(time[positions], kind="stable")
    asked = positions[order]
    log_probs = result.log_probs.numpy()[order]
    previous = previous_labels(labels, time, known_at)[asked]
    numbers = equal_bins(time[asked], time[asked[0]].item(), bins)
    confident = interval(accuracy, log_probs, labels[asked], numbers, resamples=RESAMPLES)
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, RESAMPLED_ROWS // len(asked)))
    overall = intervals(log_probs, labels[asked], previous, resamples=resamples)
    periods = scores_by_bin(log_probs, labels[asked], numbers, previous)
    report: dict[str, Any] = {
        "rows": len(asked),
        "overall": {name: each.value for name, each in overall.items()},
        "intervals": {name: asdict(each) for name, each in overall.items()},
        "accuracy": asdict(confident),
        "periods": periods,
        "cumulative": scores_by_bin(log_probs, labels[asked], numbers, previous, cumulative=True),
    }
    answers = _answer_table(deployed, ids, result.answers, order, asked)
    if out is not None:
        write_table(answers, out)
    console = plain_console()
    console.print(_periods_table(periods, overall, len(asked), SHOWN_WIDE if console.width >= WIDE else SHOWN))
    if others is not None and against is not None:
        report["against"] = compare_answers(answers, others, numbers)
        console.print(paired_table(report["against"], against.name))
    return report


def _untrained(live: Live, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Where in the view the items are that the model was not trained on, each once, however often it was corrected.
    `ids` are those of stored rows."""
    view = live.lookup.view
    there = np.ones(len(view.items), bool)
    there[view.gone.numpy()] = False
    mine = ids[view.items.row.numpy()]
    trained = set(mine[: live.untrained_from][there[: live.untrained_from]].tolist())
    there[view.superseded.numpy()] = False
    there[: live.untrained_from] = False
    positions = np.flatnonzero(there)
    return positions[[name not in trained for name in mine[positions].tolist()]]


def _periods_table(
    periods: list[dict[str, int | float]], overall: dict[str, Interval], rows: int, shown: dict[str, str]
) -> Table:
    """For a terminal of 80 columns, or of more with more measures."""
    table = Table(
        title=f"{rows} items, each as of its own time",
        caption="all, with the ends of its 95% interval from blocks of rows drawn again",
        box=box.SIMPLE,
        padding=(0, 1),
        pad_edge=False,
    )
    for name in ("period", "rows", *shown.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for number, period in enumerate(periods):
        last = number + 1 == len(periods)
        cells = [short_number(period[name]) for name in shown]
        table.add_row(str(number + 1), str(period["rows"]), *cells, end_section=last)
    table.add_row("all", str(rows), *(short_number(overall[name].value) for name in shown), style="bold")
    for end in ("low", "high"):
        table.add_row(end, "", *(short_number(getattr(overall[name], end)) for name in shown), style="dim")
    return table


def _answer_table(
    deployed: Deployed, ids: NDArray[Any], answers: Answers, order: NDArray[np.int64], asked: NDArray[np.int64]
) -> pl.DataFrame:
    """Answers in order of time, the precedents that count most first."""
    view = deployed.live.lookup.view
    row_of = view.items.row.numpy()
    attention, places = answers.attention.sort(dim=1, descending=True, stable=True)
    positions, weights = answers.precedents.gather(1, places).numpy()[order], attention.numpy()[order]
    return answer_table(
        pl.Series("id", ids[row_of[asked]].tolist()),
        answers.log_probs.numpy()[order],
        deployed.classes,
        time=view.items.time.numpy()[asked],
        labels=view.items.label.numpy()[asked],
        precedents=[ids[row_of[found[found >= 0]]].tolist() for found in positions],
        weights=[each[found >= 0].tolist() for found, each in zip(positions, weights, strict=True)],
    )
