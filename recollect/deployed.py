"""A trained model with a history on disk: raw rows in, answers with precedents out, and labelled rows into the history.

The command line and the service share it. Rows go through the very features, embedder and keys of training.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import time_ns
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from recollect.answering.live import Answers, Live
from recollect.data.events import Events
from recollect.data.intake import Intake
from recollect.data.schema import TableSchema
from recollect.errors import SettingError
from recollect.history.disk.schema import Column, Key, Schema
from recollect.history.reader import History
from recollect.history.snapshot import Snapshot
from recollect.history.writer import Appended, HistoryWriter, OnDuplicate
from recollect.records import TERMS, Features
from recollect.trained import Trained

ROW = "row"
"""The payload: the raw columns of an item as JSON, for explanations."""


@dataclass(frozen=True)
class Precedent:
    """An item that the network was shown: how old it was then, with what label, and how much the network attended to
    it. `similarity` is the cosine of its key and the input's. The labels of other near items count in an answer as
    well."""

    id: str | int
    label: str
    age: float
    weight: float
    similarity: float
    row: dict[str, Any] | None


@dataclass(frozen=True)
class Prediction:
    """One answer."""

    label: str
    probabilities: dict[str, float]
    precedents: list[Precedent]


def rows_schema(schema: TableSchema, columns: Sequence[str]) -> TableSchema:
    """How rows are read that are to be answered: without labels, and with a time or an id only where they have one."""
    time = schema.time if schema.time in columns else None
    unasked = [name for name in (schema.label, schema.known_at) if name is not None]
    return replace(
        schema,
        time=time,
        time_unit=None if time is None else schema.time_unit,
        known_at=None,
        known_at_unit=None,
        label=None,
        id=schema.id if schema.id in columns else None,
        ignored={**schema.ignored, **dict.fromkeys(unasked, "not needed for an answer")},
    )


def history_schema(model: Trained) -> Schema:
    """What items of this model look like."""
    types = {"numeric": "float32", "embedded": "float16", "categorical": "int32"}
    features = tuple(
        Column(spec.name, types[spec.kind], () if spec.kind == "categorical" else (spec.width,)) for spec in model.specs
    )
    if num_terms := intake_of(model).num_terms:
        features += (Column(TERMS, "int32", (num_terms,)),)
    plain = intake_of(model).schema.plain_times
    return Schema(
        Key(model.keys.key_dim, function=model.keys.fingerprint),
        features,
        time="number" if plain else "nanoseconds",
        payload=pa.schema([(ROW, pa.string())]),
    )


def intake_of(model: Trained) -> Intake:
    if model.intake is None:
        raise SettingError("this model was trained on tensors, not on rows of a table: train one with recollect train")
    return model.intake


def create_history(path: str | Path, model: Trained) -> HistoryWriter:
    return HistoryWriter.create(path, history_schema(model), classes=model.classes)


def append_events(
    writer: HistoryWriter,
    model: Trained,
    events: Events,
    *,
    on_duplicate: OnDuplicate = "refuse",
    cache: Path | None = None,
) -> Appended:
    """Labelled events become items; those already there by id are refused or skipped. Texts that are in the cache, if
    there is one, are not embedded again."""
    if events.label is None:
        raise SettingError("items need labels: say which column holds them")
    features = seen(model, events.columns, cache)
    return writer.append(
        {
            "id": events.id.to_list(),
            "time": events.time,
            "known_at": events.known_at,
            "label": events.label.to_list(),
            "key": model.keys(features).numpy(),
            ROW: [raw_json(row) for row in events.columns.iter_rows(named=True)],
            **{name: value.numpy() for name, value in features.items()},
        },
        on_duplicate=on_duplicate,
    )


def seen(model: Trained, columns: pl.DataFrame, cache: Path | None = None) -> Features:
    """What the model sees of raw rows. Embeddings are rounded as they are stored: an input is what it is as an item."""
    intake = intake_of(model)
    features = intake(columns, intake.embed(columns, cache))
    kinds = {spec.name: spec.kind for spec in model.specs}
    return {name: value.half().float() if kinds.get(name) == "embedded" else value for name, value in features.items()}


def raw_json(row: dict[str, Any]) -> str:
    """Lists are embeddings that came with the row: nobody reads those."""
    plain = {name: value for name, value in row.items() if not isinstance(value, (list, tuple, np.ndarray))}
    return json.dumps(plain, ensure_ascii=False, default=str)


def _check_classes(model: Trained, snapshot: Snapshot) -> None:
    """A label is stored as its number among the history's classes, and answered as its number among the model's."""
    if snapshot.classes[: len(model.classes)] != model.classes:
        raise SettingError(
            f"the first classes of history {snapshot.url} are not those of the model, in their order: train with "
            "--keys-of the model that the history was made with, or make another history with recollect train --history"
        )


def check_features(model: Trained, snapshot: Snapshot) -> None:
    """What a model reads of items has to be there, whoever made the keys."""
    there = {column.name: column for column in snapshot.schema.features}
    for column in history_schema(model).features:
        if there.get(column.name) != column:
            raise SettingError(
                f"history {snapshot.url} has no column {column.name} of {column.dtype} {list(column.shape)}, which the "
                "model reads of each item: make another history of it with recollect train --history, or take the "
                "model that this one was made with"
            )


class Deployed:
    """A model following a history. One thread at a time. `cache` is where embeddings of texts are kept, if anywhere."""

    def __init__(self, model: Trained, history: History, cache: Path | None = None) -> None:
        self.model, self.history, self.cache = model, history, cache
        self.intake = intake_of(model)
        check_features(model, history.snapshot)
        _check_classes(model, history.snapshot)
        self.live: Live = model.live()
        self.live.follow(history.snapshot)

    @staticmethod
    def open(model: str | Path, history: str | Path, cache: Path | None = None) -> "Deployed":
        return Deployed(Trained.load(Path(model)), History.open(history), cache)

    @cached_property
    def fingerprint(self) -> str:
        """Of the model."""
        return self.model.fingerprint()

    @property
    def snapshot(self) -> Snapshot:
        return self.history.snapshot

    @property
    def classes(self) -> tuple[str, ...]:
        """By code: those of training first, then those that came with later items."""
        return self.snapshot.classes

    def refresh(self) -> None:
        """See what was appended since."""
        self.live.follow(self.history.refresh())

    def now(self, present: int | None = None) -> int | float:
        """The moment after everything that is known, or the present, whichever is later. `present`: as somebody knows
        it who waits for what is being written."""
        newest = self.live.lookup.view.newest
        if self.intake.schema.plain_times:
            return float(np.nextafter(newest or 0.0, np.inf))
        present = time_ns() if present is None else present
        return present if newest is None else max(present, int(newest) + 1)

    def features(self, columns: pl.DataFrame) -> tuple[Features, Tensor]:
        """What the model sees of raw rows, and their keys."""
        features = seen(self.model, columns, self.cache)
        return features, self.model.keys(features)

    def answer(self, columns: pl.DataFrame, as_of: NDArray[Any]) -> Answers:
        features, keys = self.features(columns)
        return self.live.answer(features, keys, torch.from_numpy(as_of))

    def predict(
        self, columns: pl.DataFrame, as_of: NDArray[Any], *, most: int = 5, rows: bool = True
    ) -> list[Prediction]:
        """Answers with the precedents that count most; with `rows` their raw columns too."""
        features, keys = self.features(columns)
        moments = torch.from_numpy(as_of)
        answers = self.live.answer(features, keys, moments)
        return self.described(answers, keys, moments, most=most, rows=rows)

    def described(self, answers: Answers, keys: Tensor, as_of: Tensor, *, most: int, rows: bool) -> list[Prediction]:
        """Names for classes, ids for positions."""
        view, snapshot, classes = self.live.lookup.view, self.snapshot, self.classes
        order = answers.attention.argsort(dim=1, descending=True, stable=True)[:, :most]
        positions = answers.precedents.gather(1, order)
        weights = answers.attention.gather(1, order)
        stored = view.at("row", positions)
        labels, ages = view.at("label", positions), self.ages(positions, as_of)
        near = torch.nn.functional.cosine_similarity(view.at("key", positions).float(), keys.unsqueeze(1), dim=-1)
        there = positions >= 0
        ids = self._ids(snapshot, stored[there].tolist())
        payload = self._payload(snapshot, stored[there]) if rows else [None] * len(ids)
        of_slot = iter(zip(ids, payload, strict=True))
        found = []
        said = np.exp(answers.log_probs.numpy())  # as replays write them
        for row, log_probs in enumerate(answers.log_probs):
            probabilities = {classes[code]: float(value) for code, value in enumerate(said[row])}
            precedents = []
            for slot in torch.nonzero(there[row]).flatten().tolist():
                id, raw = next(of_slot)
                precedents.append(
                    Precedent(
                        id,
                        classes[int(labels[row, slot])],
                        float(ages[row, slot]),
                        float(weights[row, slot]),
                        float(near[row, slot]),
                        raw,
                    )
                )
            found.append(Prediction(classes[int(log_probs.argmax())], probabilities, precedents))
        return found

    def ages(self, positions: Int[Tensor, "batch few"], as_of: Shaped[Tensor, " batch"]) -> Float[Tensor, "batch few"]:
        """How old items were at these moments: in days, or in the table's own unit where times are plain numbers."""
        times = self.live.lookup.view.at("time", positions)
        return (as_of.unsqueeze(1) - times).double() / (1.0 if self.intake.schema.plain_times else 86_400e9)

    def _ids(self, snapshot: Snapshot, rows: Sequence[int]) -> list[Any]:
        return [snapshot.column("id", row, row + 1)[0].item() for row in rows]

    def _payload(self, snapshot: Snapshot, rows: Tensor) -> list[dict[str, Any] | None]:
        if not len(rows):
            return []
        texts = snapshot.payload(rows).column(ROW).to_pylist()
        return [None if text is None else json.loads(text) for text in texts]
