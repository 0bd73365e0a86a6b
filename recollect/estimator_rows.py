"""What an estimator does around a model: labels and times as they come checked, and precedents as a frame.

Errors here are as scikit-learn has them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite
from torch import Tensor

from recollect.answering.live import Answers
from recollect.data.frames import stored_times
from recollect.data.tables.sources import is_missing
from recollect.errors import RecollectError
from recollect.history.key_table import TableView

PRECEDENT_COLUMNS = ["input", "rank", "id", "age", "label", "weight", "similarity"]


@contextmanager
def value_errors() -> Iterator[None]:
    """What is wrong with arguments is a ValueError here, as everywhere in scikit-learn."""
    try:
        yield
    except RecollectError as error:
        raise ValueError(str(error)) from error


def checked_labels(y: Any, rows: Any) -> NDArray[Any]:
    labels: NDArray[Any] = column_or_1d(y, warn=True)
    if labels.dtype == object and (missing := [row for row, label in enumerate(labels) if is_missing(label)]):
        raise ValueError(f"y has no label for {len(missing)} rows, the first is row {missing[0]}: leave such rows out")
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    check_consistent_length(rows, labels)
    return labels


def extended(classes: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes with those first seen now behind the others, and the labels' codes."""
    code = {name: number for number, name in enumerate(classes.tolist())}
    new = [name for name in dict.fromkeys(labels.tolist()) if name not in code]
    if new:
        if len({isinstance(each, str) for each in (*classes.tolist(), *new)}) > 1:
            raise ValueError(f"the label {new[0]!r} is of another kind than the classes {classes[:3].tolist()}")
        code |= {name: len(classes) + number for number, name in enumerate(new)}
        classes = np.concatenate([classes, np.array(new, dtype=labels.dtype)])
    return classes, np.array([code[name] for name in labels.tolist()], dtype=np.int64)


def check_times(times: NDArray[Any], known: NDArray[Any], count: int, kind: np.dtype[Any]) -> None:
    for name, values in (("time", times), ("known_at", known)):
        if len(values) != count:
            raise ValueError(f"{name} has {len(values)} moments for {count} rows: give one for every row")
        if values.dtype != kind:
            raise ValueError(f"{name} is {kind_of(values.dtype)}, the times are {kind_of(kind)}: give the same")


def moments_for(as_of: Any, count: int, known_at: NDArray[Any], by_order: bool) -> Shaped[Tensor, " batch"]:
    """When each of so many rows is asked about: one moment for all, one for each, or None for after everything."""
    if as_of is None:
        return torch.from_numpy(np.full(count, after(known_at.max(), by_order)))
    moments = stored_times(as_of, "as_of")
    if moments.dtype != known_at.dtype:
        raise ValueError(f"as_of is {kind_of(moments.dtype)}, the times are {kind_of(known_at.dtype)}: give the same")
    if len(moments) not in (1, count):
        raise ValueError(f"as_of has {len(moments)} moments for {count} rows: give one, or one for every row")
    return torch.from_numpy(np.broadcast_to(moments, count).copy())


def kind_of(dtype: np.dtype[Any]) -> str:
    return "moments" if dtype == np.int64 else "plain numbers"


def after(last: Any, by_order: bool) -> Any:
    """The first moment at which what was known last is seen; the next row's where their order is the time."""
    if last.dtype == np.int64:
        return last + 1
    return np.floor(last) + 1 if by_order else np.nextafter(last, np.inf)


def precedents_of(
    answers: Answers,
    view: TableView,
    ids: Int[Tensor, " items"],
    keys: Float[Tensor, "batch key_dim"],
    as_of: Shaped[Tensor, " batch"],
) -> dict[str, Shaped[Tensor, "batch retrieved"]]:
    """All that is said of the precedents of some answers, slot by slot."""
    positions = answers.precedents
    theirs = view.at("key", positions).double()
    return {
        "there": positions >= 0,
        "id": ids[view.at("row", positions)],
        "age": as_of.unsqueeze(1) - view.at("time", positions),
        "label": view.at("label", positions),
        "weight": answers.attention,
        "similarity": torch.cosine_similarity(theirs, keys.double().unsqueeze(1), dim=-1),
    }


def precedent_frame(
    parts: Sequence[dict[str, Shaped[Tensor, "batch retrieved"]]], classes: NDArray[Any]
) -> pd.DataFrame:
    """One row for each precedent, by input and then by weight."""
    slots = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    there = slots.pop("there")
    columns = {"input": there.nonzero()[:, 0].numpy()} | {name: each[there].numpy() for name, each in slots.items()}
    found = pd.DataFrame(columns).sort_values(["input", "weight"], ascending=[True, False], kind="stable")
    found["rank"] = found.groupby("input").cumcount() + 1
    found["label"] = classes[found["label"].to_numpy()]
    if found["age"].dtype == np.int64:
        found["age"] = pd.to_timedelta(found["age"], unit="ns")
    return found[PRECEDENT_COLUMNS].reset_index(drop=True)
