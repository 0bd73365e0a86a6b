"""A history replayed through a saved model: what it would have answered to every item, and how good that was."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from recollect.deployed import Deployed
from recollect.errors import SettingError
from recollect.evaluation.metrics import accuracy, interval, previous_labels, scores, scores_by_bin
from recollect.evaluation.replay import replay
from recollect.evaluation.table_stream import equal_bins

SHOWN = ("rows", "accuracy", "balanced_accuracy", "nll", "brier", "ece", "kappa", "kappa_temporal", "coverage")


def replay_history(model: Path, history: str, *, bins: int, out: Path | None, quiet: bool) -> dict[str, Any]:
    """Test, then learn, over everything that was not trained on; every answer goes to `out`."""
    deployed = Deployed.open(model, history)
    live, view = deployed.live, deployed.live.lookup.view
    if live.untrained_from >= len(view.items):
        raise SettingError(
            f"the model was trained on all of {history}: append newer items first, with recollect ingest"
        )
    with Progress(console=Console(stderr=quiet)) as progress:
        task = progress.add_task("replaying", total=len(view.items) - live.untrained_from)
        result = replay(live, lambda done, total: progress.update(task, completed=done))
    rows = np.arange(len(view.items))
    time, known_at = (getattr(view.items, name).numpy() for name in ("time", "known_at"))
    labels = view.items.label.numpy()
    order = np.argsort(time[live.untrained_from :], kind="stable")
    asked = rows[live.untrained_from :][order]
    log_probs = result.log_probs.numpy()[order]
    previous = previous_labels(labels, time, known_at)[asked]
    numbers = equal_bins(time[asked], time[asked[0]].item(), bins)
    confident = interval(accuracy, log_probs, labels[asked], numbers, resamples=300)
    periods = scores_by_bin(log_probs, labels[asked], numbers, previous)
    report = {
        "rows": len(asked),
        "overall": scores(log_probs, labels[asked], previous),
        "accuracy": {"value": confident.value, "low": confident.low, "high": confident.high},
        "periods": periods,
        "cumulative": scores_by_bin(log_probs, labels[asked], numbers, previous, cumulative=True),
    }
    if out is not None:
        _write(out, deployed, result.answers.precedents[torch.from_numpy(order)], asked, log_probs)
    if not quiet:
        table = Table("period", *SHOWN, title=f"{len(asked)} items, each as of its own time")
        for number, period in enumerate(periods):
            cells = [f"{period[name]:.3f}" if name != "rows" else str(period[name]) for name in SHOWN]
            table.add_row(str(number + 1), *cells)
        Console().print(table)
    return report


def _write(out: Path, deployed: Deployed, precedents: torch.Tensor, asked: np.ndarray, log_probs: np.ndarray) -> None:
    view, classes = deployed.live.lookup.view, deployed.classes
    ids = np.array(deployed.snapshot.column("id").tolist(), dtype=object)
    row_of = view.items.row.numpy()
    time = pl.Series(view.items.time.numpy()[asked])
    probabilities = np.exp(log_probs)
    pl.DataFrame(
        {
            "id": [ids[row] for row in row_of[asked]],
            "time": time.cast(pl.Datetime("ns", "UTC")) if time.dtype == pl.Int64 else time,
            "label": [classes[code] for code in view.items.label.numpy()[asked].tolist()],
            "predicted": [classes[code] for code in probabilities.argmax(1).tolist()],
            **{f"probability_{classes[code]}": probabilities[:, code] for code in range(probabilities.shape[1])},
            "precedents": [[ids[row_of[each]] for each in found.tolist() if each >= 0] for found in precedents],
        }
    ).write_parquet(out)
