"""What the items of one history look like: fixed when it is created, written in its manifest.

Knows names, types and widths; nothing of files. A column is one array of a fixed shape per item.
"""

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch

from recollect.errors import HistoryError

TimeKind = Literal["nanoseconds", "number"]
IdKind = Literal["string", "integer"]

# bfloat16 is unknown to numpy: its bits are stored as uint16.
STORED_TYPES = {
    "float16": "<f2",
    "bfloat16": "<u2",
    "float32": "<f4",
    "float64": "<f8",
    "int8": "|i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "|u1",
    "bool": "|b1",
}
KEY_TYPES = ("float32", "float16", "bfloat16")
RESERVED = ("id", "time", "known_at", "label", "key", "commit", "until")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Column:
    """A named array per item: a scalar where `shape` is empty."""

    name: str
    dtype: str = "float32"
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise HistoryError(f"a column can't be named {self.name!r}: use letters, digits, '_', '.' and '-' only")
        if self.dtype not in STORED_TYPES:
            raise HistoryError(
                f"column {self.name} can't have the type {self.dtype}: choose one of {', '.join(STORED_TYPES)}"
            )
        if any(size < 1 for size in self.shape):
            raise HistoryError(f"column {self.name} has the shape {self.shape}: every width must be at least 1")

    @property
    def stored(self) -> np.dtype[Any]:
        return np.dtype(STORED_TYPES[self.dtype])

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.stored.itemsize


@dataclass(frozen=True)
class Key:
    """The vector an item is found by, and the fingerprint of the function that made it."""

    dim: int
    dtype: str = "float32"
    function: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in KEY_TYPES:
            raise HistoryError(f"keys can't have the type {self.dtype}: choose one of {', '.join(KEY_TYPES)}")
        if self.dim < 1:
            raise HistoryError(f"keys can't be {self.dim} wide: at least 1")

    @property
    def column(self) -> Column:
        return Column("key", self.dtype, (self.dim,))


@dataclass(frozen=True)
class Schema:
    """Features and key of every item, the kind of its time and id, and the raw fields kept beside it."""

    key: Key
    features: tuple[Column, ...] = ()
    time: TimeKind = "nanoseconds"
    id: IdKind = "string"
    payload: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def __post_init__(self) -> None:
        names = [column.name for column in self.features] + list(self.payload.names)
        for name in names:
            if name in RESERVED:
                raise HistoryError(f"{name!r} is a column of every history: name your own column otherwise")
        folded = [name.casefold() for name in names]
        twice = sorted({name for name, same in zip(names, folded, strict=True) if folded.count(same) > 1})
        if twice:
            raise HistoryError(
                f"columns {', '.join(twice)} share one name: features and payload need names of their own"
            )

    @property
    def time_type(self) -> np.dtype[Any]:
        return np.dtype("<i8" if self.time == "nanoseconds" else "<f8")

    @property
    def never(self) -> int | float:
        """The `until` of what was not superseded: later than every moment."""
        return int(np.iinfo(np.int64).max) if self.time == "nanoseconds" else float("inf")

    def feature(self, name: str) -> Column:
        for column in self.features:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.features) or "none"
        raise HistoryError(f"the history has no feature {name!r}: it has {known}")

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "id": self.id,
            "key": {"dim": self.key.dim, "dtype": self.key.dtype, "function": self.key.function},
            "features": [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in self.features],
            "payload": [
                {"name": each.name, "type": str(each.type), "nullable": each.nullable} for each in self.payload
            ],
            # The same once more, exactly: types as text can't all be read back.
            "payload_arrow": base64.b64encode(self.payload.serialize().to_pybytes()).decode(),
        }

    @staticmethod
    def from_json(written: dict[str, Any]) -> "Schema":
        payload = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written["payload_arrow"])))
        return Schema(
            key=Key(**written["key"]),
            features=tuple(Column(each["name"], each["dtype"], tuple(each["shape"])) for each in written["features"]),
            time=written["time"],
            id=written["id"],
            payload=payload,
        )
