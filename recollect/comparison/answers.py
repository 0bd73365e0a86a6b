"""Every model's answers in a comparison as files of their own, so that any two can be set side by side."""

from collections.abc import Sequence
from pathlib import Path

from recollect.comparison.runs import Runs
from recollect.evaluation.answer_table import answer_table, write_table
from recollect.evaluation.table_stream import Prepared

PREDICTIONS = "predictions"


def write_every_answer(out: Path, prepared: Prepared, runs: Runs, seeds: Sequence[int], peers: Sequence[str]) -> None:
    """predictions/MODEL-SEED.parquet for ours, and MODEL.parquet for peers, which run once; without precedents."""
    folder = out / PREDICTIONS
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.parquet"):
        old.unlink()  # of a comparison that was here before, perhaps with other peers
    stream, rows = prepared.stream, prepared.stream.asked
    for model, answers in runs.log_probs.items():
        names = [model] if model in peers else [f"{model}-{seed}" for seed in seeds]
        for name, log_probs in zip(names, answers, strict=True):
            table = answer_table(
                prepared.events.id.gather(rows),
                log_probs,
                prepared.classes,
                time=stream.time[rows],
                labels=stream.labels[rows],
            )
            write_table(table, folder / f"{name}.parquet")
