"""What people write becomes options in the data's own unit of time."""

from pathlib import Path

import pytest

from recollect.comparison.settings import cutoff_from, read, span_from
from recollect.errors import DataError, SettingError

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
    "refit": None,
    "peers": [],
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
