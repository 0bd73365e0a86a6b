"""Features are fitted on the past and keep from the network whatever it could not have learned."""

import json
import math
from typing import Any

import hypothesis.strategies as st
import polars as pl
import pytest
import torch
from hypothesis import given

from recollect.data.feature_fitting import RARE, fit_features
from recollect.data.features import FARTHEST, NUMBERS, FeatureMap
from recollect.data.schema import TableSchema
from recollect.errors import DataError
from recollect.model.encoders import FlatEncoder
from tests.data.past_table import SCHEMA, embeddings, past


def fitted() -> FeatureMap:
    return fit_features(past(), SCHEMA, embeddings())


def test_what_was_seen_has_mean_zero_and_deviation_one() -> None:
    features = fitted()(past(), embeddings())
    numbers = features[NUMBERS]
    assert numbers.shape == (40, 3)  # a, b, and whether b is missing
    assert torch.allclose(numbers[:, 0].mean(), torch.tensor(0.0), atol=1e-6)
    assert torch.allclose(numbers[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-6)
    words = features["said"]
    assert torch.allclose(words.mean(0), torch.zeros(5), atol=1e-5)
    assert math.isclose(float(words.square().mean()), 1.0, rel_tol=1e-4)


def test_a_missing_value_is_zero_and_says_so() -> None:
    numbers = fitted()(past(), embeddings())[NUMBERS]
    assert bool((numbers[::4, 1] == 0).all())
    assert numbers[:, 2].tolist() == [float(row % 4 == 0) for row in range(40)]


def test_values_never_seen_are_drawn_back_to_the_edge() -> None:
    features = fitted()
    far = past().with_columns(pl.lit(1e9).alias("a"))
    assert torch.equal(
        features(far, embeddings())[NUMBERS][:, 0], features(past(), embeddings())[NUMBERS][-1, 0].expand(40)
    )


def test_a_missing_embedding_is_the_mean_and_told() -> None:
    schema = TableSchema(label="label", embedding={"e": 2})
    lists = [[float(row), 1.0] if row % 4 else None for row in range(40)]
    for kind in (pl.Array(pl.Float32, 2), pl.List(pl.Float32)):
        table = pl.DataFrame({"e": pl.Series(lists, dtype=kind)})
        features, of_all = fit_features(table, schema), fit_features(table.drop_nulls(), schema)
        made = features(table)
        assert torch.equal(made["e"], of_all(table)["e"])
        assert bool((made["e"][::4] == 0).all())
        assert bool(made["e"].isfinite().all())
        assert made[NUMBERS].tolist() == [[float(row % 4 == 0)] for row in range(40)]
        assert [spec.name for spec in features.specs] == [NUMBERS, "e"]
        assert NUMBERS not in of_all(table)
        assert FeatureMap.from_json(json.loads(json.dumps(features.to_json()))) == features
    absent = pl.DataFrame({"e": pl.Series([None] * 3, dtype=pl.Array(pl.Float32, 2))})
    assert features(absent)["e"].tolist() == [[0.0, 0.0]] * 3
    assert fit_features(absent, schema).left_out == {"e": "always missing before the cutoff"}
    with pytest.raises(DataError, match="the embedding e is 1 to 2 wide: give lists of one length"):
        features(pl.DataFrame({"e": [[1.0], [1.0, 2.0]]}))


def test_a_missing_text_is_the_mean_and_told_though_something_was_embedded() -> None:
    """Where none was missing before the cutoff there is nothing to learn of it, and such a text stays what it was."""
    rows, none = embeddings(), pl.Series([row % 4 == 0 for row in range(40)])
    rows["said"][none.to_numpy()] = 0.0
    table = past().with_columns(said=pl.when(none).then(None).otherwise(pl.col("said")))
    features = fit_features(table, SCHEMA, rows)
    assert features.embedded[0].flagged
    assert features.embedded[0].mean == pytest.approx(rows["said"][~none.to_numpy()].mean(0), abs=1e-6)
    found = features(table, rows)
    assert found[NUMBERS][:, -1].tolist() == none.cast(pl.Float64).to_list()
    assert not found["said"][none.to_numpy()].any()
    never = fit_features(past(), SCHEMA, embeddings())
    assert not never.embedded[0].flagged
    assert never(table, rows)["said"][0].any()
    left_out = fit_features(past().with_columns(said=pl.lit(None, pl.String)), SCHEMA, rows).left_out
    assert left_out == {"said": "always missing before the cutoff"}


def test_features_have_names_that_files_can_have() -> None:
    table = pl.DataFrame({name: ["x", "y"] * 20 for name in ("day of week", "day/of/week", "label", "numbers", "été")})
    schema = TableSchema(label="y", categorical=tuple(table.columns))
    names = [spec.name for spec in fit_features(table, schema).specs]
    assert names == ["day_of_week", "day_of_week.1", "label.2", "numbers.3", "_t_"]
    assert list(fit_features(table, schema)(table)) == names


def test_rare_and_unknown_categories_share_a_place() -> None:
    colours = ["red"] * 20 + ["green"] * 17 + ["cyan"] * 2 + ["mauve"]
    features = fit_features(past().with_columns(pl.Series("colour", colours)), SCHEMA, embeddings())
    assert features.categorical[0].categories == ("red", "green", "cyan")  # two rows are enough
    assert features.specs[1].width == 4
    asked = past(3).with_columns(pl.Series("colour", ["mauve", "never seen", None]))
    assert features(asked, embeddings(3))["colour"].tolist() == [3, 3, 3]


def test_without_rare_ones_an_unknown_category_is_outside_the_spec() -> None:
    asked = past(2).with_columns(pl.Series("colour", ["green", "blue"]))
    features = fitted()
    assert features.specs[1].width == 2
    codes = features(asked, embeddings(2))["colour"]
    assert int(codes[0]) < 2
    assert int(codes[1]) == 2


def test_a_missing_category_is_one_like_the_others() -> None:
    table = past().with_columns(pl.when(pl.col("a") < 2 * RARE).then(None).otherwise(pl.col("colour")).alias("colour"))
    features = fit_features(table, SCHEMA, embeddings())
    assert features.specs[1].width == 3
    assert len(set(features(table, embeddings())["colour"][: 2 * RARE].tolist())) == 1


def test_fourier_bands_of_all_numbers_reach_the_network() -> None:
    features = fit_features(past(), SCHEMA, embeddings(), bands=4)
    numbers = features.specs[0]
    assert (numbers.name, numbers.bands) == (NUMBERS, 4)
    encoded = FlatEncoder([numbers])({NUMBERS: features(past(), embeddings())[NUMBERS]}, (past().height,))
    assert encoded.shape == (past().height, numbers.width * (2 * 4 + 1))


def test_as_json_and_back() -> None:
    features = fitted()
    back = FeatureMap.from_json(json.loads(json.dumps(features.to_json())))
    assert back == features
    assert back.fingerprint == features.fingerprint
    assert fit_features(past(30), SCHEMA, embeddings(30)).fingerprint != features.fingerprint
    for name, values in features(past(), embeddings()).items():
        assert torch.equal(values, back(past(), embeddings())[name])


@given(st.lists(st.none() | st.floats(-1e300, 1e300), min_size=1, max_size=30))
def test_whatever_the_numbers_the_features_are_finite(values: list[float | None]) -> None:
    table = pl.DataFrame({"a": pl.Series(values, dtype=pl.Float64)})
    features = fit_features(table, TableSchema(label="label", numeric=("a",)))
    asked = pl.DataFrame({"a": [None, 0.0, 1e308, -1e308]}, schema={"a": pl.Float64})
    for rows in (table, asked):
        for number in features(rows).values():
            assert bool(number.isfinite().all())


def test_a_row_has_the_same_features_in_any_company() -> None:
    features = fitted()
    whole = features(past(), embeddings())
    for row in (0, 7, 39):
        alone = features(past()[row], {"said": embeddings()["said"][row : row + 1]})
        for name, values in alone.items():
            assert torch.equal(values[0], whole[name][row])


def test_errors_name_the_remedy() -> None:
    features = fitted()
    with pytest.raises(DataError, match=r"column a is missing.*give every column"):
        features(past().drop("a"), embeddings())
    with pytest.raises(DataError, match="came without its embedding: embed it"):
        features(past())
    with pytest.raises(DataError, match="came 4 wide, 5 were fitted"):
        features(past(), {"said": embeddings()["said"][:, :4]})
    with pytest.raises(DataError, match="has 3 rows, the table 40"):
        features(past(), embeddings(3))
    with pytest.raises(DataError, match="no row before the cutoff"):
        fit_features(past(0), SCHEMA, embeddings(0))
    with pytest.raises(DataError, match="format 1, this version reads 2"):
        FeatureMap.from_json({**features.to_json(), "format": 1})


def test_a_missing_list_of_numbers_is_at_the_mean() -> None:
    schema = TableSchema(label="label", embedding={"place": 2})
    lists = pl.DataFrame({"place": [[1.0, 5.0], None, [3.0, 9.0]]})
    features = fit_features(lists, schema)
    assert features(lists)["place"][1].tolist() == [0.0, 0.0]
    assert torch.equal(features(lists)["place"][0], -features(lists)["place"][2])
    alone = pl.DataFrame({"place": pl.Series([None], dtype=pl.Array(pl.Float32, 2))})
    assert features(alone)["place"].tolist() == [[0.0, 0.0]]
    far = features(pl.DataFrame({"place": [[3e38, -3e38]]}))["place"]
    assert far.tolist() == [[FARTHEST, -FARTHEST]]
    assert fit_features(lists[1:2], schema).left_out == {"place": "always missing before the cutoff"}


texts = st.lists(st.none() | st.sampled_from(["red", "green", "mauve", ""]), min_size=1, max_size=60)


@given(texts, texts | st.just([]))
def test_categories_have_the_codes_that_texts_have(seen: list[str | None], asked: list[str | None]) -> None:
    schema = TableSchema(label="label", numeric=("x",), categorical=("colour",))

    def table(colours: list[str | None], kind: Any) -> pl.DataFrame:
        return pl.DataFrame({"x": range(len(colours)), "colour": pl.Series(colours, dtype=kind)})

    plain, quick = (fit_features(table(seen, kind), schema) for kind in (pl.String, pl.Categorical))
    assert plain == quick
    made = [plain(table(asked, kind)) for kind in (pl.String, pl.Categorical)]
    for name, values in made[0].items():
        assert values.dtype == made[1][name].dtype
        assert torch.equal(values, made[1][name])
