"""Room for rows of numbers: in memory, or in a file where they outgrow it."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import DTypeLike


def mapped_rows(
    rows: int, width: int, folder: Path | None, dtype: DTypeLike = np.float16
) -> Shaped[np.ndarray[Any, Any], "rows width"]:
    """Zeros to be written over; with a folder, mapped from a file in it.

    That file has no name, so two processes can't be in each other's way, and it is gone with the process that made it.
    """
    if folder is None or rows == 0:  # of nothing there is no map
        return np.zeros((rows, width), dtype)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=(rows, width))
