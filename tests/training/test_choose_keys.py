"""Keys emphasise columns that tell of the label where the newest rows of the past are foretold better so, else not."""

import numpy as np
import torch

from recollect.data.key_fitting import fit_pca
from recollect.data.keys import KeyFunction
from recollect.evaluation.stream import Stream
from recollect.records import FeatureSpec
from recollect.training.choose_keys import fit_keys

ROWS, HELD_OUT = 1200, 200


def make(columns: int, told_by: int, *, delay: float = 0.0, specs: tuple[FeatureSpec, ...] | None = None) -> Stream:
    """Labels by where a row lies along its first columns; the others are noise."""
    x = np.random.default_rng(0).normal(size=(ROWS, columns)).astype(np.float32)
    labels = (np.sin(2 * x[:, :told_by]).sum(1) > 0).astype(np.int64)
    time = np.arange(ROWS, dtype=np.float64)
    found = specs or (FeatureSpec("x", "numeric", columns),)
    return Stream({"x": torch.from_numpy(x)}, found, labels, time, time + delay, np.zeros(ROWS, np.int64), 1e9, 2)


def keys_of(stream: Stream, relevance: torch.Tensor | None, held_out: int = HELD_OUT) -> KeyFunction:
    return fit_keys(stream, torch.arange(ROWS), held_out, 64, relevance)


def plain_keys(stream: Stream) -> KeyFunction:
    return fit_pca(stream.features, stream.specs, 64, sphere=True, fewer=True)


def relevance_of(columns: int, told_by: int) -> torch.Tensor:
    return torch.tensor([1.0] * told_by + [0.01] * (columns - told_by), dtype=torch.float64)


def test_columns_that_tell_nothing_count_less() -> None:
    stream = make(20, 2)
    found = keys_of(stream, relevance_of(20, 2))
    assert found.projection is not None
    counts = found.projection.square().sum(1)
    assert float(counts[:2].min()) > 5 * float(counts[2:].max())


def test_emphasis_that_does_not_help_is_not_taken() -> None:
    stream = make(4, 4)
    misled = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert keys_of(stream, misled).fingerprint == plain_keys(stream).fingerprint


def test_without_anything_to_judge_by_every_column_counts_alike() -> None:
    stream, relevance = make(20, 2), relevance_of(20, 2)
    for found in (keys_of(stream, None), keys_of(stream, relevance, 0), keys_of(stream, torch.zeros(20).double())):
        assert found.fingerprint == plain_keys(stream).fingerprint


def test_a_single_text_is_left_as_it_is() -> None:
    stream = make(20, 2, specs=(FeatureSpec("x", "embedded", 20),))
    assert keys_of(stream, relevance_of(20, 2)).fingerprint == plain_keys(stream).fingerprint


def test_labels_that_come_too_late_for_all_who_judge() -> None:
    stream = make(20, 2, delay=2.0 * ROWS)  # nobody sees anybody
    assert keys_of(stream, relevance_of(20, 2)).fingerprint == plain_keys(stream).fingerprint


def test_rows_whose_labels_come_late_are_judged_by_what_they_see() -> None:
    found = keys_of(make(20, 2, delay=600.0), relevance_of(20, 2))
    assert found.fingerprint == keys_of(make(20, 2), relevance_of(20, 2)).fingerprint


def test_classes_that_a_model_has_no_place_for_judge_nothing() -> None:
    stream = make(20, 2)
    stream.labels[::5] = 2
    assert keys_of(stream, relevance_of(20, 2)).fingerprint != plain_keys(stream).fingerprint
    stream.labels[-HELD_OUT:] = 2
    assert keys_of(stream, relevance_of(20, 2)).fingerprint == plain_keys(stream).fingerprint


def test_labels_after_those_given_change_nothing() -> None:
    stream = make(20, 2)
    some = torch.arange(ROWS - 300)
    before = fit_keys(stream, some, HELD_OUT, 64, relevance_of(20, 2))
    stream.labels[ROWS - 300 :] = 1 - stream.labels[ROWS - 300 :]
    assert fit_keys(stream, some, HELD_OUT, 64, relevance_of(20, 2)).fingerprint == before.fingerprint
