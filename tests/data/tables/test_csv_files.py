"""CSV gives every row the line it begins in, also where values hold newlines."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.data.tables import blocks
from recollect.data.tables.csv_files import Csv
from recollect.errors import DataError

TEXT = 'a,b\n1,"x\ny"\n2,\n\n3,"p\n\nq"\n4,z\n'


@pytest.mark.parametrize("block_bytes", [4, 12, 10**6])
def test_lines_of_rows_that_span_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
    (tmp_path / "t.csv").write_text(TEXT, newline="")
    chunks = list(Csv(tmp_path / "t.csv").chunks({"a": "number", "b": "text"}, 100))
    frame = pl.concat([chunk.frame.cast(pl.String) for chunk in chunks])
    assert frame["b"].fill_null("").to_list() == ["x\ny", "", "p\n\nq", "z"]
    assert np.concatenate([chunk.numbers for chunk in chunks]).tolist() == [2, 4, 6, 9]
    assert np.concatenate([chunk.rows for chunk in chunks]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ('time,label,"a;b;c;d"', ["time", "label", "a;b;c;d"]),
        ('"Price, EUR";"Qty, kg, net";label', ["Price, EUR", "Qty, kg, net", "label"]),
        ('"a ""b,c"", d"\tlabel', ['a "b,c", d', "label"]),
        ('"a\n,,b";c', ["a\n,,b", "c"]),
        ("label", ["label"]),
    ],
)
def test_separators_inside_of_names_are_none(tmp_path: Path, header: str, names: list[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(header + "\n", newline="")
    assert Csv(path).header(path.read_bytes())[0] == names


def test_numbers_come_as_hoped_or_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for last, dtype in (("2.5", pl.Float64), ("cheap", pl.String)):
        path.write_text(f"a,b\n1,x\n{last},y\n")
        (chunk,) = Csv(path).chunks({"a": "number", "b": "text"}, 100)
        assert chunk.frame["a"].dtype == dtype
        assert str(chunk.raw_row(1)["a"]) == last


def test_a_quote_left_open_in_the_first_row_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,"x\n2,y\n3,z\n')
    assert Csv(path).first_rows(10).to_dict(as_series=False) == {"a": [2, 3], "b": ["y", "z"]}
    broken = [bad for chunk in Csv(path).chunks({"a": "number", "b": "text"}, 100) for bad in chunk.broken]
    assert [bad.place for bad in broken] == ["t.csv:2"]
    path.write_text('a,b\n1,"x\n')
    with pytest.raises(DataError, match=r"^t.csv:2: the row can't be taken apart .* mend the file"):
        Csv(path).first_rows(10)


def test_first_rows_go_on_from_block_to_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "FIRST_BYTES", 8)
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{row},x\n" for row in range(30)))
    assert Csv(tmp_path / "t.csv").first_rows(20)["a"].to_list() == list(range(20))


def test_rows_too_short_and_too_long_are_broken_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2\n3,y,z\n4,w\n")
    (chunk,) = Csv(tmp_path / "t.csv").chunks({"a": "number", "b": "text"}, 100)
    assert chunk.frame["b"].to_list() == ["x", "w"]
    assert [(bad.row, bad.place, bad.kind) for bad in chunk.broken] == [
        (1, "t.csv:3", "wrong number of values"),
        (2, "t.csv:4", "wrong number of values"),
    ]
