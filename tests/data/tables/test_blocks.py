"""Blocks end where rows do, whatever their size, and lose no byte."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recollect.data.tables import blocks
from recollect.data.tables.blocks import count_byte, end_of_lines, end_of_records, whole_rows

fields = st.text(st.sampled_from('ab,"\n'), max_size=6)


@given(st.binary(max_size=200), st.integers(0, 250), st.none() | st.integers(0, 250), st.integers(1, 64))
def test_bytes_are_counted_as_python_counts_them(block: bytes, start: int, stop: int | None, cached: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CACHED_BYTES", cached)
        for byte in (b"\n", b'"', b"\xff"):
            assert count_byte(block, byte, start, stop) == block[start:stop].count(byte)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(fields, min_size=1, max_size=8), st.integers(1, 40))
def test_pieces_end_with_a_record_and_together_are_the_file(tmp_path: Path, rows: list[str], size: int) -> None:
    text = "".join('"{}",1\n'.format(row.replace('"', '""')) for row in rows)
    (tmp_path / "t.csv").write_text(text, newline="")
    pieces = list(whole_rows(tmp_path / "t.csv", size, end_of_records))
    assert b"".join(pieces).decode() == text
    for piece in pieces:
        assert piece.endswith(b"\n")
        assert piece.count(b'"') % 2 == 0


def test_the_last_line_gets_its_newline_and_the_mark_is_taken_off(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(blocks.BYTE_ORDER_MARK + b"a\n\nbc")
    for size in (3, 5, 100):
        assert b"".join(whole_rows(tmp_path / "t.jsonl", size, end_of_lines)) == b"a\n\nbc\n"


def test_a_quote_never_closed_does_not_take_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LONGEST_ROW", 20)
    (tmp_path / "t.csv").write_bytes(b'"a,1\n' + b"b,2\n" * 100)
    assert max(map(len, whole_rows(tmp_path / "t.csv", 10, end_of_records))) < 50
