"""One step of training at a given size, in a process of its own: how far its anonymous memory rises.

    python -m recollect.reproduction.memory_step '{"method": "ours", "steps": 1, "sizes": {...}}'

It is measured above what there was when a tiny step had loaded all that is loaded once. Knows nothing of predictions.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from recollect.config import ModelSettings, Recipe, StepSettings
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.inputs import Lookup
from recollect.planning.plan import Method
from recollect.planning.sizes import Sizes
from recollect.records import FeatureSpec, Visible
from recollect.reproduction.peak import anonymous_bytes, peak_extra_bytes, run_apart
from recollect.retrieval.gradients import Selection
from recollect.retrieval.keys import SharedKeys
from recollect.training import step
from recollect.training.batches import HistoryRows
from recollect.training.objective import make_objective
from recollect.training.step import Moment, Objective

# The paper's retrieval


@dataclass(frozen=True)
class Dense:
    """Algorithm 1 as the paper means it: batch x items logits, one slot at a time and freed after sampling.

    For its gradient a slot is computed again, or with `keeps_slots` all are kept, as plain autograd does.
    """

    queries: Float[Tensor, "batch retrieved key_dim"]
    keys: SharedKeys
    visible: Visible
    chains: int
    scale: float
    keeps_slots: bool

    def sampled(self, *, centred: bool = False) -> Selection:
        """As `Retrieval.sampled`; `centred` spares nothing here."""
        batch, retrieved, _ = self.queries.shape
        positions = torch.full((batch, self.chains, retrieved), -1)
        log_p = []
        for chain in range(self.chains):
            for slot in range(retrieved):
                taken = positions[:, chain, :slot].clone()
                with torch.no_grad():  # multinomial draws batch x items noise
                    picked = torch.multinomial(self._log_probs(self.queries, slot, taken).exp_(), 1)
                positions[:, chain, slot] = picked.squeeze(1)
                log_p.append(self._log_p(slot, taken, picked))
        return Selection(positions, torch.cat(log_p, dim=1).view(positions.shape))

    def _log_p(
        self, slot: int, taken: Int[Tensor, "batch earlier"], picked: Int[Tensor, "batch 1"]
    ) -> Float[Tensor, "batch 1"]:
        def of_pick(queries: Tensor) -> Tensor:
            return self._log_probs(queries, slot, taken).gather(1, picked)

        if self.keeps_slots:
            return of_pick(self.queries)
        again: Tensor = checkpoint(of_pick, self.queries, use_reentrant=False)
        return again

    def _log_probs(
        self, queries: Float[Tensor, "batch retrieved key_dim"], slot: int, taken: Int[Tensor, "batch earlier"]
    ) -> Float[Tensor, "batch items"]:
        query, keys = queries[:, slot] * self.scale, self.keys
        logits = query[:, : keys.keys.shape[1]] @ keys.keys.float().T
        if keys.recency is not None:
            logits.addr_(query[:, -1], keys.recency)
        return logits.masked_fill_(self._gone(taken), -torch.inf).log_softmax(1)

    def _gone(self, taken: Int[Tensor, "batch earlier"]) -> Bool[Tensor, "batch items"]:
        position = torch.arange(self.keys.num_items)
        gone = position >= self.visible.stop.unsqueeze(1)
        gone |= position < self.visible.start.unsqueeze(1)
        # Where nothing is visible at all, everything is: a softmax over nothing is NaN.
        gone[gone.all(1)] = False
        return gone.scatter_(1, taken, True)


def retrieve_densely(
    queries: Float[Tensor, "batch retrieved key_dim"],
    keys: SharedKeys,
    visible: Visible,
    *,
    temperature: float,
    uniforms: Float[Tensor, "batch chains retrieved"],
    keeps_slots: bool,
    **_: object,
) -> Dense:
    """Takes the place of `retrieve`."""
    scale = 1.0 / (temperature * keys.width**0.5)
    return Dense(queries, keys, visible, uniforms.shape[1], scale, keeps_slots)


# The step


class Training:
    """A fresh model over a shared history in memory, as it is after a first step, ready for the next ones."""

    def __init__(self, sizes: Sizes) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sizes, self.generator = sizes, generator
        self.rows = rows_of(sizes, generator)
        self.objective = objective_of(sizes)
        self.optimizer = AdamW(self.objective.parameters(), lr=1e-3)
        for parameter in self.objective.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # makes Adam's moments
        self.optimizer.zero_grad()
        self.following = self.rows.batch(sizes.batch, generator)

    def step(self) -> None:
        # As in the training loop, the next batch is read while this one computes.
        batch, self.following = self.following, self.rows.batch(self.sizes.batch, self.generator)
        result = self.objective(lambda: (batch, Moment()), self.generator)
        result.loss.backward()
        nn.utils.clip_grad_norm_(self.objective.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def rows_of(sizes: Sizes, generator: torch.Generator) -> HistoryRows:
    items = sizes.items
    times = torch.arange(items).double()
    feature_type, key_type = getattr(torch, sizes.feature_type), getattr(torch, sizes.key_type)
    history = MemoryHistory(
        # What is stored is no part of what is measured: all rows are one.
        features={"x": torch.randn(1, sizes.feature_width, generator=generator).to(feature_type).expand(items, -1)},
        keys=torch.randn(items, sizes.key_dim, generator=generator, dtype=key_type),
        labels=torch.randint(sizes.classes, (items,), generator=generator),
        times=times,
        known_at=times.clone(),
    )
    return HistoryRows(Lookup(KeyTable().follow(history), recency=sizes.recency), torch.arange(items))


def objective_of(sizes: Sizes) -> Objective:
    recipe = Recipe(replace(sizes.model, num_retrieved=sizes.retrieved), StepSettings(samples=sizes.chains))
    specs = [FeatureSpec("x", "embedded", sizes.feature_width)]
    return make_objective(
        recipe,
        specs,
        specs,
        key_dim=sizes.key_dim,
        num_classes=sizes.classes,
        label_classes=sizes.classes,
        has_times=True,
        seed=0,
    )


# Memory


def measure(sizes: Sizes, method: Method, steps: int = 1) -> dict[str, int]:
    """Meant for a fresh process."""
    if method != "ours":
        vars(step)["retrieve"] = partial(retrieve_densely, keeps_slots=method == "dense_kept")
    Training(replace(sizes, items=600, batch=4)).step()
    runtime = anonymous_bytes()
    with peak_extra_bytes() as peak:
        training = Training(sizes)
        for _ in range(steps):
            training.step()
    return {"runtime_bytes": runtime, "peak_bytes": peak.bytes}


def measure_apart(sizes: Sizes, method: Method, *, steps: int = 1, gives_back: bool = True) -> dict[str, int]:
    """`measure` in a fresh process, whose allocator gives freed memory back at once, or is left as it is."""
    request = json.dumps({"sizes": asdict(sizes), "method": method, "steps": steps})
    return run_apart(["-m", __name__, request], gives_back=gives_back)


def read_sizes(given: dict[str, Any]) -> Sizes:
    """Sizes as `asdict` and JSON leave them."""
    model: dict[str, Any] = given["model"]
    return Sizes(**{**given, "model": ModelSettings(**{**model, "hidden": tuple(model["hidden"])})})


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(measure(read_sizes(asked["sizes"]), asked["method"], asked["steps"])))
