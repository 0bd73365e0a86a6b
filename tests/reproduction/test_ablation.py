"""The ablation end to end, at a size that proves nothing but that all of it runs and compares like with like."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.answering import heads
from recollect.answering.heads import HEADS
from recollect.comparison import runs
from recollect.data.features import WORDS
from recollect.data.splits import SplitSizes
from recollect.evaluation.replay import hedged_by, replay
from recollect.records import TERMS, FeatureSpec
from recollect.reproduction import ablation, ablation_recipes, reviews_paper, rotating
from recollect.reproduction.ablation import WORDS_ANEW, Extent, compared, rows_within, without
from recollect.reproduction.ablation_figures import draw
from recollect.reproduction.ablation_recipes import FULL, our_recipes, rotating_recipes
from recollect.reproduction.tables import rotating_stream
from tests.evaluation.streams import make_stream
from tests.evaluation.test_replay import live_over


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "QUICK_STEPS", 2)
    monkeypatch.setattr(heads, "NEWEST", (16, 64))
    monkeypatch.setitem(rotating.SIZES, "quick", rotating.Sizes((2, 8), (2, 8), 3e-4, 16))
    monkeypatch.setattr(rotating, "BINS", 10)
    papers = replace(reviews_paper.SIZES["quick"], epochs=1, width=8, latents=2, heads=2)
    monkeypatch.setitem(reviews_paper.SIZES, "quick", replace(papers, splits=SplitSizes(60, 60, 20, 40)))
    monkeypatch.setitem(ablation.EXTENTS, "quick", Extent(120, 1))
    monkeypatch.setattr(ablation, "our_recipes", lambda full: _few(our_recipes(full), "scores of words"))
    monkeypatch.setattr(ablation, "rotating_recipes", lambda sizes: _few(rotating_recipes(sizes), "ages"))
    monkeypatch.setattr(ablation_recipes, "BAG_OF_TRICKS", frozenset({"item_dropout"}))
    monkeypatch.setattr(ablation, "rotating_stream", lambda: rotating_stream(400))


def _few(recipes: dict[str, Any], name: str) -> dict[str, Any]:
    return {FULL: recipes[FULL], name: recipes[name]}


def test_a_report_says_what_each_idea_and_trick_is_worth(tmp_path: Path) -> None:
    stream = make_stream(rows=300)
    labels = torch.from_numpy(stream.labels).unsqueeze(1)
    told = replace(
        stream,
        features=stream.features | {WORDS: labels.float(), TERMS: labels.int()},
        specs=(*stream.specs, FeatureSpec(WORDS, "numeric", 1)),
    )
    report = ablation.run(scale="quick", seeds=[0], out=tmp_path, force=False, stream=told, name="few")
    assert json.loads((tmp_path / "report.json").read_text()) == report
    table = "rotating boundary as a table, ours"
    titles = ("few, ours", "few, the paper's", "rotating boundary", "rotating boundary, the paper's", table)
    ours, papers, boundary, papers_boundary, as_table = (report["groups"][title] for title in titles)
    assert len(ours) == 2 + len(HEADS) + 4 + 3 + 2
    of_texts = ("scores of words", WORDS_ANEW)
    assert [*as_table] == [name for name in ours if name not in of_texts]
    assert list(papers) == [FULL, "item dropout"]
    assert list(boundary) == [FULL, "ages"]
    assert list(papers_boundary) == [FULL, "item dropout", "all of them (as in the paper)"]
    for group in (ours, papers, boundary, papers_boundary, as_table):
        assert next(iter(group)) == FULL
        assert all(found["mean"] == 0 for found in group[FULL]["difference"].values())
        for entry in group.values():
            assert 0 <= entry["first_bin"]["mean"] <= 1
    for name in of_texts:
        assert ours[name]["difference"]["nll"]["mean"] != 0
    found = ours["the head vote"]
    assert found["difference"]["nll"]["mean"] == pytest.approx(found["nll"]["mean"] - ours[FULL]["nll"]["mean"])
    assert found["seconds"]["mean"] == 0  # nothing was trained for it
    assert {path.name for path in tmp_path.iterdir()} == {
        "ablation.png",
        "ablation.svg",
        "report.json",
        "DONE",
        "parts",
    }


def test_a_head_that_is_taken_away_has_no_say_in_the_pools_either(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recollect.answering.heads", "recollect.reproduction.ablation"):
        monkeypatch.setattr(f"{module}.NEWEST", (16, 32))
    live = live_over(60, 3)
    result = replay(live)
    one = without(live, result, ["vote"], 30)
    heads, vote = result.answers.heads.clone(), HEADS.index("vote")
    heads[:, vote] = heads[:, vote].flip(1)
    told = live.heads.record.told
    told.log_probs[:, vote] = told.log_probs[:, vote].flip(1)
    other = replace(result, answers=replace(result.answers, said=replace(result.answers.said, log_probs=heads)))
    assert torch.equal(without(live, other, ["vote"], 30), one)
    assert not torch.equal(without(live, other, ["wary"], 30), without(live, result, ["wary"], 30))
    torch.testing.assert_close(one.exp().sum(1), torch.ones(55))
    names = [name for name in HEADS if name != "pooled"]
    assert torch.equal(without(live, result, ["pooled"], 30), hedged_by(live, result, names))


def test_rows_are_the_newest_of_the_past_and_the_first_bins_after_it() -> None:
    stream = make_stream()
    cut = stream.take(rows_within(stream, Extent(200, 2)))
    assert len(cut.past) == 200
    assert cut.past[-1] + 1 == cut.asked[0]
    assert list(np.unique(cut.bins[cut.asked])) == [6, 7]
    assert len(rows_within(stream, Extent(None, 99))) == len(stream)
    assert len(rows_within(stream, Extent(200, 2, 30))) == 230
    # What happened before the cutoff and was known after it stays: it may be looked up later.
    late = make_stream(delay=0.5)
    cut = late.take(rows_within(late, Extent(200, 2)))
    assert len(cut) == len(cut.past) + 50 + len(cut.asked)


def test_differences_are_between_runs_of_the_same_seed() -> None:
    group = {FULL: [{"accuracy": 0.9}, {"accuracy": 0.7}], "ages": [{"accuracy": 0.8}, {"accuracy": 0.6}]}
    found = compared(group)["ages"]["difference"]["accuracy"]
    assert found["mean"] == pytest.approx(-0.1)
    assert found["std"] == pytest.approx(0.0)


def test_the_figure_puts_what_costs_most_at_the_top() -> None:
    group = {
        name: [{"accuracy": value, "balanced_accuracy": value, "nll": 1.0, "first_bin": value} for value in values]
        for name, values in {FULL: (0.9, 0.8), "ages": (0.8, 0.8), "rehearsal": (0.3, 0.2)}.items()
    }
    (axis,) = draw({"few": compared(group)}).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["without rehearsal", "without ages"]
    assert axis.yaxis_inverted()
