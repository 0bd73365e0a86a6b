"""Reviews from files as people have them: with and without ids and covariates."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.data.reviews import HELPFUL, VERIFIED, Reviews, Rule, read_reviews, review_features, start_of
from recollect.errors import BadRowError, DataError
from tests.shared_data import shared

MILLISECONDS = 10**6
CUTOFF = start_of(2014)


def review(rating: float, day: str, **more: Any) -> dict[str, Any]:
    moment = int(np.datetime64(day, "ms").astype(np.int64))
    return {"rating": rating, "title": f"title {day}", "text": f"text of {day}", "timestamp": moment, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def read(path: Path, rows: list[dict[str, Any]]) -> Reviews:
    return read_reviews(write(path / "reviews.jsonl.gz", rows))[0]


PLAIN = [review(5.0, "2014-05-01"), review(3.0, "2013-01-01"), review(2.0, "2014-01-01"), review(1.0, "2014-03-01")]
FULL = [
    {**row, "asin": f"B{index}", "user_id": f"U{index}", HELPFUL: index * 3, VERIFIED: index % 2 == 0}
    for index, row in enumerate(PLAIN)
]


def test_reviews_come_in_order_of_time_in_the_papers_layout(tmp_path: Path) -> None:
    reviews = read(tmp_path, PLAIN)
    assert reviews.rating.tolist() == [3.0, 2.0, 1.0, 5.0]
    assert reviews.text[0] == "<title>title 2013-01-01</title><text>text of 2013-01-01</text>"
    assert reviews.time[1] == CUTOFF
    assert reviews.columns.width == 0


def test_a_title_may_be_missing(tmp_path: Path) -> None:
    rows = [{**PLAIN[0], "title": None}, {**PLAIN[1], "title": "", "text": ""}]
    assert read(tmp_path, rows).text.to_list() == [
        "<title></title><text></text>",
        "<title></title><text>text of 2014-05-01</text>",
    ]


def test_the_threshold_changes_at_the_cutoff(tmp_path: Path) -> None:
    reviews = read(tmp_path, PLAIN)
    assert reviews.labels(Rule(CUTOFF)).tolist() == [0, 1, 0, 1]
    assert reviews.labels(Rule(CUTOFF + 1)).tolist() == [0, 0, 0, 1]
    assert reviews.labels(Rule(CUTOFF, before=2.0, after=4.0)).tolist() == [1, 0, 0, 1]


def test_a_file_whose_times_are_all_in_seconds_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadRowError, match=r"the time \d+ is not in milliseconds, as the others are or should be"):
        read(tmp_path, [{**row, "timestamp": row["timestamp"] // 1000} for row in PLAIN])


def test_covariates_are_numbers(tmp_path: Path) -> None:
    columns = read(tmp_path, FULL).columns
    assert columns[HELPFUL].to_list() == [3.0, 6.0, 9.0, 0.0]
    assert columns[VERIFIED].to_list() == [0.0, 1.0, 0.0, 1.0]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.jsonl.gz", [{"rating": 5, "text": "good"}])
    with pytest.raises(DataError, match="no column title, timestamp"):
        read_reviews(path)


def test_bad_rows_are_named_or_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "reviews.jsonl.gz", [*PLAIN, {**PLAIN[0], "rating": None}])
    with pytest.raises(BadRowError, match=r"reviews.jsonl.gz:5"):
        read_reviews(path)
    reviews, reading = read_reviews(path, bad_rows="skip")
    assert (len(reviews), reading.summary.bad.total()) == (4, 1)
    path = write(tmp_path / "more.jsonl.gz", [*PLAIN, review(7, "2014-06-01"), {**PLAIN[0], "rating": "good"}])
    with pytest.raises(BadRowError, match=r"more.jsonl.gz:5: rating is '7', not a number from 1 to 5 \(1 more bad row"):
        read_reviews(path)
    reviews, reading = read_reviews(path, bad_rows="skip")
    assert (len(reviews), dict(reading.summary.bad)) == (4, {"out of range: rating": 2})


def test_features_are_fitted_on_the_past_alone(tmp_path: Path) -> None:
    reviews = read(tmp_path, FULL)
    embeddings = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [9.0, 9.0]], np.float16)
    past = np.arange(3)
    features, specs = review_features(reviews, embeddings, past)
    assert [(spec.name, spec.kind, spec.width, spec.bands, spec.max_frequency) for spec in specs] == [
        ("text", "embedded", 2, 0, 64.0),
        (HELPFUL, "numeric", 1, 48, 64.0),
        (VERIFIED, "numeric", 1, 0, 64.0),
    ]
    assert features["text"].dtype == torch.float16
    torch.testing.assert_close(features["text"][:3].float().mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    assert float(features["text"][:3].float().square().mean()) == pytest.approx(1.0, abs=1e-2)
    torch.testing.assert_close(features[HELPFUL][:, 0], torch.tensor([-1.0, 0, 1, -1]) * 1.5**0.5)  # drawn back to 3
    assert features[VERIFIED].tolist() == [[0.0], [1.0], [0.0], [1.0]]
    other = embeddings.copy()
    other[3] = -7
    again = review_features(reviews, other, past)[0]["text"]
    assert torch.equal(again[:3], features["text"][:3])


def test_a_covariate_that_never_changed_before_the_cutoff_is_left_out(tmp_path: Path) -> None:
    reviews = read(tmp_path, FULL)
    embeddings = np.eye(4, dtype=np.float16)
    _, specs = review_features(reviews, embeddings, np.array([0, 2]))
    assert [spec.name for spec in specs] == ["text", HELPFUL]


def test_standardised_rows_may_be_mapped_from_a_file(tmp_path: Path) -> None:
    reviews, embeddings, past = read(tmp_path, PLAIN), np.eye(4, dtype=np.float16), np.arange(3)
    expected = review_features(reviews, embeddings, past)[0]["text"]
    features, _ = review_features(reviews, embeddings, past, folder=tmp_path / "rows")
    assert torch.equal(features["text"], expected)
    assert list((tmp_path / "rows").iterdir()) == []  # it has no name


def test_every_review_needs_an_embedding(tmp_path: Path) -> None:
    reviews = read(tmp_path, PLAIN)
    with pytest.raises(DataError, match="3 embeddings came for 4 reviews"):
        review_features(reviews, np.eye(3), np.arange(2))
    with pytest.raises(DataError, match="the same embedding"):
        review_features(reviews, np.ones((4, 2)), np.arange(2))


def test_the_real_file_reads(tmp_path: Path) -> None:
    lines = []
    with gzip.open(shared("amazon_electronics_reviews.jsonl.gz")) as file:
        for line, _ in zip(file, range(3000), strict=False):
            lines.append(line)
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"".join(lines))
    reviews, reading = read_reviews(path)
    assert (len(reviews), reading.summary.bad.total()) == (3000, 0)
    assert (np.diff(reviews.time) >= 0).all()
    assert start_of(1999) <= reviews.time[0] < start_of(2000)
    assert set(reviews.rating) == {1.0, 2.0, 3.0, 4.0, 5.0}
    assert reviews.text.str.starts_with("<title>").all()
    assert 0.6 < reviews.labels(Rule(start_of(2012))).mean() < 0.9
