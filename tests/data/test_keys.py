"""What a key function promises: same bits in any company, one fingerprint, one file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recollect.data.key_fitting import fit_pca
from recollect.data.keys import KeyFunction, first_columns
from recollect.errors import KeyFunctionError
from recollect.records import FeatureSpec
from tests.data.key_features import ROWS, SPECS, made, rows_of


@pytest.mark.parametrize("at_once", [1, 3, 31, 32, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_key_has_the_same_bits_in_any_company(at_once: int, dtype: torch.dtype) -> None:
    features = made()
    features["text"] = features["text"].to(dtype)
    for function in (
        fit_pca(features, SPECS, 7),
        fit_pca(features, SPECS[:2], 5, whiten=True),
        first_columns("text", 20, 8),
    ):
        whole = function(features)
        chunks = [function(rows_of(features, slice(start, start + at_once))) for start in range(0, ROWS, at_once)]
        assert torch.equal(torch.cat(chunks), whole)
        shuffled = torch.randperm(ROWS, generator=torch.Generator().manual_seed(at_once))
        assert torch.equal(function(rows_of(features, shuffled)), whole[shuffled])
        assert function(rows_of(features, slice(0, 0))).shape == (0, function.key_dim)


def test_first_columns_are_left_as_they_are() -> None:
    features = made()
    found = first_columns("text", 20, 8)(features)
    assert torch.equal(found, features["text"][:, :8])
    found.zero_()
    assert bool((features["text"] != 0).any())


def test_a_category_that_came_later_is_none_of_the_known_ones() -> None:
    features = made()
    function = fit_pca(features, SPECS, 4)
    later, none = (function(features | {"shop": torch.full((ROWS,), code)}) for code in (5, -1))
    assert torch.equal(later, none)
    assert not torch.equal(later, function(features | {"shop": torch.zeros(ROWS, dtype=torch.long)}))


def test_a_single_number_per_row() -> None:
    features = {"amount": torch.arange(5)}
    function = fit_pca(features, [FeatureSpec("amount", "numeric", 1)], 1)
    np.testing.assert_allclose(function(features)[:, 0], (np.arange(5) - 2) / np.sqrt(2), rtol=1e-6)
    assert torch.equal(function({"amount": torch.arange(5.0)[:, None]}), function(features))


# Fingerprints and files


def functions() -> dict[str, KeyFunction]:
    features = made()
    return {
        "first": first_columns("text", 20, 8),
        "fewer": first_columns("text", 20, 7),
        "wider": first_columns("text", 21, 8),
        "other": first_columns("title", 20, 8),
        "pca": fit_pca(features, SPECS, 4),
        "white": fit_pca(features, SPECS, 4, whiten=True),
        "narrow": fit_pca(features, SPECS, 3),
        "order": fit_pca(features, SPECS[::-1], 4),
        "rows": fit_pca(rows_of(features, slice(1, None)), SPECS, 4),
    }


def test_whatever_changes_keys_changes_the_fingerprint() -> None:
    made_once, made_again = functions(), functions()
    fingerprints = {name: function.fingerprint for name, function in made_once.items()}
    assert len(set(fingerprints.values())) == len(fingerprints)
    assert fingerprints == {name: function.fingerprint for name, function in made_again.items()}
    # A promise to every history on disk: this may never change.
    assert fingerprints["first"] == "a54b2c0b2b2262a7"


@pytest.mark.parametrize("name", ["first", "pca", "white"])
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    function, features = functions()[name], made(seed=2)
    function.save(tmp_path / "key_function")
    assert [file.name for file in tmp_path.iterdir()] == ["key_function"]
    loaded = KeyFunction.load(tmp_path / "key_function")
    assert loaded.fingerprint == function.fingerprint
    assert (loaded.kind, loaded.features, loaded.key_dim) == (function.kind, function.features, function.key_dim)
    assert torch.equal(loaded(features), function(features))


def test_it_can_not_be_changed() -> None:
    with pytest.raises(AttributeError):
        first_columns("text", 20, 8).key_dim = 9  # type: ignore[misc]


def test_files_that_are_no_key_function(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(
        KeyFunctionError, match=r"can't be read as a key function .*: give a file that KeyFunction.save"
    ):
        KeyFunction.load(file)
    file.write_bytes(b"something else")
    with pytest.raises(KeyFunctionError, match="can't be read as a key function"):
        KeyFunction.load(file)
    save_file({"mean": torch.zeros(3)}, file)
    with pytest.raises(KeyFunctionError, match="holds no key function"):
        KeyFunction.load(file)
    save_file({}, file, {"recollect_key_function": json.dumps({"format": 9})})
    with pytest.raises(KeyFunctionError, match="has format 9, this version reads 1: use the version"):
        KeyFunction.load(file)
    functions()["pca"].save(file)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(KeyFunctionError, match="does not match its fingerprint"):
        KeyFunction.load(file)


# Mistakes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "keys are made of the feature 'text', the features there are: amounts, shop, unused"),
        ({"text": torch.zeros(ROWS, 19)}, r"'text' came as float32 of shape \[150, 19\], .* takes 20 numbers per row"),
        ({"text": torch.zeros(ROWS)}, r"'text' came as float32 of shape \[150\]"),
        ({"shop": torch.zeros(ROWS)}, r"'shop' came as float32 of shape \[150\], .* takes an integer code per row"),
        ({"shop": torch.zeros(ROWS, 5, dtype=torch.long)}, r"'shop' came as int64 of shape \[150, 5\]"),
        ({"shop": torch.zeros(9, dtype=torch.long)}, r"rows \(150 of text, 150 of amounts, 9 of shop\)"),
    ],
    ids=["missing", "narrow", "flat", "float codes", "wide codes", "fewer rows"],
)
def test_features_it_was_not_made_for(changes: dict[str, Any], message: str) -> None:
    features = {name: values for name, values in (made() | changes).items() if values is not None}
    for attempt in (fit_pca(made(), SPECS, 4), lambda given: fit_pca(given, SPECS, 4)):
        with pytest.raises(KeyFunctionError, match=message):
            attempt(features)


def test_a_sphere_is_saved_and_part_of_the_fingerprint(tmp_path: Path) -> None:
    rows = {"x": torch.randn(50, 4, generator=torch.Generator().manual_seed(0))}
    specs = [FeatureSpec("x", "numeric", 4)]
    function = fit_pca(rows, specs, key_dim=4, sphere=True)
    function.save(tmp_path / "keys")
    back = KeyFunction.load(tmp_path / "keys")
    assert torch.equal(back(rows), function(rows))
    assert back.fingerprint == function.fingerprint
    assert function.fingerprint != fit_pca(rows, specs, key_dim=3).fingerprint
