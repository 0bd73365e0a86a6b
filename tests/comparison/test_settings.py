"""What people write becomes options in the data's own unit of time."""

from pathlib import Path
from typing import get_args

import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.cli_reproduce import TimeUnitOption
from recollect.comparison.compare import Options
from recollect.comparison.settings import cutoff_from, cutoff_in, read, span_from
from recollect.data.embedding import EmbedderSpec
from recollect.data.reading import read_all
from recollect.data.schema import TableSchema
from recollect.data.tables.times import TIME_UNITS
from recollect.errors import DataError, SettingError

DAY = 86_400 * 10**9
PLAIN = {
    "time": None,
    "time_unit": None,
    "label": None,
    "known_at": None,
    "label_delay": "0",
    "cutoff": "0.5",
    "id": None,
    "text": [],
    "numeric": [],
    "categorical": [],
    "embedding": [],
    "ignore": [],
    "bins": 4,
    "refit": None,
    "peers": [],
    "seeds": [0],
    "bad_rows": "fail",
    "embedder": EmbedderSpec(),
    "scale": "quick",
}


@pytest.mark.parametrize(("text", "expected"), [("7d", 7 * DAY), ("12h", DAY // 2), ("1.5d", 3 * DAY // 2), ("0", 0)])
def test_spans_of_moments(text: str, expected: int) -> None:
    assert span_from(text, False, "--label-delay") == expected


def test_spans_of_plain_times_have_no_unit() -> None:
    assert span_from("2.5", True, "--refit") == 2.5
    with pytest.raises(SettingError, match="plain numbers"):
        span_from("7d", True, "--refit")
    with pytest.raises(SettingError, match="no unit"):
        span_from("7", False, "--refit")
    with pytest.raises(SettingError, match="such as 7d"):
        span_from("soon", False, "--refit")


def test_a_cutoff_is_a_share_or_a_moment() -> None:
    assert cutoff_from("0.3", False) == (0.3, None)
    assert cutoff_from("1970-01-03", False) == (0.5, 2 * DAY)
    assert cutoff_from("250", True) == (0.5, 250.0)
    with pytest.raises(SettingError, match="2019-01-01"):
        cutoff_from("spring", False)
    with pytest.raises(SettingError, match="is no number"):
        cutoff_from("2019-01-01", True)


def test_a_share_becomes_the_moment_after_it() -> None:
    schema = TableSchema(time="when", time_unit="number", label="y")
    events, _ = read_all(pl.DataFrame({"when": [9, 1, 3, 7], "y": list("abab")}), schema)
    assert cutoff_in(events, "0.5", True) == 7.0
    assert cutoff_in(events, "2", True) == 2.0


def write(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_class_for_every_row_is_refused(tmp_path: Path) -> None:
    rows = [f"2020-01-{day:02d},{day},{day / 7}" for day in range(1, 29)]
    priced = write(tmp_path / "priced.csv", "when,x,price", rows)
    with pytest.raises(DataError, match=r"the label price has 28 different values in 28 rows: .* classes with --label"):
        read(priced, {**PLAIN, "label": "price"})


def test_what_can_t_be_compared_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the path of a table"):
        read(tmp_path / "none.csv", PLAIN)
    twice = write(tmp_path / "twice.csv", "id,when,x,label", [f"a,2020-01-0{day},1.5,b" for day in (1, 2)])
    with pytest.raises(DataError, match="ids must differ"):
        read(twice, {**PLAIN, "id": "id", "label": "label"})
    good = write(tmp_path / "good.csv", "when,x,label", [f"2020-01-0{day},{day}.5,b" for day in (1, 2, 3)])
    with pytest.raises(DataError, match="no column price"):
        read(good, {**PLAIN, "label": "price"})
    events, schema, options, name = read(good, {**PLAIN, "label": "label", "peers": ["all"]})
    assert (len(events), schema.time, name) == (3, "when", "good")
    assert "arf" in options.peers


def test_units_of_times_and_columns_of_lists_can_be_declared(tmp_path: Path) -> None:
    rows = [f'{at},"[{at}, 0.5]",{at % 2}' for at in range(1000, 1040)]
    data = write(tmp_path / "t.csv", "when,vector,label", rows)
    declared = {"time_unit": "seconds", "embedding": ["vector"]}
    events, schema, _, _ = read(data, {**PLAIN, **declared})
    assert (schema.time_unit, schema.embedding) == ("seconds", {"vector": 2})
    assert events.time[0] == 1000 * 10**9
    (unit,) = get_args(TimeUnitOption)[:1]
    assert set(get_args(get_args(unit)[0])) == set(TIME_UNITS)


def test_all_of_an_embedder_can_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Options] = []
    monkeypatch.setattr(
        "recollect.comparison.compare.compare", lambda events, schema, options, **_: given.append(options)
    )
    data = write(tmp_path / "data.csv", "x,label", [f"{number},{number % 2}" for number in range(20)])
    where = ["compare", str(data), "--out", str(tmp_path / "out")]
    told = ["--embedder", "some/model", "--embed-width", "64", "--embed-prompt", "Instruct: this\nQuery:"]
    told += ["--embed-tokens", "128", "--embed-backend", "openvino"]
    assert CliRunner().invoke(app, [*where, *told]).exit_code == 0
    expected = EmbedderSpec("some/model", 64, "Instruct: this\nQuery:", 128, "openvino")
    assert given[0].embedder == expected
    assert CliRunner().invoke(app, [*where, "--config", str(tmp_path / "out.toml")]).exit_code == 0
    assert given[1].embedder == expected
