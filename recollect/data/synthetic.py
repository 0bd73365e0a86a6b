"""The paper's two synthetic tasks, drawn batch by batch: every input comes with a history of its own.

Knows the distributions and nothing of models. All randomness comes in as a generator.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from recollect.records import Features


@dataclass(frozen=True)
class Episodes:
    """Inputs with their targets and, in order of time, the items each of them may look up.

    Items of all inputs have the shape `[batch, items, ...]`; where one pool is shared by the batch, `[items, ...]`.
    """

    inputs: Features
    own_keys: Float[Tensor, "batch key_dim"]
    targets: Int[Tensor, " batch"]
    as_of: Float[Tensor, " batch"]
    keys: Float[Tensor, "*pool items key_dim"]
    features: Features
    labels: Int[Tensor, "*pool items"] | None
    times: Float[Tensor, "*pool items"] | None
    needle: Int[Tensor, " batch"] | None = None


@dataclass(frozen=True)
class NeedleTask:
    """One item of the history holds the label in the first of its bits; a noisy image of its key is the input.

    With `shared_pool` all inputs of a batch look for their needles in one pool of items instead of fresh ones each.
    `standardised` shows bits as -1 and 1, mean 0 and variance 1, instead of 0 and 1.
    """

    history_size: int
    transform: Float[Tensor, "key_dim key_dim"]
    num_bits: int = 8
    noise: float = math.sqrt(0.1)
    shared_pool: bool = False
    standardised: bool = False

    @staticmethod
    def draw(
        history_size: int,
        generator: Generator,
        *,
        key_dim: int = 64,
        shared_pool: bool = False,
        standardised: bool = False,
    ) -> "NeedleTask":
        transform = torch.randn(key_dim, key_dim, generator=generator) / key_dim**0.5
        return NeedleTask(history_size, transform, shared_pool=shared_pool, standardised=standardised)

    def sample(self, batch: int, generator: Generator) -> Episodes:
        key_dim = self.transform.shape[0]
        pool = () if self.shared_pool else (batch,)
        keys = torch.randn(*pool, self.history_size, key_dim, generator=generator)
        bits = torch.randint(2, (*pool, self.history_size, self.num_bits), generator=generator)
        needle = torch.randint(self.history_size, (batch,), generator=generator)
        rows = torch.arange(batch)
        needle_keys = keys[needle] if self.shared_pool else keys[rows, needle]
        # The first bit of a uniformly drawn item is a uniform label: no need to write one into it.
        targets = bits[needle, 0] if self.shared_pool else bits[rows, needle, 0]
        noise = self.noise * torch.randn(batch, key_dim, generator=generator)
        inputs = needle_keys @ self.transform.T + noise
        return Episodes(
            inputs={"x": inputs},
            own_keys=inputs,
            targets=targets,
            as_of=torch.ones(batch, dtype=torch.float64),
            keys=keys,
            features={"x": 2.0 * bits.float() - 1.0 if self.standardised else bits.float()},
            labels=None,
            times=None,
            needle=needle,
        )


@dataclass(frozen=True)
class RotatingTask:
    """Two Gaussian classes whose separating direction turns by pi while time goes from 0 to 1.

    `dates` concatenates the paper's sinusoidal time embedding to inputs and items; without it, time reaches a model
    only through the ages of items.
    """

    first_axis: Float[Tensor, " feature_dim"]
    second_axis: Float[Tensor, " feature_dim"]
    history_size: int = 128
    separation: float = 4.0
    noise: float = 1.0
    frequencies: int = 8
    dates: bool = True

    @staticmethod
    def draw(generator: Generator, *, dimensions: int = 64, dates: bool = True) -> "RotatingTask":
        first = torch.randn(dimensions, generator=generator)
        first = first / first.norm()
        second = torch.randn(dimensions, generator=generator)
        second = second - (second @ first) * first
        return RotatingTask(first, second / second.norm(), dates=dates)

    @property
    def width(self) -> int:
        return self.first_axis.shape[0] + (2 * self.frequencies if self.dates else 0)

    @property
    def bayes_accuracy(self) -> float:
        """Accuracy of knowing the direction: the same at every time."""
        return 0.5 * (1.0 + math.erf(self.separation / (2.0 * self.noise) / math.sqrt(2.0)))

    def sample(self, as_of: Float[Tensor, " batch"], generator: Generator) -> Episodes:
        """One input at each of the given moments, with items at uniform times before it."""
        batch = as_of.shape[0]
        before = torch.rand(batch, self.history_size, generator=generator, dtype=torch.float64) * as_of.unsqueeze(1)
        times = torch.cat([before.sort(dim=1).values, as_of.unsqueeze(1)], dim=1)
        labels = torch.randint(2, times.shape, generator=generator)
        x = self._covariates(times, labels, generator)
        return Episodes(
            inputs={"x": x[:, -1]},
            own_keys=x[:, -1],
            targets=labels[:, -1],
            as_of=as_of,
            keys=x[:, :-1],
            features={"x": x[:, :-1]},
            labels=labels[:, :-1],
            times=times[:, :-1],
        )

    def rows(
        self, moments: Float[Tensor, " rows"], generator: Generator
    ) -> tuple[Float[Tensor, "rows feature_dim"], Int[Tensor, " rows"]]:
        """One row at each moment, with its label: a history that all inputs share."""
        labels = torch.randint(2, (1, len(moments)), generator=generator)
        return self._covariates(moments.unsqueeze(0), labels, generator)[0], labels[0]

    def _covariates(
        self, times: Float[Tensor, "batch items"], labels: Int[Tensor, "batch items"], generator: Generator
    ) -> Float[Tensor, "batch items feature_dim"]:
        angle = (math.pi * (0.5 * torch.cos(math.pi * times) + 0.5)).float().unsqueeze(-1)
        direction = self.first_axis * angle.cos() + self.second_axis * angle.sin()
        sign = (2 * labels - 1).unsqueeze(-1)
        x = self.noise * torch.randn(*times.shape, direction.shape[-1], generator=generator)
        x += 0.5 * self.separation * sign * direction
        if not self.dates:
            return x
        phase = 2.0 * math.pi * times.unsqueeze(-1) * torch.arange(1, self.frequencies + 1)
        return torch.cat([x, phase.sin().float(), phase.cos().float()], dim=-1)
