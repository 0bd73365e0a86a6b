"""Turn named features into what networks read: one flat vector per row, or one token per feature.

They know the specs of the features and no data: standardising and embedding text happened long before. They
do not know whether a row is an input or an item, and take any leading axes, which the caller names in `lead`
because a row may have no features at all.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from recollect.errors import SettingError
from recollect.model.blocks import FourierBands, RowLinear
from recollect.records import Features, FeatureSpec


def checked_feature(features: Features, spec: FeatureSpec, lead: tuple[int, ...]) -> Shaped[Tensor, "..."]:
    """`features[spec.name]`, or a SettingError if it is missing or is not what the spec says."""
    categorical = spec.kind == "categorical"
    expected = list(lead) if categorical else [*lead, spec.width]
    described = f'feature "{spec.name}" ({spec.kind}, width {spec.width})'
    if spec.name not in features:
        came = ", ".join(f'"{name}"' for name in features) or "no features"
        raise SettingError(f"{described} is missing, {came} came: give every feature the model was built with")
    value = features[spec.name]
    if list(value.shape) != expected:
        raise SettingError(
            f"{described} must have shape {expected}, but {list(value.shape)} came: give it the width that the model "
            "was built with, one row per input or item"
        )
    if categorical and value.is_floating_point():
        raise SettingError(f"{described} must be integers, but {value.dtype} came: give the number of each category")
    return value


def _bands(spec: FeatureSpec) -> FourierBands:
    return FourierBands(spec.bands if spec.kind == "numeric" else 0, spec.max_frequency)


def column_places(specs: Sequence[FeatureSpec]) -> Iterator[tuple[slice, slice]]:
    """Where a `FlatEncoder` puts the Fourier bands of each feature, if it has any, and where its columns themselves."""
    first = 0
    for spec in specs:
        own = first + spec.width * (_bands(spec).growth - 1)
        yield slice(first, own), slice(own, own + spec.width)
        first = own + spec.width


class FlatEncoder(nn.Module):
    """All features of a row side by side in one vector of `flat_width` numbers; nothing is learned.

    Embedded features stand as they are, numeric ones with their Fourier bands, categorical ones as one-hots.
    A category outside the spec (first met after training) is all zeros.
    """

    nothing: Tensor

    def __init__(self, specs: Sequence[FeatureSpec]) -> None:
        super().__init__()
        self.specs = tuple(specs)
        self.bands = nn.ModuleList(_bands(spec) for spec in specs)
        self.flat_width = sum(spec.width * _bands(spec).growth for spec in specs)
        # Knows the device and the precision also where there are no features.
        self.register_buffer("nothing", torch.empty(0), persistent=False)

    def forward(self, features: Features, lead: tuple[int, ...]) -> Float[Tensor, "*lead feature_dim"]:
        parts = [self.nothing.expand(*lead, 0)]
        for spec, bands in zip(self.specs, self.bands, strict=True):
            value = checked_feature(features, spec, lead)
            if spec.kind == "categorical":
                # Not F.one_hot, which refuses a category outside the spec.
                value = value[..., None] == torch.arange(spec.width, device=value.device)
            parts.append(bands(value.to(self.nothing.dtype)))
        return torch.cat(parts, dim=-1)


class TokenEncoder(nn.Module):
    """One token per feature: the feature through its own linear layer, plus a learned mark of which it is.

    Categorical features are looked up in an embedding. A category outside the spec (first met after training)
    has a row of zeros that never learns, so its token is the mark alone and not an untrained random vector.
    """

    def __init__(self, specs: Sequence[FeatureSpec], width: int) -> None:
        super().__init__()
        self.specs = tuple(specs)
        self.layers = nn.ModuleList(_token_layer(spec, width) for spec in specs)
        self.marks = nn.Parameter(0.02 * torch.randn(len(specs), width))

    def forward(self, features: Features, lead: tuple[int, ...]) -> Float[Tensor, "*lead tokens feature_dim"]:
        tokens = [self.marks[:0].expand(*lead, 0, -1)]
        for spec, layer in zip(self.specs, self.layers, strict=True):
            value = checked_feature(features, spec, lead)
            if spec.kind == "categorical":
                known = (value >= 0) & (value < spec.width)
                value = torch.where(known, value.long(), spec.width)
            else:
                value = value.to(self.marks.dtype)
            tokens.append(layer(value)[..., None, :])
        return torch.cat(tokens, dim=-2) + self.marks


def _token_layer(spec: FeatureSpec, width: int) -> nn.Module:
    if spec.kind == "categorical":
        return nn.Embedding(spec.width + 1, width, padding_idx=spec.width)
    bands = _bands(spec)
    return nn.Sequential(bands, RowLinear(spec.width * bands.growth, width))
