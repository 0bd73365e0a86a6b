"""Real data that may not be part of the project: tests that need it are skipped where it isn't."""

import os
from pathlib import Path

import pytest


def shared(name: str) -> Path:
    """A file of RECOLLECT_SHARED_DATA, by default of shared/data beside the project."""
    folder = Path(os.environ.get("RECOLLECT_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / name).is_file():
        pytest.skip(f"there is no {name} in {folder}: set RECOLLECT_SHARED_DATA to the folder that has it")
    return folder / name
