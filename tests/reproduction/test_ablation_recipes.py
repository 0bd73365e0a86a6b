"""A recipe with something taken away is another than the full one."""

from recollect.config import recipe_named
from recollect.reproduction import rotating
from recollect.reproduction.ablation_recipes import FULL, our_recipes, papers_on_rotating, rotating_recipes


def test_each_recipe_differs_from_the_full_one() -> None:
    ours = our_recipes(recipe_named("default"))
    assert sum(each == ours[FULL] for each in ours.values()) == 1
    for recipes in (rotating_recipes, papers_on_rotating):
        boundary = recipes(rotating.SIZES["default"])
        assert sum(each == boundary[FULL] for each in boundary.values()) == 1
