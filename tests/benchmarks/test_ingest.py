"""The benchmark prints one JSON object last, with a ratio for every format."""

import json
import sys

import pytest

from benchmarks import ingest

RATIOS = {"ratio", "processor_ratio", "ratio_no_text", "processor_ratio_no_text"}


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ingest.py", "--rows", "200", "--repeats", "1"])
    ingest.main()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4, "a format was read differently by the two"
    result = json.loads(printed[-1])
    assert list(result["formats"]) == ["jsonl.gz", "csv", "parquet"]
    for each in result["formats"].values():
        rates, ratios = each.keys() - RATIOS, each.keys() & RATIOS
        assert rates == {"polars_rows_per_s", "ours_rows_per_s", "no_text_rows_per_s"}
        assert ratios == RATIOS
    for name in RATIOS:
        assert result[name] == min(each[name] for each in result["formats"].values())
