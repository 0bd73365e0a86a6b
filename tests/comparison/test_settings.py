"""What people write becomes options in the data's own unit of time."""

from pathlib import Path

import pytest

from recollect.comparison.settings import cutoff_from, read
from recollect.comparison.spans import length_from, rough_text, span_from, span_text
from recollect.errors import DataError, SettingError
from recollect.evaluation import peers as table_of_peers

DAY = 86_400 * 10**9
PLAIN = {
    "time": None,
    "label": None,
    "known_at": None,
    "label_delay": "0",
    "cutoff": "0.5",
    "id": None,
    "text": [],
    "numeric": [],
    "categorical": [],
    "ignore": [],
    "bins": 4,
    "refit": [],
    "peers": [],
    "peer_window": None,
    "peer_period": None,
    "seeds": [0],
    "bad_rows": "fail",
    "embedder": "wordllama",
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
    with pytest.raises(SettingError, match="2019-01-01"):
        cutoff_from("spring", False)
    with pytest.raises(SettingError, match="is no number"):
        cutoff_from("2019-01-01", True)


def write(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


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


@pytest.fixture
def good(tmp_path: Path) -> Path:
    rows = [f"2020-01-0{day},2020-01-0{day + 1},{day}.5,{day % 2}" for day in (1, 2, 3)]
    return write(tmp_path / "good.csv", "when,settled,x,label", rows)


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
