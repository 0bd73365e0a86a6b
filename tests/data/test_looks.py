"""What a column is by its looks, as the schema has it."""

import polars as pl
import pytest

from recollect.data.inference import infer_features, infer_schema
from recollect.data.looks import A_TIME, looks_of

COUNT = 40


@pytest.mark.parametrize("mark", ["NA", "n/a", "null", "None", "?", "-", " ", "nan"])
def test_a_number_that_is_missing_in_words_is_missing(mark: str) -> None:
    whole = [str(number % 7) for number in range(COUNT - 1)]
    fractions = [f"{number}.25" for number in range(COUNT - 1)]
    rows = pl.DataFrame({"a": [mark, *whole], "b": [*fractions, mark], "c": [mark] * COUNT})
    schema = infer_schema(rows)
    assert schema.numeric == ("a", "b")
    assert schema.why["a"] == "numbers, 1 of them missing"


@pytest.mark.parametrize("written", ["{},25", "${}.50", "1,{}.5", "-{}.5%"])
def test_numbers_that_are_written_otherwise_are_told(written: str) -> None:
    rows = pl.DataFrame(
        {"x": [written.format(100 + number) for number in range(COUNT)], "label": [0, 1] * (COUNT // 2)}
    )
    assert "with a decimal point" in infer_schema(rows).ignored["x"]


def test_the_number_of_the_row_tells_nothing() -> None:
    """As pandas and R write it beside a table."""
    counter = pl.int_range(1, COUNT + 1, eager=True)
    rows = pl.DataFrame({"Unnamed: 0": counter, "steps": 2 * counter, "price": counter * 0.5})
    schema = infer_schema(rows)
    assert schema.numeric == ("steps", "price")
    assert "number of the row" in schema.ignored["Unnamed: 0"]
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=0)
    assert infer_schema(shuffled).numeric == ("steps", "price")
    assert infer_schema(shuffled.rename({"Unnamed: 0": "__index_level_0__"})).numeric == ("steps", "price")
    assert infer_schema(shuffled.rename({"Unnamed: 0": "size"})).numeric == ("size", "steps", "price")
    assert infer_schema(rows, numeric=["Unnamed: 0"]).numeric == ("Unnamed: 0", "steps", "price")
    assert infer_schema(rows[:10].rename({"Unnamed: 0": "size"})).numeric == ("size", "steps", "price")
    assert infer_features(rows).numeric == ("Unnamed: 0", "steps", "price")  # whoever hands features over has chosen


def test_a_few_mistakes_among_measurements_leave_them_numbers() -> None:
    """The rows that hold them are named when they are read."""
    texts = [f"{number}.5" for number in range(200)]
    schema = infer_schema(pl.DataFrame({"a": [*texts[1:], "cheap"], "code": [*map(str, range(199)), "C5"]}))
    assert (schema.numeric, schema.why["a"]) == (("a",), "numbers, but for 1 such as 'cheap'")
    assert "identifier" in schema.ignored["code"]


def test_the_width_of_most_lists_is_the_width() -> None:
    rows = pl.DataFrame({"vector": [[1.0], *([[1.0, 2.0]] * 9)]})
    assert infer_schema(rows, embedding=["vector"]).embedding == {"vector": 2}


def test_looks_come_with_a_reason() -> None:
    looks = {
        "true or false": [True, False],
        "numbers": [1.5, 2.5],
        "lists of 2 numbers": ["[1, 2]", "[3, 4]"],
        A_TIME: pl.Series([0, 1]).cast(pl.Date),
        "no value in the first rows: declare what it is, to have it read": [None, None],
    }
    assert [looks_of(pl.Series("x", values))[1] for values in looks.values()] == list(looks)
    moments = [f"2024-05-{day:02d}T08:00:00+0{day % 3}:00" for day in range(1, 30)]
    assert looks_of(pl.Series("seen", moments)) == ("ignored", A_TIME)
