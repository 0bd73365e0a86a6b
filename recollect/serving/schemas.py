"""What requests and answers look like, with examples: the contract that /openapi.json shows.

What a row may hold depends on the model, so its schema is made of the table's (`row_schema`).
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, WithJsonSchema, model_validator

from recollect.data.names import name_of
from recollect.data.schema import TableSchema

EXACT = 2**53  # up to here JSON's numbers are whole ones everywhere
NO_CONTROL = r"^[^\x00-\x1f\x7f]+$"
LARGEST = 3e38  # lists of numbers are read in single precision
EXAMPLE_ID = "order-17"
NARROW = 8
"""Wider embeddings are left out of examples: nobody could read these."""

Id = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=NO_CONTROL,
        description="Names an input or an item.",
        examples=[EXAMPLE_ID],
    ),
]


def _label(given: Any) -> str:
    """As a table's labels are read: 5, 5.0 and "5.0" are the same, and so are true and "True"."""
    if isinstance(given, bool):
        return name_of(str(given))
    if isinstance(given, (int, float)) and abs(given) <= EXACT and given == int(given):
        return str(int(given))
    if not isinstance(given, str):
        raise ValueError("must be a text, a whole number, true or false")
    return name_of(given)


def _whole(given: Any) -> Any:
    """JSON doesn't tell 5.0 from 5."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


LABEL_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 200, "pattern": NO_CONTROL},
        {"type": "integer", "minimum": -EXACT, "maximum": EXACT},
        {"type": "boolean"},
    ],
    "description": "The name of a class. A new name makes a new class.",
    "examples": ["yes"],
}
Label = Annotated[
    str,
    Field(min_length=1, max_length=200, pattern=NO_CONTROL),
    BeforeValidator(_label),
    WithJsonSchema(LABEL_SCHEMA),
]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Moment(RootModel[str | float]):
    """ISO 8601 in UTC, or a number where times are plain numbers."""

    @model_validator(mode="before")
    @classmethod
    def _is_one(cls, given: Any) -> Any:
        if isinstance(given, bool) or not isinstance(given, (str, int, float)):
            raise ValueError("must be a time as a text, or a number where times are plain numbers")
        return given if isinstance(given, str) else float(given)


class Row(RootModel[dict[str, Any]]):
    """Raw columns by the names of the table the model was trained on."""


class Input(Model):
    row: Row
    id: Id | None = Field(None, description="To send a label for it later; made up if there is none.")


class PredictRequest(Model):
    inputs: list[Input] = Field(min_length=1)
    as_of: Moment | None = Field(None, description="Answer as of this moment; by default as of now.")
    precedents: Annotated[int, BeforeValidator(_whole), Field(strict=True)] = Field(
        5, ge=0, le=64, description="How many precedents to show of each."
    )


class PrecedentOut(BaseModel):
    """An item the network was shown. `age` is in days, or in the table's own unit where times are plain numbers."""

    id: str
    label: str
    age: float
    weight: float = Field(description="The classifier's attention on it.")
    similarity: float = Field(description="Cosine of its key and the input's.")
    row: dict[str, Any] | None = Field(None, description="Its raw columns; null without the scope payloads.")


class PredictionOut(BaseModel):
    id: str
    label: str
    probabilities: dict[str, float]
    precedents: list[PrecedentOut]


class PredictResponse(BaseModel):
    predictions: list[PredictionOut]
    as_of: Moment
    version: int = Field(description="Of the history that the answer rests on.")
    model: str = Field(description="Fingerprint of the model.")
    unscored: int = Field(description="Newest items that don't count for the weights of the heads yet.")


class Item(Model):
    row: Row
    id: Id
    label: Label
    time: Moment | None = Field(None, description="When it happened; by default now.")
    known_at: Moment | None = Field(None, description="When its label was known; by default now.")


class ItemsRequest(Model):
    items: list[Item] = Field(min_length=1)


class LabelIn(Model):
    id: Id
    label: Label
    known_at: Moment | None = Field(None, description="When the label was known; by default now.")


class LabelsRequest(Model):
    labels: list[LabelIn] = Field(min_length=1)


class WrittenItem(BaseModel):
    id: str
    status: str = Field(description="added, or there if it was there already", examples=["added"])


class WrittenResponse(BaseModel):
    items: list[WrittenItem]
    version: int = Field(description="Of the history that has them.")


class CorrectionRequest(Model):
    label: Label
    at: Moment | None = Field(None, description="From when on the new label counts; by default from now on.")


class CorrectionResponse(BaseModel):
    id: str
    changed: bool
    version: int


class ErasureResponse(BaseModel):
    id: str
    erased: int = Field(description="Stored rows that were taken out; a corrected item has more than one.")
    input_dropped: bool = Field(description="Whether an input of that id was kept, which is gone too.")


class ItemOut(BaseModel):
    id: str
    label: str
    time: Moment
    known_at: Moment
    row: dict[str, Any] | None = Field(None, description="Its raw columns; null without the scope payloads.")


class HealthOut(BaseModel):
    status: str = Field(examples=["ok"])


class ReadyOut(BaseModel):
    status: str = Field(examples=["ready"])
    model: str
    version: int


class HourOut(BaseModel):
    """`accuracy` is of the answers whose labels came in that hour."""

    start: str
    predictions: int
    labelled: int
    accuracy: float | None


class StatusOut(BaseModel):
    """What the page shows."""

    model: str
    version: int
    items: int
    newest: Moment | None = Field(description="When the label that came last was known.")
    classes: list[str]
    columns: dict[str, str] = Field(description="Columns of the table, and what each is for.")
    plain_times: bool
    writes: str = Field(description="here, elsewhere or never", examples=["here"])
    unscored: int
    inputs_lost: int
    hours: list[HourOut]
    scopes: list[str] = Field(description="What the sender may do.")


class ReloadOut(BaseModel):
    model: str
    before: str


class FaultOut(BaseModel):
    pointer: str
    detail: str


class ProblemOut(BaseModel):
    """RFC 9457: what went wrong, and what to change."""

    type: str = Field(examples=["urn:recollect:invalid"])
    title: str
    status: int
    detail: str
    errors: list[FaultOut] = Field(default_factory=list)
    errors_left_out: int = Field(0, description="How many more there are.")


MOMENT_PATTERN = (
    r"^(1[7-9]|20|21)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T"
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?Z$"
)


def moment_schema(schema: TableSchema) -> dict[str, Any]:
    """JSON schema of a moment. Other ways of ISO 8601 are understood as well."""
    if schema.plain_times:
        return {"title": "Moment", "type": "number", "minimum": -EXACT + 1, "maximum": EXACT - 1, "examples": [1234.5]}
    examples = ["2024-05-01T12:00:00Z"]
    return {"title": "Moment", "type": "string", "pattern": MOMENT_PATTERN, "examples": examples}


def row_schema(schema: TableSchema, longest: int) -> dict[str, Any]:
    """JSON schema of a row of this table."""
    text = {"type": "string", "maxLength": longest}
    name = {"anyOf": [text, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
    properties: dict[str, Any] = {}
    for column, role in schema.roles().items():
        if role == "numeric":
            properties[column] = {"type": ["number", "null"]}
        elif role == "embedding":
            width = schema.embedding[column]
            number = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
            numbers = {"type": "array", "items": number, "minItems": width, "maxItems": width}
            properties[column] = {"anyOf": [numbers, {"type": "null"}]}
        elif role == "ignored":
            properties[column] = {"description": "Not read."}
        elif role in ("categorical", "text"):
            properties[column] = name
    return {
        "title": "Row",
        "type": "object",
        "description": "Features by the names of the table the model was trained on; what is left out is missing.",
        "properties": properties,
        "additionalProperties": False,
        "examples": [example_row(schema)],
    }


def example_row(schema: TableSchema) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(schema.numeric, 0.5)
    found |= dict.fromkeys(schema.categorical, "red") | dict.fromkeys(schema.text, "some text")
    return found | {name: [0.1] * width for name, width in schema.embedding.items() if width <= NARROW}
