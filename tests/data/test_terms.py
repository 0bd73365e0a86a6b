"""Terms: the first words and pairs of a text, each once, the same in any company and whoever knows them."""

from itertools import pairwise

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from recollect.data.terms import BUCKETS, first_terms, num_terms, term_counts, value_terms, value_terms_by
from recollect.records import FIRST_VALUE

TEXTS = st.lists(st.one_of(st.none(), st.text(alphabet="aB .éİ", max_size=30)), max_size=6)


def naive(text: str | None, words: int) -> set[int]:
    """By hand: split, pair, and ask for the hash of each by itself."""
    letters = (letter if letter.isalnum() else " " for letter in (text or "").lower())
    split = "".join(letters).split()[:words]
    terms = split + [f"{first} {second}" for first, second in pairwise(split)]
    return {int(term_counts([term]).indices[0]) if " " not in term else pair_hash(term) for term in terms}


def pair_hash(pair: str) -> int:
    both = {int(each) for each in term_counts([pair]).indices}
    (alone,) = both - {int(term_counts([word]).indices[0]) for word in pair.split()}
    return alone


@given(TEXTS)
def test_each_row_is_its_own_and_has_its_terms_once_in_order(texts: list[str | None]) -> None:
    found = first_terms(texts, 4)
    assert found.shape == (len(texts), num_terms(4))
    for row, text in zip(found, texts, strict=True):
        assert np.array_equal(row, first_terms([text], 4)[0])
        there = row[row >= 0]
        assert set(there.tolist()) == naive(text, 4)
        assert (np.diff(there) > 0).all()
        assert (there < BUCKETS).all()
        assert (row[len(there) :] == -1).all()


def test_no_more_than_the_first_words_count() -> None:
    long = " ".join(f"w{number}" for number in range(50))
    short = " ".join(f"w{number}" for number in range(8))
    assert np.array_equal(first_terms([long], 8), first_terms([short], 8))
    assert (first_terms([long], 8) >= 0).all()
    assert not np.array_equal(first_terms([long], 9)[:, :15], first_terms([short], 8))


def test_no_texts_have_no_rows_and_empty_ones_no_terms() -> None:
    assert first_terms([], 3).shape == (0, 5)
    assert (first_terms([None, "", " .. "], 3) == -1).all()


def test_a_value_of_a_category_is_a_term_of_its_column_however_it_is_stored() -> None:
    shop, city = pl.Series("shop", ["a", "b", None, "a"]), pl.Series("city", ["a", "a", "b", "b"])
    shops, cities = value_terms(shop).tolist(), value_terms(city).tolist()
    assert len({*shops}) == 3  # what is missing is a value too
    assert shops[0] == shops[3]
    assert not {*shops} & {*cities}  # the same name in another column is another value
    assert value_terms(shop.cast(pl.Categorical)).tolist() == shops
    assert value_terms(shop[1:2]).tolist() == [shops[1]]  # whoever else is there
    assert all(FIRST_VALUE <= term < 2 * FIRST_VALUE for term in shops + cities)


@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=9), st.integers(0, 3))
def test_known_places_spare_looking_and_change_nothing(values: list[str | None], known: int) -> None:
    categories = ("c", "a", "b")[:known]
    codes = np.array([categories.index(each) if each in categories else known for each in values], np.int64)
    series = pl.Series("shop", values, pl.String)
    assert value_terms_by(codes, categories, series).tolist() == value_terms(series).tolist()
