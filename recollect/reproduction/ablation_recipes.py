"""Which ideas and tricks can be taken away, one at a time: recipes by the name of what is missing.

It knows nothing of data, of training or of how a recipe is judged.
"""

from dataclasses import dataclass, replace

from recollect.config import Recipe, with_model, with_step
from recollect.reproduction import rotating
from recollect.reproduction.reviews_paper import BAG_OF_TRICKS, Trick, with_tricks
from recollect.training.slots import RECENT_SHARE

FULL = "everything"
"""The recipe that all others of its group are compared with; it comes first."""


@dataclass(frozen=True)
class Ours:
    """Our recipe, or one with something taken away."""

    recipe: Recipe
    recent_share: float = RECENT_SHARE
    key_refreshes: int = 0
    words: bool = True


def our_recipes(full: Recipe) -> dict[str, Ours]:
    """What has to be trained anew, on rows of a table."""
    return {
        FULL: Ours(full),
        "scores of words": Ours(full, words=False),
        "rehearsal": Ours(_rehearsing(full, probability=0.0)),
        "the trusting half": Ours(_rehearsing(full, trusting=0.0)),
        "rehearsed regions": Ours(_rehearsing(full, region=0.0)),
        "rehearsed change points": Ours(_rehearsing(full, change_point=0.0)),
        "ages": Ours(with_model(full, ages=False)),
        "the pointer": Ours(with_model(full, pointer=False)),
        "keys that stay (made anew twice)": Ours(full, key_refreshes=2),
        "recent slots (all nearest)": Ours(full, recent_share=0.0),
        "nearest slots (all recent)": Ours(full, recent_share=1.0),
        "input dropout": Ours(_dropping(full, input=0.0)),
        "context dropout": Ours(_dropping(full, context=0.0)),
    }


def rotating_recipes(sizes: rotating.Sizes) -> dict[str, Recipe]:
    """On the rotating boundary, where queries are learned; the paper's recipe last, for reference.

    Leave-one-out compares chains with each other, so a single chain takes the greedy baseline with it.
    """
    full = rotating.rotating_recipe("default", sizes)
    return {
        FULL: full,
        "rehearsal": _rehearsing(full, probability=0.0),
        "the recency coordinate": with_model(full, recency=None),
        "ages": with_model(full, ages=False),
        "the pointer": with_model(full, pointer=False),
        "differences": with_model(full, differences=False),
        "leave-one-out (greedy baseline)": with_step(full, estimator="greedy_baseline"),
        "several chains (greedy baseline)": with_step(full, estimator="greedy_baseline", samples=1),
        "all of it (the paper's recipe)": rotating.rotating_recipe("paper", sizes),
    }


def papers_on_rotating(sizes: rotating.Sizes) -> dict[str, Recipe]:
    """The paper's recipe on the rotating boundary with the whole bag, less one trick at a time. The paper has the bag
    for its reviews alone: its synthetic tasks, which this is one of, begin at a temperature of 1 and have no tricks."""
    plain = rotating.rotating_recipe("paper", sizes)
    return {
        name: with_tricks(plain, tricks, temperature=plain.train.first_temperature)
        for name, tricks in less_one_trick().items()
    } | {"all of them (as in the paper)": plain}


def less_one_trick() -> dict[str, frozenset[Trick]]:
    """The whole bag, and the bag without each of its tricks, by its name."""
    return {FULL: BAG_OF_TRICKS} | {trick.replace("_", " "): BAG_OF_TRICKS - {trick} for trick in sorted(BAG_OF_TRICKS)}


def _rehearsing(recipe: Recipe, **changes: float) -> Recipe:
    return with_step(recipe, rehearsal=replace(recipe.step.rehearsal, **changes))


def _dropping(recipe: Recipe, **changes: float) -> Recipe:
    return with_step(recipe, dropouts=replace(recipe.step.dropouts, **changes))
