"""What every classifier must hold to, as checks of a predictor: run in `test_checks.py` over all that there are.

Bit for bit means: on the same machine, with the same number of threads and the same build.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from recollect.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.inputs import Inputs
from recollect.predictor import Predictions, Predictor
from recollect.records import Visible
from recollect.training.batches import HistoryRows
from tests.tiny import history_of

FIELDS = [field.name for field in fields(Predictions)]


def assert_same(left: Predictions, right: Predictions) -> None:
    """Bit for bit; a class that only one of them speaks of is impossible to both."""
    classes = max(left.log_probs.shape[1], right.log_probs.shape[1])
    for name in FIELDS:
        one, other = getattr(left, name), getattr(right, name)
        if name == "log_probs":
            one, other = (F.pad(value, (0, classes - value.shape[1]), value=-torch.inf) for value in (one, other))
        assert (one is None and other is None) or torch.equal(one, other), name


def taken(predictions: Predictions, index: Tensor) -> Predictions:
    values = {name: getattr(predictions, name) for name in FIELDS}
    return Predictions(**{name: None if value is None else value[index] for name, value in values.items()})


def joined(parts: Sequence[Predictions]) -> Predictions:
    classes = max(part.log_probs.shape[1] for part in parts)
    values: dict[str, Tensor | None] = {}
    for name in FIELDS:
        column = [getattr(part, name) for part in parts]
        if name == "log_probs":
            column = [F.pad(value, (0, classes - value.shape[1]), value=-torch.inf) for value in column]
        values[name] = None if column[0] is None else torch.cat(column)
    return Predictions(**values)  # type: ignore[arg-type]


def check_sees_no_future(predictor: Predictor, rows: HistoryRows, row: int) -> None:
    """Items known at the input's time or later may be anything, or absent, or joined by as many more."""
    history = history_of(rows)
    plain = rows.rows(torch.tensor([row])).inputs
    expected = predictor.predict(plain)
    hidden = history.known_at >= plain.as_of
    cut = int(hidden.nonzero()[0])
    assert hidden[cut:].all()
    spoilt = _spoilt(history, hidden)
    more = 300  # the keys grow into another block
    grown = _rows_of(spoilt, torch.arange(len(hidden) + more).clamp(max=len(hidden) - 1))
    for other in (spoilt, _rows_of(history, torch.arange(cut)), grown):
        assert_same(predictor.predict(_over(plain, other, rows)), expected)


def _spoilt(history: MemoryHistory, hidden: Tensor) -> MemoryHistory:
    column = hidden.unsqueeze(1)
    features = {
        name: value.masked_fill(column, torch.nan) if value.is_floating_point() else value.masked_fill(hidden, 10**9)
        for name, value in history.features.items()
    }
    labels = history.labels.masked_fill(hidden, 10**6)
    return replace(history, features=features, keys=history.keys.masked_fill(column, torch.nan), labels=labels)


def _rows_of(history: MemoryHistory, index: Tensor) -> MemoryHistory:
    return MemoryHistory(
        {name: value[index] for name, value in history.features.items()},
        *(values[index] for values in (history.keys, history.labels, history.times, history.known_at)),
    )


def _over(inputs: Inputs, history: MemoryHistory, rows: HistoryRows) -> Inputs:
    """The same inputs with another history."""
    lookup = replace(rows.lookup, view=KeyTable().follow(history))
    other = lookup.inputs(inputs.features, inputs.own_keys, inputs.as_of)
    return replace(inputs, keys=other.keys, visible=other.visible, fetch=other.fetch)


def check_changes_no_input(predictor: Predictor, rows: HistoryRows, inputs: Inputs) -> None:
    """Neither what is asked nor what is looked up nor a weight is written to, even for a moment."""
    history = history_of(rows)
    tensors = {
        **{f"history.{name}": getattr(history, name) for name in ("keys", "labels", "times", "known_at")},
        **{f"history.{name}": value for name, value in history.features.items()},
        **{f"inputs.{name}": getattr(inputs, name) for name in ("rows", "own_keys", "as_of")},
        **{f"inputs.{name}": value for name, value in inputs.features.items()},
        "start": inputs.visible.start,
        "stop": inputs.visible.stop,
        **dict(predictor.system.state_dict()),
    }
    before = {name: (value.clone(), value._version) for name, value in tensors.items()}
    predictor.predict(inputs)
    predictor.predict(inputs, use_context=False)
    for name, value in tensors.items():
        copy, version = before[name]
        assert torch.equal(value, copy), name
        assert value._version == version, name


def check_batch_equals_one_by_one(predictor: Predictor, inputs: Inputs) -> None:
    """All at once, alone, in another order, and in groups of any size."""
    together = predictor.predict(inputs)
    count = len(inputs)
    some = torch.arange(0, count, 5)
    alone = [predictor.predict(inputs.take(row)) for row in some.split(1)]
    assert_same(taken(together, some), joined(alone))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    assert_same(taken(together, order), predictor.predict(inputs.take(order)))
    groups = torch.arange(count).split([7, 33, count - 40])
    assert_same(together, joined([predictor.predict(inputs.take(group)) for group in groups]))


def check_empty_history_works(predictor: Predictor, rows: HistoryRows, inputs: Inputs) -> None:
    """With no item visible, or none at all, the answer is that of the same weights without context."""
    expected = predictor.predict(inputs, use_context=False)
    assert expected.log_probs.isfinite().all()
    nothing = torch.zeros_like(inputs.visible.stop)
    assert_same(predictor.predict(replace(inputs, visible=Visible(nothing, nothing))), expected)
    empty = _rows_of(history_of(rows), torch.arange(0))
    found = predictor.predict(_over(inputs, empty, rows))
    assert torch.equal(found.log_probs, expected.log_probs)
    assert (found.positions == -1).all()


def check_seed_repeats(make: Callable[[int], Predictor], inputs: Inputs) -> None:
    """Made twice from one seed it answers the same, twice; from another seed it does not."""
    first = make(1)
    assert_same(first.predict(inputs), first.predict(inputs))
    assert_same(first.predict(inputs), make(1).predict(inputs))
    assert not torch.equal(first.predict(inputs).log_probs, make(2).predict(inputs).log_probs)


def check_save_and_load_agree(
    predictor: Predictor, make: Callable[[int], Predictor], inputs: Inputs, folder: Path
) -> None:
    """Weights that went through a checkpoint into a system made anew give the same answers."""
    path = write_checkpoint(folder, Checkpoint(0, predictor.system.state_dict(), {}))
    other = make(123)
    other.system.load_state_dict(read_checkpoint(path).tensors)
    assert_same(predictor.predict(inputs), other.predict(inputs))
