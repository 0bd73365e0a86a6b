"""Peers that are fitted: logistic regression and LightGBM, once at the cutoff or anew at the start of each bin.

A fit sees only rows whose labels were known strictly before its moment. The packages behind it are imported when the
first fit is made: they take seconds.
"""

import logging
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64, Int

from recollect.evaluation.metrics import nll
from recollect.evaluation.simple_peers import Answers, Progress, answer_width, by_period, shares
from recollect.evaluation.stream import Stream

Table = Float[np.ndarray, "rows columns"]

FEWEST_ROWS = 50
"""A window of fewer rows is not worth a fit: the one before is kept."""

STRENGTHS = (1.0, 0.1, 0.01)
"""What the C of a logistic regression is chosen from; the first is scikit-learn's default."""

MOST_STEPS = 200

MULTICLASS_SHRINKAGE = 1.0
"""LightGBM's default is none, with which it diverges where some of several classes are rare: a peer must not be beaten
because of that."""

logger = logging.getLogger(__name__)


@runtime_checkable
class Fitted(Protocol):
    """What scikit-learn and LightGBM give back."""

    classes_: Any

    def predict_proba(self, table: Any, /) -> Any: ...


Skip = Callable[[int | float], None]
"""Told the moment of a refit that was left out."""

Fit = Callable[[Table, Int[np.ndarray, " rows"]], Fitted]


def frozen(stream: Stream, *, fit: Fit) -> Answers:
    """A model fitted once, on all that was known before the cutoff."""
    return _answers(_fit_past(stream, fit), stream.table[stream.asked], answer_width(stream))


def refitted(
    stream: Stream, *, fit: Fit, span: int | float, every: int | float | None, on_progress: Progress, on_skip: Skip
) -> Answers:
    """A model fitted anew at the start of each bin, or `every` so often, on rows known by then, none older than `span`.

    Where a window has too few rows or one class only, the fit before is kept; before any, that on the whole past.
    """
    width = answer_width(stream)
    found = np.empty((len(stream.asked), width))
    groups = by_period(stream, every)
    model: Fitted | None = None
    for done, places in enumerate(groups):
        rows = stream.asked[places]
        moment = stream.time[rows[0]].item()
        window = stream.known_before(moment, moment - span)
        if _worth_fitting(stream.labels[window]):
            model = fit(stream.table[window], stream.labels[window])
        else:
            on_skip(moment)
            model = _fit_past(stream, fit) if model is None else model
        found[places] = _answers(model, stream.table[rows], width)
        on_progress(done + 1, len(groups))
    return found


def fit_logistic_regression(table: Table, labels: Int[np.ndarray, " rows"]) -> Fitted:
    """scikit-learn's, on columns standardised by the rows given, which are in order of time.

    Its C is the one of `STRENGTHS` that answers the newest fifth best after a fit on the others: on 2,000 accidents in
    263 columns 0.01 is three points better than 1, on electricity's few columns two points worse.
    """
    older = len(labels) - len(labels) // 5
    if not _worth_fitting(labels[:older]):
        return _logistic_regression(table, labels, STRENGTHS[0])

    def held_out(strength: float) -> float:
        model = _logistic_regression(table[:older], labels[:older], strength)
        return nll(_answers(model, table[older:], int(labels.max()) + 1), labels[older:])

    return _logistic_regression(table, labels, min(STRENGTHS, key=held_out))


def _logistic_regression(table: Table, labels: Int[np.ndarray, " rows"], strength: float) -> Fitted:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MOST_STEPS))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(table, labels)
    if caught:
        logger.warning("logistic regression on %d rows: %s", len(labels), str(caught[0].message).splitlines()[0])
    fitted: Fitted = model
    return fitted


def fit_lightgbm(table: Table, labels: Int[np.ndarray, " rows"], *, seed: int) -> Fitted:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(
        n_estimators=200,
        reg_lambda=MULTICLASS_SHRINKAGE if len(np.unique(labels)) > 2 else 0.0,
        random_state=seed,
        num_threads=torch.get_num_threads(),
        # Row by row, since else it times both ways and takes the faster, which is not the same from run to run.
        deterministic=True,
        force_row_wise=True,
        verbose=-1,
    )
    fitted: Fitted = model.fit(table, labels)
    return fitted


class _Common:
    """Stands in for a model where there is one class only: nothing can be fitted, and little be wrong."""

    def __init__(self, label: int) -> None:
        self.classes_ = np.array([label])

    def predict_proba(self, table: Table, /) -> Float64[np.ndarray, "rows 1"]:
        return np.ones((len(table), 1))


def _worth_fitting(labels: Int[np.ndarray, " rows"]) -> bool:
    return len(labels) >= FEWEST_ROWS and bool((labels != labels[0]).any())


def _fit_past(stream: Stream, fit: Fit) -> Fitted:
    """However few rows there are: it is all there is."""
    labels = stream.labels[stream.past]
    only = np.flatnonzero(shares(stream))
    return _Common(int(only[0])) if len(only) == 1 else fit(stream.table[stream.past], labels)


def _answers(model: Fitted, table: Table, width: int) -> Float64[np.ndarray, "rows classes"]:
    found = np.full((len(table), width), -np.inf)
    with np.errstate(divide="ignore"):
        found[:, model.classes_] = np.log(model.predict_proba(table))
    return found
