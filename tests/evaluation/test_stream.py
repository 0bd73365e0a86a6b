"""A stream says what may be learned from it, what is asked, and what peers read."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.errors import SettingError
from recollect.evaluation import stream as module
from recollect.records import FeatureSpec
from tests.evaluation.streams import make_stream


def test_a_row_is_past_by_when_its_label_was_known_and_asked_by_when_it_happened() -> None:
    stream = make_stream(delay=1.0)
    assert stream.time[stream.past].max() < 2.0
    assert stream.time[stream.asked].min() == 3.0
    assert set(stream.known_before(2.5, since=1.0)) == set(np.flatnonzero((stream.time < 1.5) & (stream.time >= 1.0)))


def test_peers_read_the_unbounded_features_where_there_are_some() -> None:
    stream = make_stream(rows=20)
    assert np.array_equal(stream.table, stream.model_table)
    wide = ({"raw": torch.arange(60.0).view(20, 3)}, (FeatureSpec("raw", "numeric", 3),))
    both = replace(stream, unbounded=wide)
    assert both.table.shape == (20, 3)
    assert np.array_equal(both.model_table, stream.table)
    rows = np.array([3, 5])
    assert np.array_equal(both.take(rows).table, both.table[rows])


@pytest.mark.parametrize("step", [1, 3])
def test_a_digest_is_of_all_rows_or_some_of_very_many_and_of_no_table_of_all(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream(rows=600)
    expected = hashlib.sha256(b"3.0")
    for column in (stream.labels, stream.time, stream.known_at, stream.model_table[::step]):
        expected.update(column.tobytes())
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(module, "DIGESTED_BYTES", 1 + sum(each.nbytes for each in stream.features.values()) // step)
    fresh = replace(stream)
    assert fresh.digest() == expected.hexdigest()
    assert "model_table" not in vars(fresh)


def test_any_other_value_is_another_digest() -> None:
    stream = make_stream(rows=600)
    changed = {name: value.clone() for name, value in stream.features.items()}
    next(iter(changed.values()))[577] += 1
    for_peers = (changed, stream.specs)
    same = (stream.features, stream.specs)
    digests = {replace(stream, unbounded=each).digest() for each in (None, same, for_peers)}
    assert len(digests | {replace(stream, features=changed).digest()}) == 4


def test_labels_and_what_is_asked_are_in_the_digest() -> None:
    stream = make_stream(rows=600)
    others = (
        replace(stream, drawn=np.arange(500)),
        replace(stream, drawn=np.arange(500), bins=stream.bins // 2),
        replace(stream, labels=1 - stream.labels),
    )
    assert len({stream.digest(), *(other.digest() for other in others)}) == 4


def test_of_drawn_rows_those_after_the_cutoff_are_asked() -> None:
    stream = replace(make_stream(rows=60), drawn=np.array([3, 29, 30, 41, 59]))
    assert stream.asked.tolist() == [30, 41, 59]
    assert len(stream.past) == 30
    some = stream.take(np.array([3, 4, 30, 40, 41]))
    assert some.drawn is not None
    assert some.drawn.tolist() == [0, 2, 4]
    assert some.asked.tolist() == [2, 4]


def test_rows_out_of_order_and_labels_known_too_early_are_refused() -> None:
    stream = make_stream(rows=20)
    with pytest.raises(SettingError, match="sort them by time"):
        replace(stream, time=stream.time[::-1].copy())
    with pytest.raises(SettingError, match="known before its row happened"):
        replace(stream, known_at=stream.time - 1)


def test_a_feature_can_be_left_out_of_what_everyone_reads() -> None:
    stream = make_stream(rows=60)
    extra = FeatureSpec("extra", "numeric", 1)
    more = replace(
        stream,
        features=stream.features | {"extra": torch.ones(60, 1)},
        specs=(*stream.specs, extra),
        unbounded=({"extra": torch.ones(60, 1), **stream.features}, (extra, *stream.specs)),
    )
    less = more.without("extra")
    assert (less.specs, set(less.features)) == (stream.specs, set(stream.features))
    assert np.array_equal(less.table, stream.model_table)
    assert stream.without("extra").digest() == stream.digest()
