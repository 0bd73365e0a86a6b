"""The recipes there are, and how one is varied."""

from typing import get_args

import pytest

from recollect.config import (
    FETCH_BUDGET,
    RECIPES,
    Recipe,
    RecipeName,
    StepSettings,
    chains_for,
    recipe_named,
    with_model,
    with_train,
)
from recollect.errors import SettingError
from recollect.training.step import check


def test_every_recipe_is_found_by_its_name() -> None:
    assert list(RECIPES) == list(get_args(RecipeName))
    for name in RECIPES:
        assert recipe_named(name) is RECIPES[name]


def test_an_unknown_recipe_names_those_there_are() -> None:
    with pytest.raises(SettingError, match="no recipe 'ours': choose from default, paper, no_context"):
        recipe_named("ours")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_settings_of_every_recipe_go_together(recipe: Recipe) -> None:
    check(recipe.step, recipe.model.retrieve == "labels", recipe.model.ages)


def test_the_papers_recipe_has_none_of_our_ideas() -> None:
    paper = recipe_named("paper")
    assert (paper.step.estimator, paper.step.pathwise, paper.step.samples) == ("greedy_baseline", "greedy", 1)
    assert (paper.model.architecture, paper.model.recency, paper.model.ages) == ("mlp", None, False)
    assert (paper.step.rehearsal.probability, paper.train.clip, paper.train.scheduled) == (0.0, None, False)


def test_no_context_has_no_slots() -> None:
    assert recipe_named("no_context").model.num_retrieved == 0


@pytest.mark.parametrize(("num_retrieved", "chains"), [(0, FETCH_BUDGET), (1, 32), (4, 8), (16, 2), (100, 2)])
def test_chains_share_a_budget_of_fetches(num_retrieved: int, chains: int) -> None:
    assert chains_for(StepSettings(), num_retrieved) == chains


def test_a_given_number_of_samples_is_kept() -> None:
    assert chains_for(StepSettings(samples=7), 100) == 7


def test_a_variant_leaves_the_recipe_as_it_was() -> None:
    recipe = recipe_named("default")
    wider = with_model(recipe, width=256)
    assert (wider.model.width, recipe.model.width) == (256, 128)
    assert (wider.step, wider.train) == (recipe.step, recipe.train)
    slower = with_train(recipe, learning_rate=1e-5)
    assert (slower.train.learning_rate, recipe.train.learning_rate) == (1e-5, 2e-3)
    assert (slower.model, slower.step) == (recipe.model, recipe.step)


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="widht"):
        with_model(recipe_named("default"), widht=3)
    with pytest.raises(TypeError, match="rate"):
        with_train(recipe_named("default"), rate=3)
