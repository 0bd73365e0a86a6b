"""The trade-off end to end, at a size that proves nothing but that all of it runs and is measured alike."""

import json
import time
from pathlib import Path

import pytest

from recollect.reproduction import tradeoff
from recollect.reproduction.tradeoff import Grid, in_turns, table_bytes
from recollect.reproduction.tradeoff_figures import draw, window_name
from tests.evaluation.streams import make_stream
from tests.tiny import make_rows


def test_a_report_has_a_point_without_history_and_one_for_each_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tradeoff.GRIDS, "quick", Grid((2,), (10, None), 2, 20, 2))
    report = tradeoff.run(
        scale="quick", seeds=[0], out=tmp_path, force=False, stream=make_stream(rows=300), name="few rows"
    )
    assert json.loads((tmp_path / "report.json").read_text())["points"] == report["points"]
    assert [(point["slots"], point["window"]) for point in report["points"]] == [(0, 0), (2, 10), (2, None)]
    plain, narrow, wide = report["points"]
    assert plain["times_step"]["mean"] > 0
    for point in report["points"]:
        assert 0 <= point["accuracy"]["mean"] <= 1
        assert point["ms_per_prediction"]["mean"] > 0
        assert point["ms_per_step"]["mean"] > point["ms_selecting"]["mean"] >= 0
    assert plain["table_bytes"]["mean"] == 0
    assert 30 * narrow["table_bytes"]["mean"] == wide["table_bytes"]["mean"]
    assert {path.name for path in tmp_path.iterdir()} == {"tradeoff.png", "tradeoff.svg", "report.json", "DONE"}


def test_actions_are_timed_in_turns_by_their_cpu_time() -> None:
    calls: list[str] = []

    def work() -> None:
        calls.append("work")
        until = time.process_time() + 0.002
        while time.process_time() < until:
            pass

    def wait() -> None:
        calls.append("wait")
        time.sleep(0.004)

    worked, waited = in_turns([work, wait], 3)
    assert calls[:4] == ["work", "wait", "work", "wait"]
    assert worked >= 0.002 > waited


def test_a_table_holds_keys_labels_and_times() -> None:
    view = make_rows(60).lookup.view
    each = 4 * 4 + 8 + 8 + 8 + 8 + view.items.recency.element_size() + view.items.norm.element_size()
    assert table_bytes(view, 10) == 10 * each
    assert table_bytes(view, None) == table_bytes(view, 1000) == 60 * each


TIMES = ("ms_per_prediction", "ms_per_step", "times_prediction", "times_step")
MEASURED = ("accuracy", *TIMES, "prediction_bytes", "step_bytes")


def test_the_figure_has_a_line_for_each_window() -> None:
    one = {"mean": 1.0, "std": 0.0, "seeds": [1.0]}
    points = [
        {"slots": slots, "window": window, **dict.fromkeys(MEASURED, one)}
        for slots, window in [(0, 0), (4, 512), (8, 512), (4, None), (8, None)]
    ]
    figure = draw(points, "few")
    assert len(figure.axes) == 4  # time and memory, of a prediction and of a step
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["no context", "K = 512", "K = all"]
    assert window_name(8192) == "8,192"
