"""A stream says what may be learned from it, what is asked, and what peers read."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recollect.errors import SettingError
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


def test_rows_out_of_order_and_labels_known_too_early_are_refused() -> None:
    stream = make_stream(rows=20)
    with pytest.raises(SettingError, match="sort them by time"):
        replace(stream, time=stream.time[::-1].copy())
    with pytest.raises(SettingError, match="known before its row happened"):
        replace(stream, known_at=stream.time - 1)
