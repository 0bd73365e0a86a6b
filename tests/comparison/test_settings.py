"""What people write becomes options in the data's own unit of time."""

import json
from pathlib import Path
from typing import get_args

import polars as pl
import pytest
from typer.testing import CliRunner

from recollect.cli import app
from recollect.cli_options import TimeUnitOption
from recollect.comparison.compare import Options
from recollect.comparison.settings import cutoff_from, cutoff_in, moment_from, read
from recollect.comparison.spans import length_from, rough_text, span_from, span_text
from recollect.data.embedding import EmbedderSpec
from recollect.data.reading import read_all
from recollect.data.schema import TableSchema
from recollect.data.tables.times import TIME_UNITS
from recollect.errors import DataError, SettingError
from recollect.evaluation import peers as table_of_peers

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
    "refit": [],
    "peers": [],
    "peer_window": None,
    "peer_period": None,
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


def test_a_span_is_written_as_it_was_given() -> None:
    for text in ("7d", "12h", "30m", "90s", "365d"):
        assert span_text(span_from(text, False, "--refit"), False) == text
    assert span_text(span_from("1.5d", False, "--refit"), False) == "36h"
    assert span_text(2.5, True) == "2.5"
    assert rough_text(62.4375 * DAY, False) == "62.4d"
    assert rough_text(0.5 * DAY, False) == "12h"


@pytest.mark.parametrize("text", ["0", "0d", "-5d", " -1 "])
def test_a_span_without_length_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"has no length: give a span above 0, such as 90d"):
        length_from(text, False, "--refit")
    with pytest.raises(SettingError, match="give a number above 0"):
        length_from("0", True, "--peer-window")


def test_a_cutoff_is_a_share_or_a_moment() -> None:
    assert cutoff_from("0.3", False) == (0.3, None)
    assert cutoff_from("1970-01-03", False) == (0.5, 2 * DAY)
    assert cutoff_from("250", True) == (0.5, 250.0)
    with pytest.raises(SettingError, match="a share is between 0 and 1"):
        cutoff_from("1.5", False)
    with pytest.raises(SettingError, match="2019-01-01"):
        cutoff_from("spring", False)
    with pytest.raises(SettingError, match="'24-06-01' can't be read as a moment: give a date such as"):
        moment_from("24-06-01", False)
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


def test_rows_whose_id_came_before_can_be_left_out_and_a_label_that_may_say_there_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{max(2, day)},2020-01-{day:02d},{day}.5,{('b', 'NA')[day % 2]}" for day in range(1, 9)]
    data = write(tmp_path / "t.csv", "id,when,x,label", rows)
    events, _, options, _ = read(data, {**PLAIN, "id": "id", "label": "label", "bad_rows": "skip"})
    assert (len(events), options.reading["bad_rows"]) == (7, {"id met before": 1})
    told = " ".join(capsys.readouterr().out.split())
    assert "7 rows read, 1 bad row left out (id met before 1)" in told
    assert "the label label is 'NA' in some rows, which is taken for a class" in told


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


@pytest.fixture
def good(tmp_path: Path) -> Path:
    rows = [f"2020-01-0{day},2020-01-0{day + 1},{day}.5,{day % 2}" for day in (1, 2, 3)]
    return write(tmp_path / "good.csv", "when,settled,x,label", rows)


ASK = {"compare": ("compare", "--out"), "train": ("train", "--model")}


@pytest.mark.parametrize(("command", "place"), ASK.values(), ids=ASK)
def test_columns_are_shown_and_nothing_is_done(
    command: str, place: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("somebody's")
    there = sorted(tmp_path.rglob("*"))
    for where in ("none", "taken"):
        asked = [command, str(good), "--time", "when", "--columns-only", place, where]
        shown = CliRunner().invoke(app, asked)
        assert shown.exit_code == 0, shown.output
        assert all(words in shown.stdout for words in ("when", "settled", "declared", "by its name"))
        told = CliRunner().invoke(app, [*asked, "--json"])
        assert told.exit_code == 0
        found = json.loads(told.stdout)
        assert "by its name" in told.stderr
        assert found.pop("why")["label"] == "by its name"
        schema = TableSchema.from_json(found)
        assert (schema.time, schema.label, schema.numeric) == ("when", "label", ("x",))
    assert sorted(tmp_path.rglob("*")) == there


def test_columns_are_shown_of_a_table_without_a_label(tmp_path: Path) -> None:
    data = write(tmp_path / "data.csv", "x,fraud", [f"{number}.5,{number % 2}" for number in range(20)])
    asked = ["compare", str(data), "--out", str(tmp_path / "out")]
    assert "none found" in CliRunner().invoke(app, [*asked, "--columns-only"]).stdout
    refused = CliRunner().invoke(app, asked)
    assert "fraud" in refused.stdout  # what there is, for a person to choose from
    assert isinstance(refused.exception, DataError)
    assert "no column of data.csv looks like a label: name it with --label" in str(refused.exception)


def test_two_times_of_a_label_are_refused(good: Path) -> None:
    both = {**PLAIN, "known_at": "settled", "label_delay": "7d"}
    with pytest.raises(SettingError, match="both --label-delay and the column settled say when labels are known"):
        read(good, {**both, "time": "when"})
    assert read(good, {**both, "time": "when", "label_delay": "0"})[2].label_delay == 0


def test_spans_of_refits(good: Path) -> None:
    given = {**PLAIN, "time": "when", "ignore": ["settled"]}
    options = read(good, {**given, "refit": ["90d", "30d"], "peer_window": "180d", "peer_period": "1w"})[2]
    assert options.refit == (30 * DAY, 90 * DAY)
    assert (options.peer_window, options.peer_period) == (180 * DAY, 7 * DAY)
    with pytest.raises(SettingError, match="--peer-window '0' has no length"):
        read(good, {**given, "peer_window": "0"})


def test_peers_that_nobody_asked_for_are_left_out_without_their_package(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_of_peers, "find_spec", lambda wanted: None)
    given = {**PLAIN, "time": "when", "ignore": ["settled"]}
    options = read(good, given)[2]
    assert options.peers == ("majority", "previous_label", "recent_neighbours")
    assert "pip install 'recollect[peers]'" in options.notes[0]
    assert "lightgbm_refit_year" in options.notes[0]
    with pytest.raises(SettingError, match=r"logreg_frozen needs the package sklearn: pip install"):
        read(good, {**given, "peers": ["logreg_frozen"]})


@pytest.mark.parametrize("text", ["nan", "inf", "soon"])
def test_a_moment_among_plain_numbers_is_a_finite_number(text: str) -> None:
    with pytest.raises(SettingError, match="no number"):
        moment_from(text, plain=True)
    assert moment_from("-2.5", plain=True) == -2.5
