"""Room for rows in half precision: in memory, or in a file where they outgrow it."""

import tempfile
from pathlib import Path

import numpy as np
from jaxtyping import Float16


def half_rows(rows: int, width: int, folder: Path | None) -> Float16[np.ndarray, "rows width"]:
    """Zeros to be written over; with a folder, mapped from a file in it.

    That file has no name, so two processes can't be in each other's way, and it is gone with the process that made it.
    """
    if folder is None or rows == 0:  # of nothing there is no map
        return np.zeros((rows, width), np.float16)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, np.float16, "w+", shape=(rows, width))
