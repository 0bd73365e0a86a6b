"""The whole prediction: affine in each of the paper's variables, and dense never below ours."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.history.key_table import Columns
from recollect.planning.plan import RUNTIME_BYTES, predict
from recollect.planning.sizes import Sizes
from recollect.reproduction.memory import line

BASE = Sizes(1_000_000, 512, 4, 64, 4096, chains=2)
VARIABLES = {
    "items": range(1_000_000, 9_000_000, 1_000_000),
    "batch": range(512, 4096, 512),
    "retrieved": range(2, 17, 2),
    "key_dim": range(16, 512, 64),
    "feature_width": range(4096, 16_384, 2048),
}


def sizes_anywhere() -> st.SearchStrategy[Sizes]:
    return st.builds(
        Sizes,
        items=st.integers(0, 10**8),
        batch=st.integers(1, 10**4),
        retrieved=st.integers(1, 32),
        key_dim=st.integers(1, 512),
        feature_width=st.integers(1, 10**4),
        chains=st.integers(1, 4),
        key_type=st.sampled_from(["float32", "float16", "bfloat16"]),
        validation=st.sampled_from([0, 512]),
    )


@pytest.mark.parametrize("method", ["ours", "dense"])
@pytest.mark.parametrize("variable", VARIABLES)
def test_memory_is_affine_in_each_variable(variable: str, method: str) -> None:
    values = [float(value) for value in VARIABLES[variable]]
    totals = [float(predict(replace(BASE, **{variable: int(value)}), method).total) for value in values]  # type: ignore[arg-type]
    fitted = line(values, totals)
    assert fitted["r2"] > 0.995
    assert fitted["slope"] > 0


def test_keys_are_held_once_and_summaries_grow_slowly() -> None:
    plans = [predict(replace(BASE, items=items)) for items in (10**6, 2 * 10**6)]
    assert plans[1].held["keys"] - plans[0].held["keys"] == 10**6 * 64 * 4
    per_item = (plans[1].total - plans[0].total) / 10**6
    # The key, its columns, and at most one block's share of the summary of every query.
    assert 64 * 4 + 52 <= per_item <= 64 * 4 + 52 + 8 * 512 * 4 / 256


@given(sizes_anywhere())
def test_dense_takes_more_where_there_is_much_to_select_from(sizes: Sizes) -> None:
    sizes = replace(sizes, items=10**6 + sizes.items, batch=64 + sizes.batch)
    ours, dense, kept = (predict(sizes, method) for method in ("ours", "dense", "dense_kept"))  # type: ignore[arg-type]
    assert ours.held == dense.held
    assert ours.phases[0].total < dense.phases[0].total <= kept.phases[0].total
    assert ours.total <= dense.total <= kept.total


@given(sizes_anywhere(), st.integers(1, 10**7))
def test_more_of_anything_never_takes_less(sizes: Sizes, more: int) -> None:
    held = predict(sizes).held
    larger = predict(replace(sizes, items=sizes.items + more)).held
    assert all(larger[name] >= count for name, count in held.items())
    assert predict(replace(sizes, parameters=10**9)).total >= predict(replace(sizes, parameters=10**6)).total


def test_the_peak_is_what_is_held_and_the_largest_phase() -> None:
    plan = predict(BASE)
    assert plan.above_runtime == sum(plan.held.values()) + max(phase.total for phase in plan.phases)
    assert plan.total == plan.above_runtime + RUNTIME_BYTES


def test_half_precision_keys_take_half() -> None:
    wide, narrow = predict(BASE), predict(replace(BASE, key_type="float16"))
    assert wide.held["keys"] == 2 * narrow.held["keys"]


def test_validation_keeps_the_best_weights() -> None:
    plain, validated = predict(BASE), predict(replace(BASE, validation=512))
    assert validated.held["weights, Adam"] * 3 == plain.held["weights, Adam"] * 4
    assert len(validated.phases) == len(plain.phases) + 2
    # However many inputs there are to validate with, no more are taken at once than in training.
    assert predict(replace(BASE, validation=8192)) == validated


def test_every_column_of_the_key_table_is_counted() -> None:
    # Beside the key: label, time, known_at, row (8 bytes each), recency and norm (4); twice 8 for what training adds.
    assert set(Columns.__dataclass_fields__) == {"key", "label", "time", "known_at", "row", "recency", "norm"}
    assert predict(replace(BASE, items=1000)).held["labels, times, places"] == 1000 * (4 * 8 + 2 * 4 + 2 * 8)
