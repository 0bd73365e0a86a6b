"""Recollect as a scikit-learn classifier: fitted once, it then follows whatever labelled rows are appended to it.

All answers are `Live`'s, so that an estimator, a replay and a service say the same of the same row at the same moment.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

try:
    import pandas as pd
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import Tags, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the package {error.name} is missing: pip install 'recollect[sklearn]'", name=error.name
    ) from error

from recollect.answering.live import Answers, Live
from recollect.config import recipe_named
from recollect.data.frames import is_frame, polars_frame, read_columns, stored_times
from recollect.data.inference import infer_features
from recollect.data.intake import Intake, embed_now, fit_intake
from recollect.data.schema import TableSchema
from recollect.estimator_files import Kept, plain_value, read_kept, write_kept
from recollect.estimator_rows import (
    after,
    check_times,
    checked_labels,
    extended,
    moments_for,
    precedent_frame,
    precedents_of,
    value_errors,
)
from recollect.evaluation.stream import Stream
from recollect.history.growing import GrowingHistory
from recollect.history.memory import MemoryHistory
from recollect.records import Features
from recollect.trained import Trained
from recollect.training.fit import Sizes, fit, sizes_for

LEAST_ROWS = 2
ANSWERED_AT_ONCE = 4096
"""An answer doesn't depend on its company, so that this is about memory only."""


class RecollectClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that looks up precedents among the rows it was fitted on and those appended since.

    Arrays are columns of numbers; columns of pandas and polars DataFrames may also be categories, texts or lists of
    numbers, and NaN is a missing value. `time` says when each row happened and `known_at` when its label became known:
    numbers, datetimes or ISO 8601 texts. Without times the order of the rows is the time, from 0. A prediction as of a
    moment sees what was known strictly before; without `as_of` it comes after everything.

    `steps`, `num_retrieved` and `width` (how long it trains, how many precedents an answer has and how wide the network
    is) follow from the number of rows where they are None. `embedder` is what embeds columns of texts: a name, or an
    `EmbedderSpec`. Precedents are looked up among the last 8,192 items known at the moment
    (`recollect.training.fit.WINDOW`): older ones are kept and saved, and seen by predictions as of their time.

    Fitted attributes: `classes_` (those of `fit` in order, then those first appended as they came), `n_features_in_`,
    `feature_names_in_`, `left_out_` (columns that are not learned from, and why), `model_` and `history_`.
    """

    def __init__(
        self,
        *,
        steps: Any = None,
        num_retrieved: Any = None,
        width: Any = None,
        embedder: Any = "wordllama",
        random_state: Any = None,
    ) -> None:
        # Looked at in fit, as scikit-learn wants it: anything may be set before.
        self.steps, self.num_retrieved, self.width = steps, num_retrieved, width
        self.embedder, self.random_state = embedder, random_state

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # Learning

    def fit(self, X: Any, y: Any, time: Any = None, known_at: Any = None) -> "RecollectClassifier":
        """Train on these rows, the newest 15% of which only decide when to stop; all of them become items."""
        with value_errors():
            rows = self._checked(X, y, reset=True)
            self.classes_, codes = np.unique(checked_labels(y, rows), return_inverse=True)
            self._by_order = time is None
            times = np.arange(len(codes), dtype=np.float64) if time is None else stored_times(time, "time")
            known = times if known_at is None else stored_times(known_at, "known_at")
            check_times(times, known, len(codes), times.dtype)
            order = np.argsort(times, kind="stable")
            stream, intake = self._stream(rows, codes, times, known, order)
            seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
            fitted = fit(stream, recipe_named("default"), seed=seed, sizes=self._sizes(stream), least_past=LEAST_ROWS)
            names = tuple(str(name) for name in self.classes_.tolist())
            self.model_: Trained = replace(fitted.model, classes=names, intake=intake)
            source = fitted.lookup.view.source
            assert isinstance(source, MemoryHistory)
            ids = order[np.argsort(stream.known_at, kind="stable")]
            self.history_ = GrowingHistory(source, torch.from_numpy(ids))
            self._live = _following(self.model_, self.history_)
        return self

    def append(self, X: Any, y: Any, time: Any = None, known_at: Any = None) -> "RecollectClassifier":
        """Make labelled rows items, which the next prediction sees; no weight moves.

        Times are needed if the classifier was fitted with some. Labels may be new: see `classes_`.
        """
        check_is_fitted(self, "history_")
        with value_errors():
            rows = self._checked(X, y, reset=False)
            classes, codes = extended(self.classes_, checked_labels(y, rows))
            if time is None and not self._by_order:
                raise ValueError("time is missing: the classifier was fitted with times, so give one for every row")
            first = np.floor(self.history_.times.max().item()) + 1
            times = first + np.arange(len(codes)) if time is None else stored_times(time, "time")
            known = times if known_at is None else stored_times(known_at, "known_at")
            check_times(times, known, len(codes), self.history_.times.numpy().dtype)
            features = self._features(rows)
            self.history_.add(
                features,
                self.model_.keys(features),
                torch.from_numpy(codes),
                torch.from_numpy(times),
                torch.from_numpy(known),
                torch.arange(self.history_.count, self.history_.count + len(codes)),
            )
            self.classes_ = classes
            self._live.follow(self.history_.snapshot())
            if len(self._live.lookup.view.tail):
                # Known before others that are there: sorted in at once, as they would be after `load`.
                self._live = _following(self.model_, self.history_)
        return self

    # Answering

    def predict(self, X: Any, as_of: Any = None) -> NDArray[Any]:
        """The most probable class of each row, as of a moment or one for each."""
        probabilities = self.predict_proba(X, as_of)
        found: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return found

    def predict_proba(self, X: Any, as_of: Any = None) -> NDArray[np.float64]:
        """Probabilities in the order of `classes_`; that of a class without any precedent yet is 0."""
        check_is_fitted(self, "history_")
        with value_errors():
            parts = [answers.log_probs.double().exp().numpy() for answers, _, _ in self._answers(X, as_of)]
        probabilities = np.zeros((sum(map(len, parts)), len(self.classes_)))
        first = 0
        for part in parts:
            probabilities[first : first + len(part), : part.shape[1]] = part
            first += len(part)
        # One after the other, so that a class more, of which nothing is known yet, doesn't change how it is rounded.
        totals: NDArray[np.float64] = np.cumsum(probabilities, axis=1)[:, -1:]
        return probabilities / totals

    def precedents(self, X: Any, as_of: Any = None) -> pd.DataFrame:
        """The items each row's answer was given in view of, those with the most attention first.

        `input` is the row of X and `id` the item: rows of `fit` by number, then those appended. `age` is how long
        before the prediction it happened, `weight` the attention it was given when wary, `similarity` the cosine of the
        keys of both.
        """
        check_is_fitted(self, "history_")
        view, ids = self._live.lookup.view, self.history_.ids
        with value_errors():
            parts = [
                precedents_of(answers, view, ids, keys, moments) for answers, keys, moments in self._answers(X, as_of)
            ]
        return precedent_frame(parts, self.classes_)

    # Files

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """A directory with the model and all items, complete or not at all; nothing in it is pickled."""
        check_is_fitted(self, "history_")
        params = {name: plain_value(value) for name, value in self.get_params().items()}
        if not isinstance(params["random_state"], int):
            params["random_state"] = None  # a generator, which only a further fit would use
        names = getattr(self, "feature_names_in_", None)
        kept = Kept(
            params,
            self.classes_,
            self.n_features_in_,
            None if names is None else names.tolist(),
            self._columns,
            self._by_order,
        )
        write_kept(Path(path), kept, self.model_, self.history_, force=force)

    @classmethod
    def load(cls, path: str | Path) -> "RecollectClassifier":
        """What `save` wrote; it answers with the same bits."""
        kept, model, history = read_kept(Path(path))
        found = cls(**kept.params)
        found.classes_, found.n_features_in_ = kept.classes, kept.n_features_in
        if kept.feature_names_in is not None:
            found.feature_names_in_ = np.array(kept.feature_names_in, dtype=object)
        found._columns, found._by_order = kept.columns, kept.by_order
        found.model_, found.history_ = model, history
        found._live = _following(model, history)
        return found

    @property
    def left_out_(self) -> dict[str, str]:
        intake = self._intake
        return {**intake.schema.ignored, **intake.features.left_out}

    # From what came to what is learned

    def _checked(self, X: Any, y: Any = "no_validation", *, reset: bool) -> Any:
        """Rows as scikit-learn wants them checked; frames stay frames, since their columns have types of their own."""
        if is_frame(X):
            polars_frame(X[:0])  # a name that comes twice is told here: further on it is an error of narwhals'
            validate_data(self, X, y, reset=reset, skip_check_array=True)
            least = LEAST_ROWS if reset else 1
            if len(X) < least:
                raise ValueError(f"Found {len(X)} sample(s) while a minimum of {least} is required.")
            return X
        numbers = reset or not _has_other(self._intake.schema)
        kind, finite = ("numeric", "allow-nan") if numbers else (None, False)
        least = LEAST_ROWS if reset else 1
        if y is None:
            validate_data(self, X, y, reset=reset, skip_check_array=True)  # raises
        return validate_data(self, X, reset=reset, dtype=kind, ensure_all_finite=finite, ensure_min_samples=least)

    def _stream(
        self,
        rows: Any,
        codes: NDArray[np.int64],
        times: NDArray[Any],
        known: NDArray[Any],
        order: NDArray[np.int64],
    ) -> tuple[Stream, Intake]:
        """All of it the past: the cutoff comes after the last label."""
        frame = polars_frame(rows)
        self._columns = frame.columns
        schema = infer_features(frame) if is_frame(rows) else TableSchema(numeric=tuple(frame.columns))
        if schema.ignored:
            reasons = "; ".join(f"{name}: {why}" for name, why in schema.ignored.items())
            warnings.warn(f"columns that are not learned from ({reasons}), as left_out_ says too", stacklevel=3)
        columns = read_columns(frame, schema)[order]
        embeddings = embed_now(columns, schema, self.embedder)
        labels = codes[order].astype(np.int64)
        intake = fit_intake(
            columns, np.arange(len(order)), schema, self.embedder, embeddings, labels, times[order], known[order]
        )
        if not intake.specs:
            reasons = "; ".join(f"{name}: {why}" for name, why in intake.features.left_out.items())
            raise ValueError(f"no column is left to learn from ({reasons}): give columns that vary")
        stream = Stream(
            intake(columns, embeddings),
            intake.specs,
            labels,
            times[order],
            known[order],
            np.zeros(len(order), np.int64),
            after(known.max(), self._by_order).item(),
            num_classes=len(self.classes_),
        )
        return stream, intake

    def _sizes(self, stream: Stream) -> Sizes:
        sizes = sizes_for(len(stream))
        for name in ("steps", "num_retrieved", "width"):
            value = getattr(self, name)
            if value is None:
                continue
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} is {value!r}: give a whole number from 1 on, or None")
            sizes = replace(sizes, **{name: int(value)})
        if self.steps is not None:
            sizes = replace(sizes, validate_every=max(1, sizes.steps // 12))
        if stream.num_classes == 1:
            sizes = replace(sizes, steps=0)  # there is nothing to tell apart yet
        return sizes

    @property
    def _intake(self) -> Intake:
        assert self.model_.intake is not None
        return self.model_.intake

    def _features(self, rows: Any) -> Features:
        return self._intake(read_columns(polars_frame(rows, self._columns), self._intake.schema))

    def _answers(self, X: Any, as_of: Any) -> Iterator[tuple[Answers, torch.Tensor, torch.Tensor]]:
        """Some rows at a time: their answers, and with what keys and at what moments they were asked."""
        rows = self._checked(X, reset=False)
        features = self._features(rows)
        keys = self.model_.keys(features)
        moments = moments_for(as_of, len(rows), self.history_.known_at.numpy(), self._by_order)
        for first in range(0, len(rows), ANSWERED_AT_ONCE):
            part = slice(first, first + ANSWERED_AT_ONCE)
            some = {name: values[part] for name, values in features.items()}
            yield self._live.answer(some, keys[part], moments[part]), keys[part], moments[part]


def _following(model: Trained, history: GrowingHistory) -> Live:
    live = model.live()
    live.follow(history.snapshot())
    return live


def _has_other(schema: TableSchema) -> bool:
    """Columns that are no numbers."""
    return len(schema.numeric) < len(schema.features) + len(schema.ignored)
