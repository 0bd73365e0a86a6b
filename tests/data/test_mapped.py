"""Room for rows: the same in memory and in a file, which leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest

from recollect.data.mapped import mapped_rows


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_rows_in_a_file_hold_what_rows_in_memory_hold(tmp_path: Path, dtype: type) -> None:
    in_memory, in_file = (mapped_rows(5, 3, folder, dtype) for folder in (None, tmp_path / "made"))
    for rows in (in_memory, in_file):
        assert not rows.any()
        rows[2] = [1, 2, 3]
    assert np.array_equal(in_memory, in_file)
    assert in_file.dtype == dtype
    assert list((tmp_path / "made").iterdir()) == []


def test_of_no_rows_there_is_no_file(tmp_path: Path) -> None:
    assert mapped_rows(0, 3, tmp_path / "made").shape == (0, 3)
    assert not (tmp_path / "made").exists()
