"""What else one would try, in one table: rules of thumb, and models frozen at the cutoff or refitted as labels come.

All hold to one rule of time: a label counts only if it was known strictly before. Before the cutoff for what is frozen,
before the start of a bin for what is refitted there, before the row itself for what reads labels as they come.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from recollect.errors import SettingError
from recollect.evaluation.online_peers import finetuned, prequential
from recollect.evaluation.refitted_peers import Skip, fit_lightgbm, fit_logistic_regression, frozen, refitted
from recollect.evaluation.simple_peers import Answers, Progress, majority, previous_label, recent_neighbours
from recollect.evaluation.stream import Stream

DEFAULT = (
    "majority",
    "previous_label",
    "logreg_frozen",
    "logreg_refit_period",
    "logreg_refit_year",
    "lightgbm_frozen",
    "lightgbm_refit_period",
    "lightgbm_refit_year",
    "recent_neighbours",
)
SLOW = ("arf", "leveraging_bagging", "hoeffding_adaptive", "finetuned")
"""To be asked for by name: those of River learn row by row, in plain Python."""

PACKAGES = {"logreg": "sklearn", "lightgbm": "lightgbm", "arf": "river"}
PACKAGES |= {"leveraging_bagging": "river", "hoeffding_adaptive": "river"}
"""What peers whose names start so are made of, where that is not of this package."""


@dataclass(frozen=True)
class Peer:
    """Call `predict` with a stream for the log-probabilities of its asked rows, in their order."""

    name: str
    predict: Callable[[Stream], Answers]


def peers(
    *,
    period: int | float,
    year: int | float,
    every: int | float | None = None,
    names: Sequence[str] = DEFAULT,
    neighbours: int = 32,
    recent: int = 3000,
    seed: int = 0,
    on_progress: Progress | None = None,
    on_skip: Skip | None = None,
) -> tuple[Peer, ...]:
    """The peers of these names. `period` and `year` are what refits look back on, in the stream's unit of time.

    Refits and fine-tuning come `every` so often, by default with every bin; `on_skip` is told of each refit that too
    few rows didn't allow. `recent_neighbours` asks so many `neighbours` among the `recent` newest rows. `on_progress`
    is told how far the peer at work has come: (done, total), in rows or in fits.
    """
    told = on_progress or (lambda done, total: None)
    lightgbm = partial(fit_lightgbm, seed=seed)
    again = partial(refitted, every=every, on_progress=told, on_skip=on_skip or (lambda moment: None))
    table: dict[str, Callable[[Stream], Answers]] = {
        "majority": majority,
        "previous_label": previous_label,
        "recent_neighbours": partial(recent_neighbours, neighbours=neighbours, recent=recent, on_progress=told),
        "finetuned": partial(finetuned, every=every, seed=seed, on_progress=told),
    }
    for name, fit in (("logreg", fit_logistic_regression), ("lightgbm", lightgbm)):
        table[f"{name}_frozen"] = partial(frozen, fit=fit)
        table[f"{name}_refit_period"] = partial(again, fit=fit, span=period)
        table[f"{name}_refit_year"] = partial(again, fit=fit, span=year)
    for name in ("arf", "leveraging_bagging", "hoeffding_adaptive"):
        table[name] = partial(prequential, name=name, seed=seed, on_progress=told)
    for name in names:
        if name not in table:
            raise SettingError(f'there is no peer "{name}": choose among {", ".join(DEFAULT + SLOW)}')
    for name, package in lacking(names).items():
        raise SettingError(f"peer {name} needs the package {package}: pip install 'recollect[peers]'")
    return tuple(Peer(name, table[name]) for name in names)


def lacking(names: Sequence[str]) -> dict[str, str]:
    """Those of these peers whose package is not installed, with its name."""
    packages = {name: PACKAGES[family] for name in names for family in PACKAGES if name.startswith(family)}
    return {name: package for name, package in packages.items() if find_spec(package) is None}
