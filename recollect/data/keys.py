"""The key function: from an item's features to the small frozen vector by which it is found.

It is made once, from rows before the cutoff, and never changes: its fingerprint stands in every history whose keys it
computed. Knows features; nothing of histories, nor of when a row was known: the caller hands in the rows to fit.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from recollect.errors import KeyFunctionError
from recollect.records import FeatureKind, Features

FORMAT = 1
_HEADER = "recollect_key_function"

TILE_ROWS = 32
"""Rows are projected so many at a time, zeros making up what is missing: a product of one row and one of a thousand
differ in the last bits, and the key of an input must be that of the same item, however many are computed together."""

_ALIGNED = 16  # columns of a tile, filled up with zeros, so that all its rows lie alike in memory


@dataclass(frozen=True)
class KeyFeature:
    """A feature that keys are made of. `width` is its number of columns, or of categories."""

    name: str
    kind: FeatureKind
    width: int


@dataclass(frozen=True, eq=False)
class KeyFunction:
    """Call it with features of any number of rows; the same row has the same key, bit for bit, in any company.

    `first`: the first `key_dim` columns of one embedded feature as they are, for embeddings trained so that their
    first columns are an embedding too (Matryoshka). `pca`: `(columns - mean) @ projection`. Made by `first_columns` and
    in `key_fitting`. With `sphere` one more coordinate lifts all keys to the same length: then the item with the
    largest product is the nearest one, not the one farthest out.
    """

    kind: Literal["first", "pca"]
    features: tuple[KeyFeature, ...]
    key_dim: int
    mean: Float64[Tensor, " columns"] | None = None
    projection: Float64[Tensor, "columns directions"] | None = None
    sphere: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The features it reads; others may be there or not."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same function, whenever and wherever it is loaded."""
        digest = hashlib.sha256(json.dumps(self._settings(), sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(json.dumps([name, list(tensor.shape)]).encode())
            digest.update(tensor.numpy().astype("<f8").tobytes())
        return digest.hexdigest()[:16]

    def __call__(self, features: Features) -> Float[Tensor, "rows key_dim"]:
        given = checked(features, self.features)
        if self.kind == "first":
            return given[0][:, : self.key_dim].to(torch.float32, copy=True)
        keys = torch.empty(len(given[0]), self.key_dim)
        for start in range(0, len(keys), TILE_ROWS):
            keys[start : start + TILE_ROWS] = self._projected(side_by_side(given, self.features, start, TILE_ROWS))
        return keys

    def _projected(self, tile: Float64[Tensor, "rows columns"]) -> Float64[Tensor, "rows key_dim"]:
        mean, projection = self._padded
        rows, columns = tile.shape
        table = F.pad(tile, (0, len(mean) - columns, 0, TILE_ROWS - rows))
        keys = ((table - mean) @ projection)[:rows]
        return _lifted(keys) if self.sphere else keys

    @cached_property
    def _padded(self) -> tuple[Float64[Tensor, " padded"], Float64[Tensor, "padded key_dim"]]:
        assert self.mean is not None
        assert self.projection is not None
        missing = -len(self.mean) % _ALIGNED
        return F.pad(self.mean, (0, missing)), F.pad(self.projection, (0, 0, 0, missing))

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file, complete or not at all; what is no tensor is JSON in its header."""
        header = {**self._settings(), "format": FORMAT, "fingerprint": self.fingerprint}
        data = save(self._tensors(), {_HEADER: json.dumps(header)})
        path = Path(path)
        beside = path.with_name(f".{path.name}.tmp")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "KeyFunction":
        """Raises if the file is not whole: its fingerprint is computed anew."""
        where = os.fspath(path)
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get(_HEADER, "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            raise KeyFunctionError(
                f"{where} can't be read as a key function ({error}): give a file that KeyFunction.save wrote"
            ) from error
        if "format" not in header:
            raise KeyFunctionError(f"{where} holds no key function: give a file that KeyFunction.save wrote")
        if header["format"] != FORMAT:
            raise KeyFunctionError(
                f"key function {where} has format {header['format']}, this version reads {FORMAT}: "
                "use the version of recollect that wrote it"
            )
        features = tuple(KeyFeature(**feature) for feature in header["features"])
        function = KeyFunction(
            header["kind"], features, header["key_dim"], **tensors, sphere=header.get("sphere", False)
        )
        if function.fingerprint != header["fingerprint"]:
            raise KeyFunctionError(f"key function {where} does not match its fingerprint: restore it from a copy")
        return function

    def _settings(self) -> dict[str, Any]:
        settings = {"kind": self.kind, "features": [asdict(each) for each in self.features], "key_dim": self.key_dim}
        return settings | ({"sphere": True} if self.sphere else {})

    def _tensors(self) -> dict[str, Tensor]:
        if self.mean is None or self.projection is None:
            return {}
        return {"mean": self.mean, "projection": self.projection}


def first_columns(feature: str, width: int, key_dim: int) -> KeyFunction:
    """The first columns of an embedded feature that has `width` of them, neither scaled nor centred."""
    if not 1 <= key_dim <= width:
        raise KeyFunctionError(
            f"the first {key_dim} columns of feature {feature!r} were asked for, it has {width}: ask for 1 to {width}"
        )
    return KeyFunction("first", (KeyFeature(feature, "embedded", width),), key_dim)


def _lifted(keys: Float64[Tensor, "rows directions"]) -> Float64[Tensor, "rows key_dim"]:
    """One coordinate more, as long as keys are in the mean, and all to the length of sqrt(key_dim)."""
    width = keys.shape[1]
    lifted = F.pad(keys, (0, 1), value=width**0.5)
    longer: float = (width + 1) ** 0.5
    return F.normalize(lifted, dim=1) * longer


# Features as columns


def checked(features: Features, wanted: Sequence[KeyFeature]) -> list[Shaped[Tensor, "rows ..."]]:
    """The values of these features, as many rows of each, on the CPU: there a product gives the same bits each time."""
    given = [_checked_one(features, feature).cpu() for feature in wanted]
    if len({len(values) for values in given}) > 1:
        lengths = ", ".join(f"{len(values)} of {each.name}" for values, each in zip(given, wanted, strict=True))
        raise KeyFunctionError(f"features came with different numbers of rows ({lengths}): give every feature of a row")
    return given


def _checked_one(features: Features, feature: KeyFeature) -> Shaped[Tensor, "rows ..."]:
    if feature.name not in features:
        raise KeyFunctionError(
            f"keys are made of the feature {feature.name!r}, the features there are: {', '.join(features) or 'none'}; "
            "use a key function that was made for these"
        )
    values = features[feature.name]
    if feature.kind == "numeric" and values.ndim == 1:
        values = values.unsqueeze(1)  # histories store a single number so
    fits = values.ndim == 1 if feature.kind == "categorical" else values.shape[1:] == (feature.width,)
    if not fits or (feature.kind == "categorical" and values.is_floating_point()):
        expected = "an integer code" if feature.kind == "categorical" else f"{feature.width} numbers"
        raise KeyFunctionError(
            f"feature {feature.name!r} came as {str(values.dtype).removeprefix('torch.')} of shape "
            f"{list(values.shape)}, the key function takes {expected} per row: use the features it was made for"
        )
    return values


def side_by_side(
    given: Sequence[Shaped[Tensor, "rows ..."]], features: Sequence[KeyFeature], start: int, count: int
) -> Float64[Tensor, "some columns"]:
    """Some of the rows, all features side by side."""
    parts = []
    for values, feature in zip(given, features, strict=True):
        some = values[start : start + count]
        if feature.kind == "categorical":
            some = some.long().unsqueeze(1) == torch.arange(feature.width)
        parts.append(some.double())
    return torch.cat(parts, dim=1)
