"""The paper's recipe for reviews end to end, at a size that proves only that all of it runs and sees no future."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from recollect.config import Dropouts
from recollect.data.features import WORDS
from recollect.data.mapped import mapped_rows
from recollect.data.reviews import Reviews, Rule, read_reviews, start_of
from recollect.data.splits import SplitSizes, split_past
from recollect.errors import SettingError
from recollect.evaluation.stream import Stream
from recollect.history.visibility import Window
from recollect.records import FeatureSpec
from recollect.reproduction import drift, reviews_paper
from recollect.reproduction import reviews_stream as stream_of_reviews
from recollect.reproduction.fabric import make_fabric
from recollect.reproduction.reviews_paper import (
    BAG_OF_TRICKS,
    UNHELPFUL,
    Sizes,
    Trick,
    Variant,
    ask,
    learn,
    reviews_recipe,
    run_paper_recipe,
)
from recollect.reproduction.reviews_stream import reviews_stream
from recollect.reproduction.stream_rows import Examples, StreamHistory, look_up
from tests.tiny import seeded

WIDTH, KEY_DIM = 6, 4
TINY = Sizes(8, 2, 2, (8,), 2, 16, 4, 8, SplitSizes(40, 60, 10, 30))
VARIANTS = [
    Variant(architecture, retrieve, retrieval)  # type: ignore[arg-type]
    for architecture in ("perceiver", "mlp")
    for retrieve, retrieval in (
        ("labels", "learned"),
        ("items", "learned"),
        ("labels", "similarity"),
        ("labels", "none"),
    )
]


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reviews_paper.SIZES, "quick", TINY)


def fake_embedding(text: str) -> np.ndarray:
    """Something that depends on the words."""
    row = sum((np.random.default_rng(list(word.encode())).normal(size=WIDTH) for word in text.split()), np.zeros(WIDTH))
    return np.asarray(row / max(1e-6, float(np.linalg.norm(row))), np.float16)


def make_reviews(
    folder: Path, count: int = 300, bins: int | None = None, *, words: bool = False
) -> tuple[Stream, Tensor]:
    """From a file of reviews to a stream and its keys; half of them before the cutoff, several a day."""
    generator = np.random.default_rng(0)
    said = ["bad", "poor", "fair", "good", "great"]
    path = folder / "reviews.jsonl"
    with path.open("w") as file:
        for day in np.sort(generator.integers(-60, 60, count)):
            rating = int(generator.integers(1, 6))
            row = {
                "rating": float(rating),
                "title": said[rating - 1],
                "text": f"a {said[rating - 1]} camera {generator.integers(9)}",
                "timestamp": start_of(2012) // 10**6 + int(day) * 86_400_000,
                "helpful_vote": int(generator.integers(5)),
                "verified_purchase": bool(generator.integers(2)),
            }
            file.write(json.dumps(row) + "\n")
    reviews, _ = read_reviews(path)
    embeddings = np.stack([fake_embedding(text) for text in reviews.text])
    stream = reviews_stream(reviews, embeddings, Rule(start_of(2012)), bins=bins, folder=folder, words=words)
    return stream, torch.from_numpy(embeddings[:, :KEY_DIM].astype(np.float32))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.architecture}-{v.retrieve}-{v.retrieval}")
def test_every_variant_answers_what_is_asked(variant: Variant, tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    assert [spec.name for spec in stream.specs] == ["text", "helpful_vote", "verified_purchase"]
    answers = run_paper_recipe(stream, keys, variant, "quick", 0, asked=stream.asked[::7])
    assert answers.shape == (len(stream.asked[::7]), 2)
    np.testing.assert_allclose(np.exp(answers).sum(1), 1.0, rtol=1e-5)


def test_a_seed_repeats_whatever_else_is_asked(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    answers = run_paper_recipe(stream, keys, Variant(), "quick", 0)
    assert answers.shape == (len(stream.asked), 2)
    some = stream.asked[::7]
    np.testing.assert_array_equal(run_paper_recipe(stream, keys, Variant(), "quick", 0, asked=some), answers[::7])
    assert not np.array_equal(run_paper_recipe(stream, keys, Variant(), "quick", 1, asked=some), answers[::7])
    assert run_paper_recipe(stream, keys, Variant(), "quick", 0, asked=some[:0]).shape == (0, 2)


@pytest.mark.parametrize("trick", sorted(BAG_OF_TRICKS | UNHELPFUL))
def test_every_trick_is_a_switch(trick: Trick) -> None:
    changed = replace(Variant(), tricks=BAG_OF_TRICKS ^ {trick})
    assert reviews_recipe(changed, TINY) != reviews_recipe(Variant(), TINY)


@pytest.mark.parametrize("tricks", [frozenset(), BAG_OF_TRICKS | UNHELPFUL], ids=["none", "all"])
def test_it_trains_without_any_trick_and_with_all(tricks: frozenset[Trick], tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    answers = run_paper_recipe(stream, keys, Variant("mlp", tricks=tricks), "quick", 0, asked=stream.asked[:20])
    assert np.isfinite(answers).all()


def test_the_recipe_is_the_appendixs() -> None:
    sizes = reviews_paper.SIZES["paper"]
    recipe = reviews_recipe(Variant(), sizes)
    model, train = recipe.model, recipe.train
    assert (model.architecture, model.width, model.latents, model.blocks) == ("perceiver", 512, 128, 2)
    assert (model.num_retrieved, model.retrieve, model.similarity) == (4, "labels", True)
    assert (model.ages, model.dates, model.recency) == (False, False, None)
    assert recipe.step.dropouts == Dropouts(input=0.9, item=0.1)
    assert (recipe.step.estimator, recipe.step.samples) == ("greedy_baseline", 1)
    assert (train.learning_rate, train.retrieval_rate_factor, train.weight_decay, train.clip) == (1e-3, 10, 1e-4, 1)
    assert (train.first_temperature, train.last_temperature, train.scheduled) == (0.01, 0.001, True)
    assert (train.entropy_bonus, recipe.step.diversity_weight, recipe.step.similarity_weight) == (0, 0, 0)
    assert (sizes.epochs, sizes.batch_size, sizes.splits) == (100, 1024, SplitSizes())
    assert reviews_recipe(Variant(retrieval="similarity"), sizes).model.similarity == "only"
    assert reviews_recipe(Variant(retrieval="none"), sizes).model.num_retrieved == 0


def test_examples_look_up_other_rows_that_were_known_before_them(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    splits = split_past(stream.past, TINY.splits, np.random.default_rng(0))
    lookup = look_up(stream, keys, splits.train_history, items=True)
    source = Examples(stream, keys, splits.train, lookup)
    history = lookup.view.source
    assert isinstance(history, StreamHistory)
    batch = source.batch(200, seeded(0))
    everything = torch.arange(len(splits.train_history)).expand(200, -1)
    seen = batch.inputs.visible.sees(everything)
    known_at = torch.from_numpy(stream.known_at[history.ordered])
    as_of = batch.inputs.as_of.long() + int(stream.time[0])
    assert torch.equal(seen, known_at < as_of[:, None])
    assert seen.any()
    assert (as_of < stream.cutoff).all()
    assert not np.isin(history.ordered, splits.train).any()
    # What is fetched is of the row that the key and the label are of.
    fetched = lookup.fetch(batch.inputs.rows, everything[:, None])
    assert torch.equal(fetched.features["text"][0, 0], stream.features["text"][history.ordered].float())
    assert torch.equal(lookup.view.items.key, keys[history.ordered])
    assert np.array_equal(lookup.view.items.label.numpy(), stream.labels[history.ordered])


def test_labels_that_come_late_are_looked_up_in_the_order_they_came(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    late = np.random.default_rng(0).integers(0, 20 * 86_400 * 10**9, len(stream))
    stream = replace(stream, known_at=stream.time + late)
    lookup = look_up(stream, keys, np.arange(len(stream)), items=False, window=Window(5))
    assert (lookup.view.items.known_at.diff() >= 0).all()
    inputs = Examples(stream, keys, stream.asked, lookup).inputs(stream.asked)
    seen = inputs.visible.sees(torch.arange(len(stream)).expand(len(stream.asked), -1))
    assert (seen.sum(1) == 5).all()
    newest = torch.where(seen, lookup.view.items.known_at, 0).max(1).values
    assert (newest < torch.from_numpy(stream.time[stream.asked])).all()
    assert lookup.features_at(torch.tensor([0])) == {}


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=["labels", "items", "similarity"])
def test_the_future_changes_no_answer(variant: Variant, tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    fabric = make_fabric(None, "")
    splits = split_past(stream.past, TINY.splits, np.random.default_rng(0))
    predictor = learn(stream, keys, splits, variant, TINY, 0, fabric)
    row = int(stream.asked[len(stream.asked) // 2])
    later = np.flatnonzero(stream.known_at >= stream.time[row])
    spoilt_features = {name: value.clone() for name, value in stream.features.items()}
    spoilt_keys, spoilt_labels = keys.clone(), stream.labels.copy()
    others = later[later != row]
    spoilt_labels[later] = 1 - spoilt_labels[later]
    spoilt_keys[others] = torch.nan
    for value in spoilt_features.values():
        value[others] = torch.nan
    spoilt = replace(stream, features=spoilt_features, labels=spoilt_labels)
    asked = np.array([row])
    expected = ask(predictor, stream, keys, asked, 60, fabric)
    np.testing.assert_array_equal(ask(predictor, spoilt, spoilt_keys, asked, 60, fabric), expected)


def test_rows_that_may_not_be_trained_on_are_not(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    held_out = stream.past[::3]
    free = np.setdiff1d(stream.past, held_out)
    changed = stream.labels.copy()
    changed[held_out] = 1 - changed[held_out]
    first = stream.past[:1]  # sees nothing, so only the weights can differ
    one, other = (
        run_paper_recipe(each, keys, Variant("mlp"), "quick", 0, trainable=free, asked=first)
        for each in (stream, replace(stream, labels=changed))
    )
    np.testing.assert_array_equal(one, other)


def test_the_length_of_a_key_does_not_matter(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    asked = stream.asked[:20]
    one, other = (
        run_paper_recipe(stream, given, Variant("mlp"), "quick", 0, asked=asked) for given in (keys, 4.0 * keys)
    )
    np.testing.assert_array_equal(one, other)


def test_every_row_needs_a_key_and_the_cutoff_rows_on_both_sides(tmp_path: Path) -> None:
    stream, keys = make_reviews(tmp_path)
    with pytest.raises(SettingError, match="299 keys came for a stream of 300 rows"):
        run_paper_recipe(stream, keys[1:], Variant(), "quick", 0)
    reviews, _ = read_reviews(tmp_path / "reviews.jsonl")
    with pytest.raises(SettingError, match="0 of 300 reviews are before the cutoff"):
        reviews_stream(reviews, np.zeros((300, 2)), Rule(start_of(2001)))


def test_equal_bins_of_which_some_reviews_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_of_reviews, "PER_BIN", 4)
    stream, _ = make_reviews(tmp_path, bins=10)
    numbers, counts = np.unique(stream.bins[stream.asked], return_counts=True)
    assert numbers[-1] == 9
    assert counts.max() == 4
    assert stream.time[stream.asked].min() >= stream.cutoff
    assert stream.drawn is not None
    assert (stream.drawn < stream.asked[0]).any()  # of the past too: these tell of the time before the change


def papers_alone(
    stream: Stream, keys: Tensor, out: Path, *papers: str, seeds: Sequence[int] = (0,), force: bool = False
) -> dict[str, Any]:
    """The whole experiment with nobody but the paper's recipe."""
    return drift.run(
        stream,
        name="papers",
        scale="quick",
        seeds=seeds,
        out=out,
        force=force,
        ours=False,
        papers=papers or tuple(drift.PAPERS),
        peer_names=(),
        paper_keys=keys,
    )


def test_the_papers_part_makes_no_table_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_of_reviews, "PER_BIN", 10)
    stream, keys = make_reviews(tmp_path, bins=10)
    report = papers_alone(stream, keys, tmp_path / "out", seeds=(0, 1))
    assert not {"table", "model_table"} & set(vars(stream))
    assert set(report["models"]) == set(drift.PAPERS)
    for model in report["models"].values():
        assert len(set(model["nll"]["seeds"])) == 2  # each seed is another network
        assert 0 <= model["in_distribution"]["mean"] <= 1
    assert report["rows"]["asked"] == len(stream.asked) < (stream.time >= stream.cutoff).sum()


def test_the_papers_networks_read_no_scores_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, keys = make_reviews(tmp_path, count=600)
    stream, _ = make_reviews(tmp_path, count=600, words=True)
    assert [spec.name for spec in stream.specs] == [*(spec.name for spec in plain.specs), WORDS]
    assert stream.without(WORDS).digest() == plain.digest()

    def run(given: Stream, *rest: Any, asked: np.ndarray, **more: Any) -> np.ndarray:
        seen.append([spec.name for spec in given.specs])
        return np.full((len(asked), 2), np.log(0.5), np.float32)

    seen: list[list[str]] = []
    monkeypatch.setattr(drift, "run_paper_recipe", run)
    papers_alone(stream, keys, tmp_path / "out", "recollect_paper")
    assert seen == [[spec.name for spec in plain.specs]]
    papers_alone(plain, keys, tmp_path / "out", "recollect_paper", force=True)
    assert len(seen) == 1, "what was trained is found again, with words for the others or without"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_experiment_at_the_papers_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `recollect reproduce reviews --part paper --bins 100` runs it, once the texts are embedded."""
    monkeypatch.setattr(stream_of_reviews, "PER_BIN", 20)
    sizes = replace(TINY, splits=SplitSizes(32, 1_900_000, 16, 1_900_000), epochs=1, batch_size=16)
    monkeypatch.setitem(reviews_paper.SIZES, "quick", sizes)
    rows, width = 4_100_000, 8
    generator = np.random.default_rng(0)
    embeddings = mapped_rows(rows, width, tmp_path)
    for first in range(0, rows, 100_000):
        embeddings[first : first + 100_000] = generator.standard_normal((100_000, width), np.float32)
    time = np.sort(generator.integers(0, 10**18, rows))
    text = pl.repeat("", rows, eager=True)
    reviews = Reviews(time, np.where(embeddings[:, 0] > 0, 5.0, 2.0), text, pl.DataFrame())
    stream = reviews_stream(reviews, embeddings, Rule(int(time[4_000_000])), bins=100, folder=tmp_path)
    keys = torch.from_numpy(embeddings)
    report = papers_alone(stream, keys, tmp_path / "out", "recollect_paper", "recollect_paper_items")
    assert report["rows"] == {"past": 4_000_000, "asked": len(stream.asked)}
    assert not {"table", "model_table"} & set(vars(stream))
    assert report["models"]["recollect_paper"]["in_distribution"]["mean"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("retrieve", ["labels", "items"])
def test_histories_of_the_papers_size(retrieve: str, tmp_path: Path) -> None:
    """1.9 million items to train with, as many for validation and 4.1 million in all, features mapped from a file."""
    rows, width = 4_100_000, 8
    generator = np.random.default_rng(0)
    text = np.lib.format.open_memmap(tmp_path / "text.npy", "w+", np.float16, (rows, width))
    for first in range(0, rows, 100_000):
        text[first : first + 100_000] = generator.standard_normal((100_000, width), np.float32)
    keys = torch.from_numpy(np.asarray(text[:, :KEY_DIM]))
    time = np.sort(generator.integers(0, 10**18, rows))
    stream = Stream(
        {"text": torch.from_numpy(text)},
        (FeatureSpec("text", "embedded", width),),
        (np.asarray(text[:, 0]) > 0).astype(np.int64),
        time,
        time,
        np.zeros(rows, np.int64),
        int(time[4_000_000]),
        2,
    )
    sizes = replace(TINY, splits=SplitSizes(32, 1_900_000, 16, 1_900_000), epochs=1, batch_size=16)
    splits = split_past(stream.past, sizes.splits, generator)
    assert len(splits.train_history) == 1_900_000
    fabric = make_fabric(None, "")
    predictor = learn(stream, keys, splits, Variant(retrieve=retrieve), sizes, 0, fabric)  # type: ignore[arg-type]
    answers = ask(predictor, stream, keys, stream.asked[:: len(stream.asked) // 40], 1_900_000, fabric)
    assert np.isfinite(answers).all()
