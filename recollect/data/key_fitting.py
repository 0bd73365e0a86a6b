"""Key functions that are fitted to rows before the cutoff: principal directions of the features, or of a learned map.

Knows features; nothing of time (the caller hands in the rows to fit), of labels, or of histories.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Shaped
from torch import Tensor

from recollect.data.keys import KeyFeature, KeyFunction, checked, side_by_side
from recollect.errors import KeyFunctionError
from recollect.records import Features, FeatureSpec

LEAST_VARIANCE = 1e-8
"""A direction with less than this share of the largest variance holds nothing but rounding."""

MOST_COLUMNS = 8192
"""PCA takes the square of so many numbers: half a gigabyte."""

_FITTED_AT_ONCE = 8192


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
    given = checked(features, chosen)
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
            yield side_by_side(given, features, start, _FITTED_AT_ONCE)

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
