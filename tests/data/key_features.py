"""Features that tests of keys are made of."""

from typing import Any

import torch

from recollect.records import Features, FeatureSpec

ROWS = 150
SPECS = (
    FeatureSpec("text", "embedded", 20),
    FeatureSpec("amounts", "numeric", 3),
    FeatureSpec("shop", "categorical", 5, bands=3),
)


def made(rows: int = ROWS, seed: int = 0) -> Features:
    """Features of every kind: correlated columns, wildly different units, one column that never varies."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randn(rows, 20, generator=generator) @ torch.randn(20, 20, generator=generator)
    amounts = torch.randn(rows, 3, generator=generator) * torch.tensor([1000.0, 0.001, 0.0]) + 7.0
    shop = torch.randint(0, 5, (rows,), generator=generator)
    return {"text": text + 3.0, "amounts": amounts, "shop": shop, "unused": torch.zeros(rows, 2)}


def rows_of(features: Features, index: Any) -> Features:
    return {name: values[index] for name, values in features.items()}
