"""The benchmark prints one JSON object last, with a ratio for every format."""

import json
import sys

import pytest

from benchmarks import ingest


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ingest.py", "--rows", "200", "--repeats", "1"])
    ingest.main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4, "a format was read differently by the two"
    result = json.loads(printed[-1])
    assert list(result["formats"]) == ["jsonl.gz", "csv", "parquet"]
    for each in result["formats"].values():
        assert each.keys() == {"polars_rows_per_s", "ours_rows_per_s", "ratio", "processor_ratio"}
    assert result["ratio"] == min(each["ratio"] for each in result["formats"].values())
