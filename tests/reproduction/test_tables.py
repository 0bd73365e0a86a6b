"""Public tables, and one that is made, as streams that know nothing of their future."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from recollect.errors import BadRowError, DataError
from recollect.reproduction.tables import (
    ACCIDENTS,
    DAY,
    ROTATING_CUTOFF,
    accidents_stream,
    electricity_stream,
    rotating_stream,
)
from tests.shared_data import shared


def test_electricity_leaves_out_what_never_moved_before_the_cutoff() -> None:
    stream = electricity_stream()
    assert len(stream) == 45_312
    assert len(stream.past) == int(0.3 * 45_312)
    assert stream.model_table.shape == (45_312, 3)
    before = stream.model_table[: len(stream.past)]
    assert np.allclose(before.mean(0), 0, atol=1e-3)
    assert bool((stream.model_table <= before.max(0) + 1e-6).all())
    late = electricity_stream(DAY)
    assert bool((late.known_at - late.time == DAY).all())
    assert len(late.past) == len(stream.past) - 48


def test_accidents_of_a_season_never_see_each_other(tmp_path: Path) -> None:
    table = pl.read_csv(shared("us_accidents.csv.gz")).sample(300, seed=0)
    table.write_csv(tmp_path / "few.csv")
    stream, summary = accidents_stream(tmp_path / "few.csv", tmp_path / "cache")
    assert summary.events == 300
    assert len(np.unique(stream.time)) == len(np.unique(stream.bins))
    assert "target_multi" not in [spec.name for spec in stream.specs]
    assert stream.features["Description"].shape == (300, 256)
    again, _ = accidents_stream(tmp_path / "few.csv", tmp_path / "cache")
    assert torch.equal(stream.features["Description"], again.features["Description"])


def test_a_winter_which_has_december_in_it_is_not_known_before_the_year_is_over(tmp_path: Path) -> None:
    accidents().write_csv(tmp_path / "accidents.csv")
    stream, _ = accidents_stream(tmp_path / "accidents.csv", tmp_path / "cache")
    winter, autumn = (stream.bins % 4 == season for season in (0, 3))
    for year in (2018, 2019):
        of_year = stream.bins // 4 == year
        (known,) = np.unique(stream.known_at[of_year])
        (begins,), (last,) = (np.unique(stream.time[season & of_year]) for season in (winter, autumn))
        assert begins < last < known
    assert stream.known_at[stream.bins == 4 * 2018].max() < stream.cutoff == stream.time[stream.bins == 4 * 2019].min()
    (visible,) = np.nonzero(stream.known_at < stream.cutoff)
    newest = visible[np.argsort(stream.known_at[visible], kind="stable")[-1]]
    assert autumn[newest]  # and not a row of the winter that began the year, though known at the same moment


def test_a_table_that_is_not_the_accidents_is_named(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"other.csv has no column .*Start_Lat"):
        accidents_stream(tmp_path / "other.csv", tmp_path)


def accidents(**changed: object) -> pl.DataFrame:
    """Forty rows over the seasons of 2018 and 2019, the third of them with something changed."""
    rows = [
        {
            **{name: float(row % 7) for name in ACCIDENTS.numeric},
            "day_of_week_acc": row % 7,
            "Nautical_Twilight": "Day",
            "season_acc": ["winter", "fall"][row % 2],
            "Description": f"slow traffic at exit {row}",
            "year_acc": 2018 + row // 20,
            "target": row % 2,
            **(changed if row == 2 else {}),
        }
        for row in range(40)
    ]
    return pl.DataFrame(rows)


def test_an_accident_without_a_label_is_named_by_its_line_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "accidents.csv"
    accidents(target=None).write_csv(path)
    with pytest.raises(BadRowError, match=r"accidents.csv:4: the label is missing"):
        accidents_stream(path, tmp_path / "cache")
    stream, summary = accidents_stream(path, tmp_path / "cache", bad_rows="skip")
    assert len(stream) == 39
    assert summary.bad == {"no label": 1}
    assert set(stream.labels) == {0, 1}


@pytest.mark.parametrize("changed", [{"season_acc": "monsoon"}, {"season_acc": None}, {"year_acc": None}])
def test_an_accident_of_no_season_is_named(changed: dict[str, object], tmp_path: Path) -> None:
    accidents(**changed).write_csv(tmp_path / "accidents.csv")
    with pytest.raises(BadRowError, match=r"^accidents.csv:4: season_acc is .*--bad-rows skip"):
        accidents_stream(tmp_path / "accidents.csv", tmp_path / "cache")
    stream, summary = accidents_stream(tmp_path / "accidents.csv", tmp_path / "cache", bad_rows="file")
    assert (len(stream), summary.events, summary.bad) == (39, 39, {"no season": 1})
    row = json.loads((tmp_path / "accidents.csv.bad.jsonl").read_text())["row"]
    assert {key: row[key] for key in changed} == changed
    assert row["target"] == "0"


def test_accidents_without_any_season_are_told(tmp_path: Path) -> None:
    accidents().with_columns(season_acc=pl.lit("monsoon")).write_csv(tmp_path / "accidents.csv")
    with pytest.raises(DataError, match=r"has no row of a season .*no season 40"):
        accidents_stream(tmp_path / "accidents.csv", tmp_path / "cache", bad_rows="skip")


def test_the_boundary_as_a_table_has_turned_by_pi_at_the_end() -> None:
    stream = rotating_stream(4000)
    assert stream.num_classes == 2
    assert (stream.time[stream.past] < ROTATING_CUTOFF).all()
    assert sorted(set(stream.bins[stream.asked])) == list(range(10))
    first, last = (stream.model_table[rows] for rows in (stream.time < 0.1, stream.time > 0.9))
    signs = [2 * stream.labels[rows] - 1 for rows in (stream.time < 0.1, stream.time > 0.9)]
    one, other = ((x * sign[:, None]).mean(0) for x, sign in zip((first, last), signs, strict=True))
    assert float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)) < -0.9
