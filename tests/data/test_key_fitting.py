"""Fitted key functions against a plain SVD, and what each column counts in them."""

from typing import Any

import numpy as np
import pytest
import torch

from recollect.data import key_fitting
from recollect.data.key_fitting import fit_pca, fit_pca_emphasising, fit_projection
from recollect.data.keys import KeyFunction, first_columns
from recollect.errors import KeyFunctionError
from recollect.records import Features, FeatureSpec
from tests.data.key_features import ROWS, SPECS, made, rows_of


def reference(features: Features, key_dim: int, *, whiten: bool) -> Any:
    """Numbers of variance 1, categories of 1 in all, texts of as much as they have directions; then the singular
    vectors of all columns; signs are free."""
    text, amounts = features["text"].double().numpy(), features["amounts"].double().numpy()
    amounts = (amounts - amounts.mean(0))[:, :2] / amounts.std(0)[:2]
    one_hot = np.eye(5)[features["shop"].numpy()]
    parts = [(part - part.mean(0)) / np.sqrt(part.var(0).sum()) for part in (text, one_hot)]
    along = np.linalg.eigvalsh(np.cov(parts[0].T, bias=True))
    columns = [parts[0] * np.sqrt(along.sum() ** 2 / np.square(along).sum()), amounts, parts[1]]
    left, singular, _ = np.linalg.svd(np.concatenate(columns, axis=1), full_matrices=False)
    found = left[:, :key_dim] if whiten else (left * singular)[:, :key_dim]
    return found * np.sqrt(key_dim / np.square(found).sum(1).mean())


@pytest.mark.parametrize("whiten", [False, True])
def test_pca_is_a_singular_value_decomposition(whiten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_fitting, "_FITTED_AT_ONCE", 64)
    features = made()
    function = fit_pca(features, SPECS, 6, whiten=whiten)
    found, expected = function(features), reference(features, 6, whiten=whiten)
    assert (found.dtype, found.shape) == (torch.float32, (ROWS, 6))
    signs = np.sign((found.numpy() * expected).sum(0))
    np.testing.assert_allclose(found.numpy(), expected * signs, atol=2e-6)
    assert float(found.square().sum(1).mean()) == pytest.approx(6, rel=1e-6)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-6)
    covariance = found.double().T @ found.double() / ROWS
    spread = covariance.diagonal()
    np.testing.assert_allclose(covariance, spread.diag(), atol=1e-6)
    if whiten:
        np.testing.assert_allclose(spread, 1, rtol=1e-6)
    else:
        assert bool((spread[:-1] >= spread[1:]).all())


def test_every_column_of_a_table_counts_alike_and_a_text_as_much_as_it_has_directions() -> None:
    """With all directions kept, each feature's share of the squared norm is what it counts, whatever its units."""
    features = made()
    # As many numbers as the text has directions, which are alike: a text of 20 columns then counts as 20 numbers do.
    generator = torch.Generator().manual_seed(5)
    directions, turn = (torch.linalg.qr(torch.randn(rows, 20, generator=generator))[0] for rows in (ROWS, 20))
    features["text"] = 9.0 * (directions - directions.mean(0)) @ turn
    specs = SPECS[:2]
    whole = fit_pca(features, specs, 22)
    assert whole.mean is not None
    for spec, counted in zip(specs, (20, 2), strict=True):  # one of three amounts never varies
        # Rows that differ from the mean in one feature only.
        alone = {
            other.name: whole.mean[first : first + other.width].expand(ROWS, -1)
            for other, first in zip(specs, (0, 20), strict=True)
        }
        share = whole(alone | {spec.name: features[spec.name].double()}).square().sum(1).mean()
        assert float(share) == pytest.approx(counted, rel=0.02)


def counts_of(features: Features, function: KeyFunction) -> torch.Tensor:
    """What the text, each amount and the shop count: their parts of the variance of keys, each by itself."""
    assert function.projection is not None
    columns = torch.cat([features["text"], features["amounts"], torch.eye(5)[features["shop"]]], dim=1).double()
    places = (slice(0, 20), slice(20, 21), slice(21, 22), slice(22, 23), slice(23, 28))
    counts = torch.stack([(columns[:, own] @ function.projection[own]).var(0).sum() for own in places])
    return counts / counts.sum()


def test_emphasis_is_the_part_that_goes_by_relevance() -> None:
    features = made()
    relevance = torch.zeros(28, dtype=torch.float64)
    relevance[20] = 3.0  # an amount
    relevance[[24, 27]] = torch.tensor([0.6, 0.4], dtype=torch.float64)  # two of the shops
    plain, half, most = fit_pca_emphasising(features, SPECS, 64, relevance, (0.0, 0.5, 0.8), fewer=True)
    assert plain.fingerprint == fit_pca(features, SPECS, 64, fewer=True).fingerprint
    alike, by_relevance = counts_of(features, plain), torch.tensor([0.0, 0.75, 0.0, 0.0, 0.25])
    torch.testing.assert_close(counts_of(features, half), 0.5 * alike + 0.5 * by_relevance)
    torch.testing.assert_close(counts_of(features, most), 0.2 * alike + 0.8 * by_relevance)


def test_relevance_of_nothing_that_varies_changes_nothing() -> None:
    features = made()
    only_constant = torch.zeros(28, dtype=torch.float64)
    only_constant[22] = 5.0  # the amount that never varies
    plain = fit_pca(features, SPECS, 6)
    for relevance in (torch.zeros(28, dtype=torch.float64), only_constant):
        (found,) = fit_pca_emphasising(features, SPECS, 6, relevance, (0.8,))
        assert found.fingerprint == plain.fingerprint


def test_only_the_rows_handed_in_are_fitted() -> None:
    before, after = rows_of(made(), slice(0, 100)), made(seed=1)
    fitted = fit_pca(before, SPECS, 4)
    joined = {name: torch.cat([values, after[name]]) for name, values in before.items()}
    assert fit_pca(before, SPECS, 4).fingerprint == fitted.fingerprint
    assert fit_pca(joined, SPECS, 4).fingerprint != fitted.fingerprint
    assert torch.equal(fitted(joined)[:100], fitted(before))


def test_fits_that_can_not_be() -> None:
    features = made()
    with pytest.raises(KeyFunctionError, match="at least one feature"):
        fit_pca(features, [], 4)
    with pytest.raises(KeyFunctionError, match="1 rows came to fit"):
        fit_pca(rows_of(features, slice(0, 1)), SPECS, 4)
    # One amount never varies, and of five categories four say it all.
    assert fit_pca(features, SPECS, 26).key_dim == 26
    with pytest.raises(KeyFunctionError, match="keys of width 27 were asked for, the 150 rows vary in 26 directions"):
        fit_pca(features, SPECS, 27)
    with pytest.raises(KeyFunctionError, match="the 150 rows vary in 0 directions: ask for no more than these, or fit"):
        fit_pca(features, [FeatureSpec("unused", "embedded", 2)], 1)
    with pytest.raises(KeyFunctionError, match="columns together, PCA takes up to 8192: leave out"):
        fit_pca(features, [FeatureSpec("shop", "categorical", 10_000)], 4)
    features["amounts"][3, 1] = float("nan")
    with pytest.raises(KeyFunctionError, match="feature 'amounts' has values that are not finite"):
        fit_pca(features, SPECS, 4)
    for wrong in (0, 21):
        with pytest.raises(KeyFunctionError, match=f"the first {wrong} columns of feature 'text' .* ask for 1 to 20"):
            first_columns("text", 20, wrong)


@pytest.mark.parametrize("columns", [2, 12])
def test_on_a_sphere_the_largest_product_is_the_nearest(columns: int) -> None:
    rows = torch.randn(300, columns, generator=torch.Generator().manual_seed(0))
    specs = [FeatureSpec("x", "numeric", columns)]
    function = fit_pca({"x": rows}, specs, key_dim=64, sphere=True, fewer=True)
    keys = function({"x": rows})
    assert keys.shape == (300, columns + 1)
    assert function.key_dim == columns + 1
    torch.testing.assert_close(keys.square().sum(1), torch.full((300,), columns + 1.0))
    assert (keys @ keys.T).argmax(1).tolist() == list(range(300))


def test_a_projection_keeps_the_distances_of_a_learned_map() -> None:
    features, generator = made(), torch.Generator().manual_seed(1)
    weights = torch.randn(28, 6, generator=generator, dtype=torch.float64)
    function = fit_projection(features, SPECS, weights, 6)
    shop = torch.nn.functional.one_hot(features["shop"], 5)
    mapped = torch.cat([features["text"], features["amounts"], shop], dim=1).double() @ weights
    near, far = torch.pdist(function(features).double()), torch.pdist(mapped)
    torch.testing.assert_close(near / near.mean(), far / far.mean(), rtol=1e-4, atol=1e-5)
    assert float(function(features).square().sum(1).mean()) == pytest.approx(6, rel=1e-3)


def test_a_projection_is_as_wide_as_asked_for_though_its_map_is_not() -> None:
    weights = torch.zeros(28, 6, dtype=torch.float64)
    weights[0, 0], weights[1, 3] = 1.0, -2.0
    function = fit_projection(made(), SPECS, weights, 9, sphere=True)
    found = function(made())
    assert found.shape == (ROWS, 9)
    assert not found[:, 2:8].any()
    torch.testing.assert_close(found.norm(dim=1), torch.full((ROWS,), 3.0))
    with pytest.raises(KeyFunctionError, match="map all rows to one point"):
        fit_projection(made(), SPECS, torch.zeros(28, 6, dtype=torch.float64), 4)
