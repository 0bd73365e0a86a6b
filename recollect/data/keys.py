"""The key function: from an item's features to the small frozen vector by which it is found.

It is made once, from rows before the cutoff, and never changes: its fingerprint stands in every history whose keys it
computed. Knows features; nothing of histories, nor of when a row was known: the caller hands in the rows to fit.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from recollect.errors import KeyFunctionError
from recollect.records import FeatureKind, Features, FeatureSpec

FORMAT = 1
_HEADER = "recollect_key_function"

TILE_ROWS = 32
"""Rows are projected so many at a time, zeros making up what is missing: a product of one row and one of a thousand
differ in the last bits, and the key of an input must be that of the same item, however many are computed together."""

_ALIGNED = 16  # columns of a tile, filled up with zeros, so that all its rows lie alike in memory

MOST_COLUMNS = 8192
"""PCA takes the square of so many numbers: half a gigabyte."""

LEAST_VARIANCE = 1e-8
"""A direction with less than this share of the largest variance holds nothing but rounding."""

_FITTED_AT_ONCE = 8192


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
    `fit_pca`. With `sphere` one more coordinate lifts all keys to the same length: then the item with the largest
    product is the nearest one, not the one farthest out.
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
        given = _checked(features, self.features)
        if self.kind == "first":
            return given[0][:, : self.key_dim].to(torch.float32, copy=True)
        keys = torch.empty(len(given[0]), self.key_dim)
        for start in range(0, len(keys), TILE_ROWS):
            keys[start : start + TILE_ROWS] = self._projected(_columns(given, self.features, start, TILE_ROWS))
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


# PCA


def _lifted(keys: Float64[Tensor, "rows directions"]) -> Float64[Tensor, "rows key_dim"]:
    """One coordinate more, as long as keys are in the mean, and all to the length of sqrt(key_dim)."""
    width = keys.shape[1]
    lifted = F.pad(keys, (0, 1), value=width**0.5)
    longer: float = (width + 1) ** 0.5
    return F.normalize(lifted, dim=1) * longer


def fit_pca(
    features: Features,
    specs: Sequence[FeatureSpec],
    key_dim: int,
    *,
    whiten: bool = False,
    sphere: bool = False,
    fewer: bool = False,
) -> KeyFunction:
    """The `key_dim` directions of the largest variance over these rows, of the named features side by side.

    Every column of the table counts alike: a number has variance 1, in whatever unit it came; the zeros and ones of a
    category have variances that sum to 1, and a code that is none of the known ones is all zeros. An embedded text
    counts as many columns as it has directions of its own, and these keep their proportions.

    Keys are centred and scaled so that their squared norm over these rows is `key_dim` in the mean: its dot product
    with a query of unit variance, divided by sqrt(key_dim), then varies by about 1. With `whiten` every coordinate has
    variance 1; without, the coordinates keep their proportions. `sphere` spends the last coordinate on their length.
    `fewer` allows narrower keys where the rows don't vary in as many directions.
    """
    return _principal(_fitted_on(features, specs), key_dim, whiten=whiten, sphere=sphere, fewer=fewer)


def fit_pca_emphasising(
    features: Features,
    specs: Sequence[FeatureSpec],
    key_dim: int,
    relevance: Float64[Tensor, " columns"],
    emphases: Sequence[float],
    *,
    sphere: bool = False,
    fewer: bool = False,
) -> list[KeyFunction]:
    """`fit_pca` once for each emphasis, which is the part of what all columns count together that goes by their
    relevance: with 0 every column counts alike.

    Columns that tell nothing of the label decide who is near whom as much as those that tell all, unless they count
    less. `relevance` are numbers of any size.
    """
    moments = _fitted_on(features, specs)
    return [
        _principal(moments, key_dim, sphere=sphere, fewer=fewer, relevance=relevance, emphasis=emphasis)
        for emphasis in emphases
    ]


def _principal(
    moments: "_Moments",
    key_dim: int,
    *,
    whiten: bool = False,
    sphere: bool = False,
    fewer: bool = False,
    relevance: Float64[Tensor, " columns"] | None = None,
    emphasis: float = 0.0,
) -> KeyFunction:
    chosen, rows, mean, covariance = moments
    weights = _weights(mean, covariance, chosen)
    if relevance is not None and emphasis > 0:
        weights = weights * _emphasised(weights.square() * covariance.diagonal(), relevance, emphasis, chosen)
    variances, directions = _by_variance(weights[:, None] * covariance * weights)
    rank = int((variances > LEAST_VARIANCE * variances[0]).sum())
    if fewer:
        key_dim = min(key_dim, rank + sphere)
    key_dim -= sphere
    if not 1 <= key_dim <= rank:
        raise KeyFunctionError(
            f"keys of width {key_dim} were asked for, the {rows} rows vary in {rank} directions: "
            "ask for no more than these, or fit on more rows or features"
        )
    variances, directions = variances[:key_dim], directions[:, :key_dim]
    scale = variances.rsqrt() if whiten else (key_dim / variances.sum()).sqrt()
    projection = (weights[:, None] * directions * scale).contiguous()
    return KeyFunction("pca", chosen, key_dim + sphere, mean, projection, sphere)


def fit_projection(
    features: Features,
    specs: Sequence[FeatureSpec],
    weights: Float64[Tensor, "columns width"],
    key_dim: int,
    *,
    sphere: bool = False,
) -> KeyFunction:
    """Keys that keep the distances of `columns @ weights`, a map learned elsewhere, as well as `key_dim` numbers can.

    These are its directions of the largest variance over these rows, scaled as in `fit_pca`; where it has fewer, the
    other coordinates are zeros, so that keys made again are as wide as before.
    """
    chosen, _, mean, covariance = _fitted_on(features, specs)
    variances, directions = _by_variance(weights.T @ covariance @ weights)
    wanted = key_dim - sphere
    varies = (variances > LEAST_VARIANCE * variances[0])[:wanted]
    if not bool(varies.any()):
        raise KeyFunctionError("the weights map all rows to one point: keys need a map that tells rows apart")
    projection = (weights @ directions[:, :wanted]) * (varies * (wanted / variances[:wanted][varies].sum()).sqrt())
    projection = F.pad(projection, (0, wanted - projection.shape[1])).contiguous()
    return KeyFunction("pca", chosen, key_dim, mean, projection, sphere)


class _Moments(NamedTuple):
    """What keys are made of, the number of rows, and mean and covariance of the columns."""

    features: tuple[KeyFeature, ...]
    rows: int
    mean: Float64[Tensor, " columns"]
    covariance: Float64[Tensor, "columns columns"]


def _fitted_on(features: Features, specs: Sequence[FeatureSpec]) -> _Moments:
    if not specs:
        raise KeyFunctionError("a key needs at least one feature: name one")
    chosen = tuple(KeyFeature(spec.name, spec.kind, spec.width) for spec in specs)
    given = _checked(features, chosen)
    columns = sum(feature.width for feature in chosen)
    if columns > MOST_COLUMNS:
        raise KeyFunctionError(
            f"the features have {columns} columns together, PCA takes up to {MOST_COLUMNS}: "
            "leave out the feature with the most categories"
        )
    return _Moments(chosen, len(given[0]), *_moments(given, chosen))


def _by_variance(
    covariance: Float64[Tensor, "columns columns"],
) -> tuple[Float64[Tensor, " columns"], Float64[Tensor, "columns columns"]]:
    """Variances and their directions, largest first. A direction's sign is arbitrary: that of its largest part is made
    positive, so that a refit gives the same."""
    variances, directions = torch.linalg.eigh(covariance)
    variances, directions = variances.flip(0), directions.flip(1)
    largest = directions.abs().argmax(dim=0, keepdim=True)
    return variances, directions * directions.gather(0, largest).sign()


def _moments(
    given: Sequence[Shaped[Tensor, "rows ..."]], features: Sequence[KeyFeature]
) -> tuple[Float64[Tensor, " columns"], Float64[Tensor, "columns columns"]]:
    """Mean and covariance of all columns, some rows at a time."""

    def chunks() -> Iterator[Float64[Tensor, "some columns"]]:
        for start in range(0, rows, _FITTED_AT_ONCE):
            yield _columns(given, features, start, _FITTED_AT_ONCE)

    rows = len(given[0])
    if rows < 2:
        raise KeyFunctionError(f"{rows} rows came to fit a key function: it takes at least 2")
    width = sum(feature.width for feature in features)
    mean, covariance = torch.zeros(width, dtype=torch.float64), torch.zeros(width, width, dtype=torch.float64)
    for chunk in chunks():
        mean += chunk.sum(0) / rows
    first = 0
    for feature in features:
        if not bool(mean[first : first + feature.width].isfinite().all()):
            raise KeyFunctionError(
                f"feature {feature.name!r} has values that are not finite: fill them in, or leave these rows out"
            )
        first += feature.width
    for chunk in chunks():
        centred = chunk - mean
        covariance.addmm_(centred.T, centred, alpha=1 / rows)
    return mean, covariance


def _weights(
    mean: Float64[Tensor, " columns"], covariance: Float64[Tensor, "columns columns"], features: Sequence[KeyFeature]
) -> Float64[Tensor, " columns"]:
    """What each column is multiplied by, so that each feature's variances sum to what it counts; 0 where a column never
    varies."""
    variance = covariance.diagonal()
    varies = variance > 1e-12 * (variance + mean.square())  # beside a large mean, rounding looks like variance
    weights = torch.zeros_like(variance)
    first = 0
    for feature in features:
        own = slice(first, first + feature.width)
        first += feature.width
        there, spread = varies[own], variance[own]
        if feature.kind == "numeric":
            scale = spread.rsqrt()
        else:
            counts = _directions(covariance[own, own]) if feature.kind == "embedded" else 1.0
            scale = (counts / spread[there].sum()).sqrt().expand(feature.width)
        weights[own] = scale.where(there, 0.0)
    return weights


def _emphasised(
    counted: Float64[Tensor, " columns"],
    relevance: Float64[Tensor, " columns"],
    emphasis: float,
    features: Sequence[KeyFeature],
) -> Float64[Tensor, " columns"]:
    """What each column is multiplied by so that its number, category or text counts in part by how relevant it is."""
    # Columns of a category, and those of a text, belong together: what one tells another tells too.
    sizes = [size for each in features for size in ([1] * each.width if each.kind == "numeric" else [each.width])]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def by_owner(values: Float64[Tensor, " columns"]) -> Float64[Tensor, " owners"]:
        return torch.zeros(len(sizes), dtype=torch.float64).index_add(0, owner, values)

    counts, relevant = by_owner(counted), by_owner(relevance.double() * (counted > 0))
    if not float(relevant.sum()) > 0:
        return torch.ones_like(counted)
    after = (1 - emphasis) * counts + emphasis * counts.sum() * relevant / relevant.sum()
    return (after / counts.where(counts > 0, 1.0)).sqrt()[owner]


def _directions(covariance: Float64[Tensor, "columns columns"]) -> float:
    """In how many directions columns vary: all of them if that is alike in each, 1 if it is all in one."""
    squares = float(covariance.square().sum())  # of the variances along its own directions
    return float(covariance.trace()) ** 2 / squares if squares > 0 else 1.0


# Features as columns


def _checked(features: Features, wanted: Sequence[KeyFeature]) -> list[Shaped[Tensor, "rows ..."]]:
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


def _columns(
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
