"""A table of events as the stream that models and peers are compared on, with what it takes to see new rows alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recollect.data.embedding import EmbedderSpec
from recollect.data.events import Events
from recollect.data.feature_fitting import fit_features
from recollect.data.features import WORDS
from recollect.data.intake import Embeddings, Intake, embed_texts, fit_intake
from recollect.data.schema import TableSchema
from recollect.errors import DataError, SettingError
from recollect.evaluation.stream import Stream


@dataclass(frozen=True)
class Prepared:
    """A stream with its intake, the names of the classes by code (those of the past first) and the events behind it,
    in the stream's order."""

    stream: Stream
    intake: Intake
    classes: tuple[str, ...]
    events: Events


def prepare(
    events: Events,
    schema: TableSchema,
    *,
    cutoff: int | float | None,
    bins: int,
    embedder: str | EmbedderSpec | None,
    cache: Path,
    seen_as: tuple[Intake, tuple[str, ...]] | None = None,
) -> Prepared:
    """Events in order of time, features fitted on those known before the cutoff, and `bins` equal spans after it.

    Without a cutoff all of them are the past. `seen_as` is the intake of another model and its classes: then nothing is
    fitted, and these classes come first.
    """
    events = events.take(np.argsort(events.time, kind="stable"))
    if events.label is None:
        raise DataError("the rows have no label: say which column it is with --label")
    if events.time[0] == events.time[-1]:
        only = (
            events.time[0] if schema.plain_times else np.datetime64(int(events.time[0]), "ns").astype("datetime64[s]")
        )
        raise DataError(
            f"all times are {only}: there is no before and after; give more rows, or name another column with --time"
        )
    to_be_asked = cutoff is not None
    if cutoff is None:
        cutoff = events.known_at.max().item() + 1
    past = np.flatnonzero(events.known_at < cutoff)
    if not len(past) or (to_be_asked and not (events.time >= cutoff).any()):
        raise SettingError(
            f"{len(past)} labels are known before the cutoff and {int((events.time >= cutoff).sum())} rows come after "
            "it: choose one in between with --cutoff, or a shorter --label-delay if there is one"
        )
    classes = class_names(events.label, past, () if seen_as is None else seen_as[1])
    first_code = {name: code for code, name in enumerate(classes)}
    labels = events.label.replace_strict(first_code, return_dtype=pl.Int64).to_numpy().copy()
    of_past = max(int(labels[past].max()) + 1, 0 if seen_as is None else len(seen_as[1]))
    if of_past < 2:
        when, later = (" before the cutoff", "choose a later cutoff, ") if to_be_asked else ("", "give more rows, ")
        raise DataError(f"the label is always {classes[0]!r}{when}: {later}or name another label column with --label")
    if not schema.features:
        raise _nothing_to_learn_from(schema.ignored)
    embeddings = embed_texts(events.columns, schema, embedder, cache)
    intake = (
        seen_as[0]
        if seen_as
        else fit_intake(events.columns, past, schema, embedder, embeddings, labels, events.time, events.known_at)
    )
    if not intake.specs:
        raise _nothing_to_learn_from(intake.features.left_out)
    stream = make_stream(
        events.columns,
        intake,
        embeddings,
        labels,
        events.time,
        events.known_at,
        equal_bins(events.time, cutoff, bins) if to_be_asked else np.full(len(events), -1),
        cutoff,
        of_past,
    )
    return Prepared(stream, intake, classes, events)


def _nothing_to_learn_from(left_out: Mapping[str, str]) -> DataError:
    reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
    return DataError(f"no column is left to learn from ({reasons or 'none was given'}): declare other features")


def class_names(labels: pl.Series, past: NDArray[np.int64], first: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Classes of the past in order, numbers by their value; then those first seen later, as they come. Where some are
    to be `first`, all others are in the order they come in, as in a history."""
    if first:
        return (*first, *(name for name in labels.unique(maintain_order=True).to_list() if name not in first))
    before = labels.gather(past).unique().to_list()
    try:
        before = sorted(before, key=float)
    except ValueError:
        before = sorted(before)
    known = set(before)
    return (*before, *(name for name in labels.unique(maintain_order=True).to_list() if name not in known))


def after_share(time: NDArray[Any], share: float) -> int | float:
    """The moment before which this share of the rows happened."""
    if not 0 < share < 1:
        raise SettingError(f"the share before the cutoff is {share}: it must be between 0 and 1")
    found: int | float = np.sort(time)[int(share * len(time))].item()
    return found


def equal_bins(time: NDArray[Any], cutoff: int | float, count: int) -> NDArray[np.int64]:
    """Numbers of `count` spans of equal length from the cutoff to the end; negative before."""
    length = (time[-1].item() - cutoff) / count
    if length <= 0:  # all that comes after the cutoff comes with it
        return np.where(time < cutoff, -1, 0)
    numbers: NDArray[np.int64] = np.floor((time - cutoff) / length).astype(np.int64)
    return np.minimum(numbers, count - 1)


def make_stream(
    columns: pl.DataFrame,
    intake: Intake,
    embeddings: Embeddings,
    labels: NDArray[np.int64],
    time: NDArray[Any],
    known_at: NDArray[Any],
    bins: NDArray[np.int64],
    cutoff: int | float,
    num_classes: int,
) -> Stream:
    """Peers get the same columns without bounds, and with a place for what first comes later: they are refitted, and
    may learn what it means. What words say is the same for everyone."""
    past = np.flatnonzero(known_at < cutoff)
    of_past = {name: rows[past] for name, rows in embeddings.items()}
    for_peers = fit_features(columns[past], intake.schema, of_past, ever=columns)
    features = intake(columns, embeddings, progress=True)
    unbounded, specs = for_peers(columns, embeddings), for_peers.specs
    if intake.words is not None:
        unbounded, specs = unbounded | {WORDS: features[WORDS]}, [*specs, intake.words.spec]
    return Stream(
        features,
        intake.specs,
        labels,
        time,
        known_at,
        bins,
        cutoff,
        num_classes=num_classes,
        unbounded=(unbounded, tuple(specs)),
    )
