"""Whole requests and answers as examples, made of the columns and classes of the table that is served.

Of the table's rows nothing is shown: the contract can be read without a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from recollect.data.schema import TableSchema
from recollect.serving import schemas
from recollect.serving.schemas import EXAMPLE_ID, example_row

OTHER_ID = "order-18"
EARLIER, LATER = "2024-05-01T12:00:00Z", "2024-05-02T09:30:00Z"


@dataclass(frozen=True)
class Example:
    answer: BaseModel | str
    request: BaseModel | None = None


def examples(
    schema: TableSchema, classes: Sequence[str], columns: Mapping[str, str], model: str
) -> dict[tuple[str, str], Example]:
    """By path and method, as OpenAPI writes them."""
    row = schemas.Row(example_row(schema))
    label, other = [*classes, "yes", "no"][:2]
    shares = dict.fromkeys(classes, 0.0) | {label: 0.75, other: 0.25}
    earlier, later = map(schemas.Moment, (1234.5, 1236.0) if schema.plain_times else (EARLIER, LATER))
    item = schemas.Item(row=row, id=OTHER_ID, label=label, time=earlier, known_at=later)
    precedent = schemas.PrecedentOut(
        id=OTHER_ID, label=label, age=1.5, weight=0.31, similarity=0.87, row=example_row(schema)
    )
    answer = schemas.PredictionOut(id=EXAMPLE_ID, label=label, probabilities=shares, precedents=[precedent])
    corrected = schemas.CorrectionResponse(id=EXAMPLE_ID, changed=True, version=43)
    hour = schemas.HourOut(start="2024-05-02T09:00:00+00:00", predictions=40, labelled=12, accuracy=0.75)
    return {
        ("/predict", "post"): Example(
            schemas.PredictResponse(predictions=[answer], as_of=later, version=41, model=model, unscored=0),
            schemas.PredictRequest(inputs=[schemas.Input(row=row, id=EXAMPLE_ID)], as_of=None, precedents=5),
        ),
        ("/items", "post"): Example(_written(OTHER_ID), schemas.ItemsRequest(items=[item])),
        ("/labels", "post"): Example(
            _written(EXAMPLE_ID),
            schemas.LabelsRequest(labels=[schemas.LabelIn(id=EXAMPLE_ID, label=label, known_at=None)]),
        ),
        ("/items/{id}", "get"): Example(
            schemas.ItemOut(id=EXAMPLE_ID, label=label, time=earlier, known_at=later, row=example_row(schema))
        ),
        ("/items/{id}", "patch"): Example(corrected, schemas.CorrectionRequest(label=other, at=None)),
        ("/items/{id}", "delete"): Example(schemas.ErasureResponse(id=EXAMPLE_ID, erased=1, input_dropped=False)),
        ("/health", "get"): Example(schemas.HealthOut(status="ok")),
        ("/ready", "get"): Example(schemas.ReadyOut(status="ready", model=model, version=41)),
        ("/status", "get"): Example(
            schemas.StatusOut(
                model=model,
                version=41,
                items=1200,
                newest=later,
                classes=list(classes),
                columns=dict(columns),
                plain_times=schema.plain_times,
                writes="here",
                unscored=0,
                inputs_lost=0,
                hours=[hour],
                scopes=["payloads", "predict", "write"],
            )
        ),
        ("/metrics", "get"): Example("# TYPE recollect_history_items gauge\nrecollect_history_items 1200.0\n"),
        ("/admin/reload", "post"): Example(schemas.ReloadOut(model=model, before="0123456789abcdef")),
    }


def show_examples(contract: dict[str, Any], found: Mapping[tuple[str, str], Example]) -> None:
    """Each in its place in an OpenAPI description."""
    for (path, method), example in found.items():
        operation = contract["paths"][path][method]
        if example.request is not None:
            body = example.request.model_dump(mode="json", exclude_none=True)
            operation["requestBody"]["content"]["application/json"]["example"] = body
        answer = example.answer
        plain = answer if isinstance(answer, str) else answer.model_dump(mode="json")
        for content in operation["responses"]["200"]["content"].values():
            content["example"] = plain


def _written(id: str) -> schemas.WrittenResponse:
    return schemas.WrittenResponse(items=[schemas.WrittenItem(id=id, status="added")], version=42)
