"""Better means beyond two standard errors; trees that know less than the network beside them are found out."""

from dataclasses import replace

import numpy as np
import torch

from recollect.answering.heads import POOLED
from recollect.config import recipe_named
from recollect.evaluation.stream import Stream
from recollect.records import FeatureSpec
from recollect.training.fit import Sizes, fit
from recollect.training.judge import better, pool_by, spread, trees_harm

SIZES = Sizes(16, 4, 120, 64, 6, 20, 64)


def make() -> Stream:
    """Labels by corners, which trees learn and a small network smooths over."""
    x = np.random.default_rng(0).normal(size=(700, 4)).astype(np.float32)
    labels = ((x[:, 0] > 0.3) ^ (x[:, 1] > -0.2)).astype(np.int64)
    time = np.arange(700, dtype=np.float64)
    specs = (FeatureSpec("x", "numeric", 4),)
    return Stream({"x": torch.from_numpy(x)}, specs, labels, time, time, np.zeros(700, np.int64), 600.0, 2)


def test_better_by_less_than_two_standard_errors_is_not_better() -> None:
    plain = torch.ones(100)
    unsure = torch.cat([torch.zeros(50), torch.full((50,), 1.7)])
    assert not better(unsure, plain)
    assert better(torch.full((100,), 0.99), plain)
    assert not better(plain, plain)
    assert not better(plain[:0], plain[:0])


def test_some_positions_evenly() -> None:
    assert spread(3, 6).tolist() == [3, 4, 5]
    some = spread(10, 50_010)
    assert (len(some), int(some[0]), int(some[-1])) == (1000, 10, 50_009)


def test_trees_are_left_out_where_they_do_harm() -> None:
    fitted = fit(make(), recipe_named("default"), sizes=SIZES)
    model = fitted.model
    assert model.trees is not None
    held_out = torch.arange(510, 600)
    assert not trees_harm(model.predictor, fitted.lookup, held_out)
    model.trees.value.neg_()  # now they are sure of the opposite
    assert trees_harm(model.predictor, fitted.lookup, held_out)
    fitted.lookup.view.items.label[510:600] = 2  # a class that the model has no place for says nothing of either
    assert not trees_harm(model.predictor, fitted.lookup, held_out)


def test_a_pool_is_weighed_by_held_out_rows_and_by_nothing_later() -> None:
    stream = make()
    fitted = fit(stream, recipe_named("default"), sizes=SIZES)
    assert fitted.model.pool is not None
    assert len(fitted.model.pool) == POOLED
    assert fitted.model.pool == pool_by(fitted.live(), torch.arange(510, 600))
    later = stream.time >= stream.cutoff
    turned = replace(stream, labels=np.where(later, 1 - stream.labels, stream.labels))
    assert fit(turned, recipe_named("default"), sizes=SIZES).model.pool == fitted.model.pool
    fitted.lookup.view.items.label[510:600] = 2  # of a class that the model has no place for nothing can be learned
    assert pool_by(fitted.live(), torch.arange(510, 600)) is None
