"""The summary has the shape that reports promise; the table and the figure show all models."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from recollect.errors import SettingError
from recollect.evaluation.metrics import accuracy, balanced_accuracy, mean_over_bins, nll, per_bin, scores_by_bin
from recollect.evaluation.peers import DEFAULT
from recollect.evaluation.results import (
    COLUMNS,
    MEANS,
    OURS,
    STYLES,
    draw_over_time,
    means_by_bin,
    results_table,
    summarise,
    summary,
)
from recollect.evaluation.stream import Stream
from tests.evaluation.streams import make_stream


def made_up(stream: Stream, skill: float, seed: int) -> np.ndarray:
    labels = stream.labels[stream.asked]
    generator = np.random.default_rng(seed)
    toward = skill * np.where(labels == 1, 1.0, -1.0) + generator.standard_normal(len(labels))
    return -np.logaddexp(0, np.stack([toward, -toward], 1))


def test_a_mean_over_seeds_has_its_deviation_and_its_values() -> None:
    assert summary([0.5]) == {"mean": 0.5, "std": None, "seeds": [0.5]}
    found = summary([1.0, 2.0, 3.0])
    assert found == {"mean": 2.0, "std": 1.0, "seeds": [1.0, 2.0, 3.0]}


def test_models_are_summarised_over_bins_and_seeds() -> None:
    stream = make_stream()
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    seeds = [made_up(stream, 1.0, seed) for seed in range(3)]
    models = summarise({"recollect": seeds, "majority": seeds[:1]}, stream, {"recollect": [0.9, 0.8, 0.7]})
    assert list(models) == ["recollect", "majority"]
    assert list(models["recollect"]) == list(COLUMNS)
    for name, measure in (("accuracy", accuracy), ("balanced_accuracy", balanced_accuracy), ("nll", nll)):
        expected = [mean_over_bins(measure, run, labels, bins) for run in seeds]
        assert models["recollect"][name] == summary(expected)
        assert models["majority"][name] == summary(expected[:1])
    by_bin = [per_bin(accuracy, run, labels, bins) for run in seeds]
    assert models["recollect"]["first_bin"] == summary([values[0] for values in by_bin])
    assert models["recollect"]["worst_bin"] == summary([min(values) for values in by_bin])
    assert models["recollect"]["in_distribution"] == summary([0.9, 0.8, 0.7])
    assert models["majority"]["in_distribution"] is None
    assert json.loads(json.dumps(models, allow_nan=False)) == models


def test_every_bin_has_the_means_over_seeds() -> None:
    stream = make_stream()
    labels, bins = stream.labels[stream.asked], stream.bins[stream.asked]
    seeds = [made_up(stream, 1.0, seed) for seed in range(3)]
    found = means_by_bin({"recollect": seeds, "majority": seeds[:1]}, stream)
    assert list(found) == ["recollect", "majority"]
    alone = scores_by_bin(seeds[0], labels, bins)
    expected = [{key: each[key] for key in ("bin", "rows", *MEANS)} for each in alone]
    assert [{key: value for key, value in each.items() if key != "start"} for each in found["majority"]] == expected
    assert [each["start"] for each in found["majority"]] == [3.0, 3.5, 4.0, 4.5, 5.0, 5.5]
    third = [scores_by_bin(run, labels, bins)[2]["nll"] for run in seeds]
    assert found["recollect"][2]["nll"] == pytest.approx(np.mean(third))


def test_what_is_undefined_is_null_in_json() -> None:
    stream = make_stream(labels=np.zeros(600, np.int64))
    models = summarise({"majority": [made_up(stream, 1.0, 0)]}, stream)
    assert models["majority"]["auc"] is None
    bins = means_by_bin({"majority": [made_up(stream, 1.0, 0)]}, stream)
    assert {each["auc"] for each in bins["majority"]} == {None}
    json.dumps(bins, allow_nan=False)
    json.dumps(models, allow_nan=False)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "majority has no run: give"),
        ([np.zeros((7, 2))], "each of the 300 rows from the cutoff on, but 7 answers came, 0 of them not a number"),
        ([np.full((300, 2), np.nan)], "300 of them not a number: give one row"),
    ],
    ids=["none", "too few", "not a number"],
)
def test_answers_that_do_not_fit_are_refused(runs: list[np.ndarray], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        summarise({"majority": runs}, make_stream())


def test_a_stream_that_ends_at_its_cutoff_is_refused() -> None:
    stream = make_stream()
    ended = Stream(
        stream.features,
        stream.specs,
        stream.labels,
        stream.time,
        stream.known_at,
        stream.bins,
        cutoff=9.0,
        num_classes=2,
    )
    with pytest.raises(SettingError, match="no row comes after the cutoff"):
        summarise({}, ended)


def written(models: dict[str, dict[str, object]]) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(results_table(models, "after 2012"))
    return out.getvalue()


def test_the_table_has_a_line_per_model_and_deviations_only_of_several_seeds() -> None:
    stream = make_stream()
    models = summarise(
        {"recollect": [made_up(stream, 1.0, seed) for seed in range(2)], "majority": [made_up(stream, 0.2, 0)]}, stream
    )
    lines = written(models).splitlines()
    assert any("after 2012" in line for line in lines)
    (ours,), (majority,) = ([line for line in lines if name in line] for name in ("recollect", "majority"))
    mean = f"{models['recollect']['accuracy']['mean']:.3f}".removeprefix("0")
    assert f"{mean} ±." in ours
    assert "±" not in majority
    assert " - " in majority


def fourteen(stream: Stream) -> dict[str, list[np.ndarray]]:
    runs = {}
    for place, name in enumerate((*OURS, *DEFAULT)):
        seeds = 3 if name in OURS else 1
        runs[name] = [made_up(stream, 0.3 + 0.12 * ((5 * place) % 14), 10 * place + seed) for seed in range(seeds)]
    return runs


def test_the_figure_has_a_line_per_model_thick_for_ours_and_bands_over_seeds(tmp_path: Path) -> None:
    stream = make_stream(rows=1200)
    runs = fourteen(stream)
    figure = draw_over_time(runs, stream)
    assert isinstance(figure, Figure)
    with_items, with_labels = {"recollect_items", "recollect_paper_items"}, {"recollect", "recollect_paper"}
    for place, axis in enumerate(figure.axes):  # side by side: labels only, and full items
        widths = {line.get_label(): line.get_linewidth() for line in axis.lines}
        missing = with_labels if place % 2 else with_items
        assert list(widths) == [name for name in runs if name not in missing]
        ours = [name for name in OURS if name not in missing]
        assert min(widths[name] for name in ours) > max(widths[name] for name in DEFAULT)
        assert len(axis.collections) == len(ours)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(runs)
    figure.savefig(tmp_path / "over_time.png")
    assert (tmp_path / "over_time.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_begins_before_the_cutoff_where_that_is_known() -> None:
    stream = make_stream(rows=1200)
    runs = fourteen(stream)
    held_out = stream.past[-100:]
    found = {name: [0.9 + 0.01 * seed for seed in range(len(seeds))] for name, seeds in runs.items()}
    del found["majority"]
    figure = draw_over_time(runs, stream, (held_out, found))
    above, below = figure.axes[0], figure.axes[2]
    for axis, first in ((above, 0.9), (below, np.nan)):
        lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in axis.lines}
        plain = {
            str(line.get_label()): np.asarray(line.get_ydata()) for line in draw_over_time(runs, stream).axes[0].lines
        }
        assert np.isclose(lines["logreg_frozen"][0], first, equal_nan=True)
        assert np.isnan(lines["majority"][0])
        if axis is above:
            assert np.isclose(lines["recollect"][0], 0.91)
            assert all(np.array_equal(lines[name][1:], plain[name]) for name in plain)
    moments = np.asarray(next(iter(above.lines)).get_xdata())
    assert moments[0] == stream.time[held_out[50]] < stream.cutoff <= moments[1]
    assert any(np.asarray(line.get_xdata()).tolist() == [stream.cutoff] * 2 for line in above.lines)


def test_no_two_models_look_the_same() -> None:
    assert len(set(STYLES.values())) == len(STYLES)
    stream = make_stream()
    runs = {name: [made_up(stream, 1.0, 0)] for name in ("recollect", "mine", "yours", "theirs")}
    lines = draw_over_time(runs, stream).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4


def test_nanoseconds_are_drawn_as_dates() -> None:
    stream = make_stream()
    day = 86_400 * 10**9
    start = int(np.datetime64("2012-01-01", "ns").astype(np.int64))
    time = (start + stream.time * 90 * day).astype(np.int64)
    dated = Stream(
        stream.features, stream.specs, stream.labels, time, time, stream.bins, start + 270 * day, stream.num_classes
    )
    figure = draw_over_time({"majority": [made_up(dated, 1.0, 0)]}, dated)
    figure.draw_without_rendering()
    assert any("2012" in label.get_text() or "2013" in label.get_text() for label in figure.axes[1].get_xticklabels())
