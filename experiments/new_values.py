"""Values of a category that came after the cutoff, or hardly ever before it: what do labels tell of them?

    python experiments/new_values.py

Made-up tables of which the first half is trained on. `shops`: half of 60 open after the cutoff; `users` and `merchants`
have seven and five rows each before it, and nothing drifts; `idle`: 900 values that tell nothing beside three numbers
that do. Accuracy and nll over all rows after the cutoff, and of shops accuracy over those that are new: of the default
recipe, of the same model without terms, and of a logistic regression, frozen and refitted five times on all there is.
One seed, two minutes. Prints one JSON object as its last line.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recollect.comparison.runs import asked_and_before
from recollect.config import recipe_named
from recollect.data.intake import fit_intake
from recollect.data.schema import TableSchema
from recollect.evaluation.metrics import accuracy, nll
from recollect.evaluation.peers import peers
from recollect.evaluation.replay import replay
from recollect.evaluation.stream import Stream
from recollect.evaluation.table_stream import make_stream
from recollect.training.fit import fit

BINS = 5


def values_that_tell(rows: int, before: int, after: int, seed: int) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    """Each value has its own share of positive labels, most of them near 0 or 1; a number beside them tells nothing."""
    generator = np.random.default_rng(seed)
    shares = generator.beta(0.3, 0.3, after)
    late = np.arange(rows) >= rows // 2
    value = np.where(late, generator.integers(0, after, rows), generator.integers(0, before, rows))
    table = pl.DataFrame({"value": [f"v{each}" for each in value], "number": generator.normal(size=rows)})
    return table, (generator.random(rows) < shares[value]).astype(np.int64)


def values_that_tell_nothing(rows: int, seed: int) -> tuple[pl.DataFrame, NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(rows, 3))
    columns = {f"x{place}": numbers[:, place] for place in range(3)}
    for name, count in (("value", 600), ("other", 300)):
        columns[name] = np.array([f"v{each}" for each in generator.integers(0, count, rows)])
    return pl.DataFrame(columns), (numbers[:, 0] + 0.7 * generator.normal(size=rows) > 0).astype(np.int64)


def stream_of(table: pl.DataFrame, labels: NDArray[np.int64]) -> Stream:
    rows, texts = table.height, tuple(name for name, kind in table.schema.items() if kind == pl.String)
    schema = TableSchema(numeric=tuple(name for name in table.columns if name not in texts), categorical=texts)
    time, cutoff = np.arange(rows, dtype=np.float64), rows / 2
    bins = np.floor((time - cutoff) * BINS / (rows - cutoff)).astype(np.int64)
    intake = fit_intake(table, np.arange(rows // 2), schema, None, {}, labels, time, time)
    return make_stream(table, intake, {}, labels, time, time, bins, cutoff, 2)


def compared(table: pl.DataFrame, labels: NDArray[np.int64]) -> dict[str, Any]:
    stream = stream_of(table, labels)
    fitted = fit(stream, recipe_named("default"))
    plain = replace(fitted, model=replace(fitted.model, terms=False))
    answers = {}
    for name, each in (("ours", fitted), ("without terms", plain)):
        replayed = replay(each.live())
        answers[name], _ = asked_and_before(stream, replayed, replayed.log_probs)
    span = float(table.height)
    for peer in peers(period=span / 2 / BINS, year=span, names=["logreg_frozen", "logreg_refit_year"]):
        answers[peer.name] = peer.predict(stream)
    known, asked = set(table["value"][: table.height // 2]), stream.asked
    new = np.array([value not in known for value in table["value"].gather(asked)])
    found: dict[str, Any] = {"new": round(float(new.mean()), 3)}
    for name, said in answers.items():
        found[name] = [round(measure(said, labels[asked]), 3) for measure in (accuracy, nll)]
        if new.mean() > 0.1:
            found[name].append(round(accuracy(said[new], labels[asked[new]]), 3))
    return found


def main() -> None:
    torch.set_num_threads(1)
    tables = {
        "shops": values_that_tell(4000, 30, 60, seed=5),
        "users": values_that_tell(4000, 300, 300, seed=6),
        "merchants": values_that_tell(8000, 800, 800, seed=7),
        "idle": values_that_tell_nothing(4000, seed=3),
    }
    found = {}
    for name, made in tables.items():
        found[name] = compared(*made)
        print(name, found[name], flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
