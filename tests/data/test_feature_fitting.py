"""What is kept of the past: which columns, their ranges and categories, and what models see that are fitted anew."""

import numpy as np
import polars as pl
import pytest
import torch

from recollect.data.feature_fitting import MOST_CATEGORIES, RARE, fit_features
from recollect.data.features import NUMBERS
from recollect.data.schema import TableSchema
from tests.data.past_table import SCHEMA, past


def test_a_column_that_never_changed_is_kept_from_the_network() -> None:
    table = past().with_columns(pl.lit(7.0).alias("b"), pl.lit("red").alias("colour"))
    features = fit_features(table, SCHEMA, {"said": np.ones((40, 5), np.float32)})
    assert [spec.name for spec in features.specs] == [NUMBERS]
    assert features.specs[0].width == 1
    assert features.left_out == {
        "b": "always 7 before the cutoff",
        "colour": "always 'red' before the cutoff",
        "said": "always the same before the cutoff",
    }
    moved = table.with_columns(pl.lit(99.0).alias("b"), pl.lit("blue").alias("colour"))
    same, other = features(table), features(moved)
    assert same.keys() == other.keys()
    assert torch.equal(same[NUMBERS], other[NUMBERS])


def test_features_of_ever_let_through_what_only_later_changes() -> None:
    table = past().with_columns(pl.lit(7.0).alias("b"))
    later = table.with_columns(pl.lit(9.0).alias("b"), pl.lit(1e6).alias("a"))
    schema = TableSchema(label="label", numeric=("a", "b"))
    features = fit_features(table, schema, ever=pl.concat([table, later]))
    assert not features.left_out
    assert features(table)[NUMBERS][:, 1].tolist() == [0.0] * 40
    assert features(later)[NUMBERS][:, 1].tolist() == [2.0] * 40
    assert float(features(later)[NUMBERS][0, 0]) > 1e4


@pytest.mark.parametrize(("before", "after"), [(1e-31, 1e10), (1e300, 1e298), (1e-300, 1e300)])
def test_features_of_ever_are_finite_too(before: float, after: float) -> None:
    table = pl.DataFrame({"a": [before, -before, 2 * before, after, -after]})
    features = fit_features(table[:3], TableSchema(numeric=("a",)), ever=table)
    assert bool(features(table)[NUMBERS].isfinite().all())


def test_features_of_ever_have_a_place_for_what_first_comes_later() -> None:
    table = past().with_columns(pl.lit(None, pl.Float64).alias("b"), pl.lit("old").alias("shop"))
    later = table.with_columns(pl.lit(None, pl.Float64).alias("a"), pl.lit(5.0).alias("b"), pl.lit("new").alias("shop"))
    schema = TableSchema(label="label", numeric=("a", "b"), categorical=("shop",))
    assert set(fit_features(table, schema).left_out) == {"b", "shop"}
    features = fit_features(table, schema, ever=pl.concat([table, later]))
    assert not features.left_out
    missing = features(later)[NUMBERS].unique(dim=0).tolist()
    assert missing == [[0.0, 1.0, 1.0, 0.0]]
    assert features(table)["shop"].unique().tolist() != features(later)["shop"].unique().tolist()


def test_features_of_ever_have_a_place_for_texts_first_missing_later() -> None:
    table = past().with_columns(pl.lit("some words").alias("said"))
    later = table.with_columns(pl.lit(None, pl.String).alias("said"))
    said = {"said": np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)}
    schema = TableSchema(label="label", text=("said",))
    assert not fit_features(table, schema, said).embedded[0].flagged
    features = fit_features(table, schema, said, ever=pl.concat([table, later]))
    assert features(table, said)[NUMBERS].unique().tolist() == [0.0]
    assert features(later, said)[NUMBERS].unique().tolist() == [1.0]


def test_features_of_ever_depend_on_no_row_after_them() -> None:
    table = past().with_columns(pl.Series("shop", ["old"] * 39 + ["rare"]))
    schema = TableSchema(label="label", categorical=("shop",))
    made = []
    for shop in ("rare", "new"):  # how often something is going to come decides nothing
        later = table.with_columns(pl.lit(shop).alias("shop"))
        made.append(fit_features(table, schema, ever=pl.concat([table, later]))(table)["shop"].tolist())
    assert made[0] == made[1]
    assert made[0][-1] != made[0][0]


def test_a_number_that_is_first_there_later_depends_on_no_row_after_it() -> None:
    table = past().with_columns(a=pl.lit(None, dtype=pl.Float64))
    made = []
    for last in (7.0, 3000.0):
        later = table.with_columns(a=pl.Series([5.0, *[None] * 38, last]))
        features = fit_features(table, TableSchema(label="label", numeric=("a",)), ever=pl.concat([table, later]))
        made.append(features(pl.concat([table, later[:-1]]))[NUMBERS])
    assert torch.equal(made[0], made[1])
    assert made[0][40].tolist() == [1.0, 0.0]


def test_a_flag_that_was_never_raised_does_not_reach_the_network() -> None:
    features = fit_features(past(), TableSchema(label="label", numeric=("a",)))
    gap = past().with_columns(pl.lit(None, dtype=pl.Float64).alias("a"))
    assert torch.equal(features(gap)[NUMBERS], torch.zeros(40, 1))


def test_a_column_always_missing_or_one_value_where_there_is_any() -> None:
    table = past().with_columns(
        pl.lit(None, dtype=pl.Float64).alias("a"), pl.when(pl.col("a") > 10).then(1.0).alias("b")
    )
    features = fit_features(table, TableSchema(label="label", numeric=("a", "b")))
    assert features.left_out == {"a": "always missing before the cutoff"}
    assert features(table)[NUMBERS].unique(dim=0).tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_there_is_an_end_to_categories() -> None:
    names = [f"user {row // RARE:05}" for row in range((MOST_CATEGORIES + 10) * RARE)]
    features = fit_features(pl.DataFrame({"user": names}), TableSchema(label="label", categorical=("user",)))
    assert features.specs[0].width == MOST_CATEGORIES + 1


def test_infinite_numbers_are_as_large_as_any_can_be() -> None:
    table = pl.DataFrame({"a": [float("inf"), float("inf"), None], "b": [float("-inf"), 0.0, 1.0]})
    a, b = fit_features(table, TableSchema(label="label", numeric=("a", "b"))).numeric
    assert (a.low, a.high, a.mean) == (1e100, 1e100, 1e100)
    assert (b.low, b.high) == (-1e100, 1.0)
