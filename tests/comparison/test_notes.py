"""What a report tells people about their data and its models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recollect.comparison.compare import Options, PeerSpans
from recollect.comparison.notes import notes, reasons, window_note
from recollect.comparison.spans import YEAR
from recollect.data.inference import infer_schema
from recollect.data.reading import read_all
from recollect.data.schema import TableSchema
from recollect.evaluation.table_stream import prepare
from tests.evaluation.streams import make_stream

DAY = YEAR // 365


def test_a_column_that_gives_the_label_away_is_told(tmp_path: Path) -> None:
    labels = [str(row % 2) for row in range(200)]
    outcome = ["won" if label == "1" else "lost" for label in labels]
    frame = pl.DataFrame({"x": [row % 7 for row in range(200)], "outcome": outcome, "label": labels})
    schema = infer_schema(frame)
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=100.0, bins=2, embedder=None, cache=tmp_path)
    told = notes(prepared, np.zeros((100, 2)))
    assert any(note.startswith("column outcome: each of its values comes with one label") for note in told)
    assert reasons(schema)["x"] == "numbers"
    assert reasons(schema)["label"] == "by its name"


def test_where_one_class_has_most_of_the_rows_accuracy_tells_little(tmp_path: Path) -> None:
    labels = ["0", "1"] * 50 + ["0"] * 94 + ["1"] * 6
    frame = pl.DataFrame({"x": [None if row == 7 else row % 7 for row in range(200)], "label": labels})
    schema = infer_schema(frame)
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=100.0, bins=2, embedder=None, cache=tmp_path)
    told = notes(prepared, np.zeros((100, 2)))
    assert any(note.startswith("94% of the rows after the cutoff are of class '0'") for note in told)
    prepared = prepare(events, schema, cutoff=50.0, bins=2, embedder=None, cache=tmp_path)
    assert not any("of the rows after the cutoff" in note for note in notes(prepared, np.zeros((150, 2))))


def test_how_a_late_class_fared_is_told(tmp_path: Path) -> None:
    labels = ["0", "1"] * 60 + ["late", "0"] * 40
    frame = pl.DataFrame({"x": [row % 7 for row in range(200)], "label": labels})
    schema = infer_schema(frame)
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=100.0, bins=2, embedder=None, cache=tmp_path)
    answers = np.zeros((100, 3))
    answers[:, 2] = prepared.stream.time[prepared.stream.asked] >= 150.0
    told = [note for note in notes(prepared, answers) if note.startswith("class 'late'")]
    fared = "of 39 rows of it that had a precedent 25 were answered right"
    assert told == [f"class 'late' first comes after the cutoff (120.0); {fared}"]


def test_a_class_that_never_comes_again_had_no_precedent(tmp_path: Path) -> None:
    """What could be is not told where it can't be any more."""
    labels = ["0", "1"] * 75 + ["once", "0"] + ["1", "0"] * 24
    frame = pl.DataFrame({"x": [row % 7 for row in range(200)], "label": labels})
    schema = infer_schema(frame)
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=100.0, bins=2, embedder=None, cache=tmp_path)
    told = [note for note in notes(prepared, np.zeros((100, 3))) if note.startswith("class 'once'")]
    assert told == ["class 'once' first comes after the cutoff (150.0); no row of it that was asked had a precedent"]


def test_many_late_classes_are_told_of_in_one_line(tmp_path: Path) -> None:
    """People who come and go are classes by the hundred."""
    labels = ["0", "1"] * 50 + ["c"] * 10 + ["b"] * 20 + ["a"] * 30 + [f"once {row}" for row in range(10)] + ["0"] * 30
    frame = pl.DataFrame({"x": [row % 7 for row in range(200)], "label": labels})
    schema = infer_schema(frame)
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=100.0, bins=2, embedder=None, cache=tmp_path)
    answers = np.zeros((100, len(prepared.classes)))
    answers[:, prepared.classes.index("a")] = 1
    (told,) = [note for note in notes(prepared, answers) if "after the cutoff" in note]
    assert told == (
        "13 classes first come after the cutoff: 70 of the 100 rows asked (70%) are theirs; 57 of these had a "
        "precedent, of which 29 were answered right; the commonest are 'a' (30), 'b' (20), 'c' (10)"
    )


@pytest.mark.parametrize(
    ("classes", "read"), [(2, "only by what is fitted"), (11, "with more than 10 classes nothing")]
)
def test_values_that_nobody_had_met_are_told(tmp_path: Path, classes: int, read: str) -> None:
    """They look alike to what was trained, whatever the labels after them say."""
    rows = range(400)
    frame = pl.DataFrame(
        {
            "shop": ["rare" if row == 7 else f"{'new' if row >= 280 else 'old'} {row % 3}" for row in rows],
            "town": ["new" if row == 399 else None if row > 250 else f"old {row % 3}" for row in rows],
            "label": [f"{row % classes}" for row in rows],
        }
    )
    schema = TableSchema(label="label", categorical=("shop", "town"))
    events, _ = read_all(frame, schema)
    prepared = prepare(events, schema, cutoff=200.0, bins=2, embedder=None, cache=tmp_path)
    told = [note for note in notes(prepared, np.zeros((200, classes))) if "missing" not in note]
    assert told[0] == (
        "rare and unknown values of shop share one place: 1 of the 200 rows before the cutoff are of rare ones"
    )
    assert told[1].startswith("60% of the rows after the cutoff have a value of shop that was never met before it: ")
    assert read in told[1]
    assert len(told) == 2


def test_peers_are_called_after_what_they_really_look_back_on() -> None:
    stream = make_stream()
    dated = replace(stream, cutoff=0, time=stream.time.astype(int), known_at=stream.known_at.astype(int) + 9)
    assert PeerSpans.of(dated, Options(), plain=False).called("logreg_refit_year") == "logreg_refit_year"
    half = PeerSpans.of(dated, Options(peer_window=180 * DAY, peer_period=30 * DAY), plain=False)
    assert half.called("lightgbm_refit_year") == "lightgbm_refit_180d"
    assert half.called("lightgbm_frozen") == "lightgbm_frozen"
    assert half.about(["lightgbm_refit_180d", "lightgbm_refit_period", "majority"]) == {
        "lightgbm_refit_180d": "LightGBM, fitted anew every 30d, on the last 180d",
        "lightgbm_refit_period": "LightGBM, fitted anew every 30d, on the last period",
    }
    plain = PeerSpans.of(stream, Options(bins=4), plain=True)
    assert plain.called("logreg_refit_year") == "logreg_refit_year"  # a name that reports of all data share
    assert "on the last 4 periods" in plain.about(["logreg_refit_year"])["logreg_refit_year"]
    assert plain.window == 4 * plain.period


def test_data_too_young_for_the_window_are_told() -> None:
    stream = make_stream()
    (note,) = window_note(stream, 1000.0, plain=True)
    assert "less than the 1000 that refitted peers look back on" in note
    assert window_note(stream, 0.1, plain=True) == []
