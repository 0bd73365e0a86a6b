"""The smallest histories and systems that have all their parts: what tests of training and prediction share."""

from typing import Literal

import torch
from torch import Generator

from recollect.config import StepSettings
from recollect.history.key_table import KeyTable
from recollect.history.memory import MemoryHistory
from recollect.history.visibility import EVERYTHING, Window
from recollect.inputs import Lookup
from recollect.model.build import Architecture, build_system
from recollect.model.system import RetrievalSystem
from recollect.records import FeatureSpec
from recollect.training.batches import HistoryRows
from recollect.training.step import Objective

KEY_DIM, CLASSES, RETRIEVED = 4, 3, 3
ARCHITECTURES: tuple[Architecture, ...] = ("mlp", "perceiver", "precedents")
SPECS = (
    FeatureSpec("text", "embedded", KEY_DIM),
    FeatureSpec("amount", "numeric", 1, bands=2, max_frequency=8.0),
    FeatureSpec("shop", "categorical", 3),
)


def seeded(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def make_history(items: int = 60, *, classes: int = CLASSES, seed: int = 0) -> MemoryHistory:
    """Whole days with ties, labels up to five days late, in order of the day the label was known."""
    generator = seeded(seed)
    times = torch.randint(items // 2, (items,), generator=generator).double()
    known_at = times + torch.randint(6, (items,), generator=generator)
    order = known_at.argsort(stable=True)
    text = torch.randn(items, KEY_DIM, generator=generator)
    return MemoryHistory(
        features={
            "text": text,
            "amount": torch.randn(items, 1, generator=generator),
            "shop": torch.randint(3, (items,), generator=generator),
        },
        keys=text,
        labels=torch.randint(classes, (items,), generator=generator),
        times=times[order],
        known_at=known_at[order],
    )


def make_rows(items: int = 60, *, classes: int = CLASSES, recency: bool = True) -> HistoryRows:
    return rows_of(make_history(items, classes=classes), recency=recency)


def rows_of(history: MemoryHistory, *, recency: bool = True, window: Window = EVERYTHING) -> HistoryRows:
    """All items of a history as inputs."""
    lookup = Lookup(KeyTable().follow(history), recency=recency, window=window)
    return HistoryRows(lookup, torch.arange(history.num_rows))


def history_of(rows: HistoryRows) -> MemoryHistory:
    history = rows.lookup.view.source
    assert isinstance(history, MemoryHistory)
    return history


def make_system(
    architecture: Architecture = "precedents",
    *,
    retrieve: str = "items",
    num_retrieved: int = RETRIEVED,
    classes: int = CLASSES,
    ages: bool = True,
    recency: float | None = 0.1,
    similarity: bool | Literal["only"] = False,
    seed: int = 0,
) -> RetrievalSystem:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_system(
            architecture,
            SPECS,
            SPECS if retrieve == "items" else [],
            key_dim=KEY_DIM,
            num_classes=classes,
            label_classes=classes,
            num_retrieved=num_retrieved,
            width=8,
            hidden=(8,),
            heads=2,
            latents=3,
            blocks=1,
            ages=ages,
            recency=recency,
            similarity=similarity,
        )


def make_objective(
    settings: StepSettings | None = None,
    architecture: Architecture = "precedents",
    *,
    retrieve: str = "items",
    num_retrieved: int = RETRIEVED,
    classes: int = CLASSES,
    ages: bool = True,
    recency: float | None = 0.1,
    similarity: bool | Literal["only"] = False,
    seed: int = 0,
) -> Objective:
    system = make_system(
        architecture,
        retrieve=retrieve,
        num_retrieved=num_retrieved,
        classes=classes,
        ages=ages,
        recency=recency,
        similarity=similarity,
        seed=seed,
    )
    settings = settings or StepSettings(samples=2)
    return Objective(system, settings, classes, retrieve_labels_only=retrieve == "labels", ages=ages)


def nudged(objective: Objective) -> Objective:
    """The objective a little way from its start: what begins at zero hides the parameters behind it."""
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=seeded(1))
    return objective


def without_gradient(objective: Objective) -> list[str]:
    """Names of the parameters that a backward pass left untouched."""
    return [
        name
        for name, parameter in objective.named_parameters()
        if parameter.numel() and (parameter.grad is None or not parameter.grad.any())
    ]
