"""The benchmark trains on a history on disk, and the features that lie there take no memory. Nothing is timed."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.training import compare, history_at
from recollect.config import RECIPES, chains_for
from recollect.planning.sizes import Sizes
from recollect.reproduction.peak import STATUS

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory is measured through /proc")

QUIET = Console(quiet=True)
KEYS = {"items_bytes", "peak_anonymous_bytes", "ratio", "planned_bytes", "plan_error", "steps", "seconds"}
WIDTH = 512


def sizes_of(items: int) -> Sizes:
    return Sizes(items, 4, 2, 8, WIDTH, chains_for(RECIPES["default"].step, 2), classes=4, validation=4)


def measured(directory: Path, items: int) -> dict[str, Any]:
    with history_at(directory, sizes_of(items), keep=False, console=QUIET) as path:
        return compare(path, sizes_of(items), steps=2, gives_back=True)


def test_the_peak_does_not_grow_with_the_features_on_disk(tmp_path: Path) -> None:
    small, large = (measured(tmp_path, items) for items in (5_000, 65_000))
    for result in (small, large):
        assert result.keys() >= KEYS
        assert result["steps"] == 2
        assert result["imported_bytes"] < result["peak_anonymous_bytes"]
    more = large["items_bytes"] - small["items_bytes"]
    assert more == pytest.approx(60_000 * WIDTH * 2, rel=0.01)
    # Keys and columns are 6 MB more, and a peak is not the same twice.
    assert large["peak_anonymous_bytes"] - small["peak_anonymous_bytes"] < more / 2
    assert not list(tmp_path.iterdir())


def test_a_history_that_is_kept_is_found_again(tmp_path: Path) -> None:
    for _ in range(2):
        with history_at(tmp_path, sizes_of(300), keep=True, console=QUIET) as path:
            written = (path / "manifest.json").stat().st_mtime_ns
    assert (path / "manifest.json").stat().st_mtime_ns == written
    path.rename(tmp_path / path.name.replace("300", "400"))
    with pytest.raises(SystemExit, match="not written to its end"):
        history_at(tmp_path, sizes_of(400), keep=True, console=QUIET).__enter__()
