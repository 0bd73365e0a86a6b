"""Bytes of a history and what they mean."""

import ast
import io

import numpy as np
import pytest

from recollect.history.disk.format import read_column
from recollect.history.disk.state import Changes
from tests.history.items import SCHEMA


def written(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["<i8", "<f8", ">i8", "<u8"])
@pytest.mark.parametrize("length", [0, 1, 1000])
def test_a_column_is_read_as_numpy_reads_it(kind: str, length: int) -> None:
    array = np.arange(length).astype(kind)
    found = read_column(written(array))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, np.load(io.BytesIO(written(array))))


@pytest.mark.parametrize("data", [b"", b"PK and so on, of some length", written(np.array(["text"]))])
def test_other_bytes_are_no_column(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a \.npy file of version 1\.0"):
        read_column(data)


def test_changes_are_read_without_pythons_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11.7 and before: two threads that parse at once fail now and then, and readers follow in threads."""
    changes = Changes.none(SCHEMA)
    data = changes.encode()

    def refuse(*_: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    monkeypatch.setattr(ast, "literal_eval", refuse)
    monkeypatch.setattr(ast, "parse", refuse)
    assert Changes.decode(data, SCHEMA).erased_row.dtype == np.int64
