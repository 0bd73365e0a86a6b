"""The classifier as scikit-learn's conventions have it, and what no other of its classifiers does: new labels change
its answers at once, answers as of the past stay as they were, and no weight moves."""

import copy
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from recollect.data.embedding import EmbedderSpec
from recollect.errors import CheckpointError, HistoryDamagedError, OutputExistsError
from recollect.estimator import RecollectClassifier
from recollect.training.fit import sizes_for
from tests.data.test_word_scores import praise

Numbers = NDArray[np.float64]


@parametrize_with_checks([RecollectClassifier()])
def test_scikit_learn_s_own_checks(estimator: RecollectClassifier, check: Any) -> None:
    check(estimator)


def table(rows: int = 60, seed: int = 0) -> tuple[Numbers, NDArray[np.str_]]:
    """Yes where the first column is positive."""
    x = np.random.default_rng(seed).normal(size=(rows, 3))
    return x, np.where(x[:, 0] > 0, "yes", "no")


@pytest.fixture(scope="module")
def fitted() -> RecollectClassifier:
    """To be copied by whoever changes it."""
    return RecollectClassifier(random_state=0).fit(*table(160))


def weights(classifier: RecollectClassifier) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in classifier.model_.system.state_dict().items()}


# Among scikit-learn's tools


def test_in_a_pipeline_searched_over_splits_in_time() -> None:
    x, y = table(45)
    pipeline = make_pipeline(StandardScaler(), RecollectClassifier(steps=2, random_state=0))
    search = GridSearchCV(pipeline, {"recollectclassifier__num_retrieved": [2, 4]}, cv=TimeSeriesSplit(2))
    search.fit(x, y, recollectclassifier__time=np.arange(45.0))
    assert search.best_params_["recollectclassifier__num_retrieved"] in (2, 4)
    assert search.best_estimator_.predict(x[:3], as_of=30.0).shape == (3,)
    found = search.best_estimator_[-1]
    assert found.model_.recipe.model.num_retrieved == search.best_params_["recollectclassifier__num_retrieved"]


def test_cross_validated_with_times_that_are_split_with_the_rows() -> None:
    x, y = table(90)
    days = pd.date_range("2024-01-01", periods=90, tz="UTC")
    scores = cross_val_score(RecollectClassifier(random_state=0), x, y, cv=TimeSeriesSplit(2), params={"time": days})
    assert scores.shape == (2,)
    assert scores[-1] > 0.6


def test_a_clone_has_the_parameters_and_nothing_else(fitted: RecollectClassifier) -> None:
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(table(3)[0])


def test_the_same_random_state_gives_the_same_bits_and_another_one_others() -> None:
    x, y = table(40)
    one, same, other = (
        RecollectClassifier(steps=2, random_state=seed).fit(x, y).predict_proba(x[:3]) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_a_row_is_answered_alike_alone_and_in_company(fitted: RecollectClassifier) -> None:
    x, _ = table(40, seed=5)
    together = fitted.predict_proba(x)
    for row in (0, 17, 39):
        assert np.array_equal(fitted.predict_proba(x[row : row + 1])[0], together[row])


def test_a_pickled_and_a_deeply_copied_classifier_answer_with_the_same_bits(fitted: RecollectClassifier) -> None:
    x, _ = table(5, seed=6)
    expected = fitted.predict_proba(x)
    for twin in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert np.array_equal(twin.predict_proba(x), expected)


# What may come in


def test_labels_are_texts_and_classes_in_order(fitted: RecollectClassifier) -> None:
    x, y = table(60, seed=1)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.predict_proba(x).shape == (60, 2)
    assert fitted.score(x, y) > 0.85


def test_several_classes() -> None:
    x, _ = table(100)
    y = np.digitize(x[:, 0], [-0.5, 0.5]) * 10
    classifier = RecollectClassifier(random_state=0).fit(x, y)
    assert classifier.classes_.tolist() == [0, 10, 20]
    assert classifier.score(x, y) > 0.7


def test_one_class_is_answered_until_another_has_precedents() -> None:
    x, _ = table(30)
    classifier = RecollectClassifier(random_state=0).fit(x, np.full(30, "only"))
    assert set(classifier.predict(x)) == {"only"}
    classifier.append(x, np.full(30, "new"))
    assert set(classifier.predict(x)) == {"new"}


def test_missing_numbers_are_learned_from() -> None:
    x, y = table(80)
    x[::7, 1] = np.nan
    classifier = RecollectClassifier(steps=3, random_state=0).fit(x, y)
    asked = x[:10].copy()
    asked[:, 2] = np.nan
    assert np.isfinite(classifier.predict_proba(asked)).all()


def test_infinity_is_refused() -> None:
    x, y = table(30)
    x[3, 1] = np.inf
    with pytest.raises(ValueError, match="Input X contains infinity"):
        RecollectClassifier().fit(x, y)
    with pytest.raises(ValueError, match="row 3: b is infinite: give a number, or leave it empty"):
        RecollectClassifier().fit(pd.DataFrame(x, columns=list("abc")), y)


def test_columns_that_never_vary_can_t_be_learned_from() -> None:
    with pytest.raises(ValueError, match=r"no column is left to learn from \(x0: always 1 before the cutoff"):
        RecollectClassifier().fit(np.ones((10, 1)), [0, 1] * 5)


def test_sizes_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match="width is 0: give a whole number from 1 on, or None"):
        RecollectClassifier(width=0).fit(*table(20))


def shop(rows: int = 120, seed: int = 0) -> tuple[pd.DataFrame, NDArray[np.bool_]]:
    generator = np.random.default_rng(seed)
    place = generator.choice(["Ulm", "Bonn", "Kiel"], rows)
    frame = pd.DataFrame(
        {
            "amount": np.where(generator.random(rows) < 0.2, np.nan, generator.normal(size=rows)),
            "class": pd.Categorical(np.where(generator.random(rows) < 0.1, None, place)),
            "new": generator.random(rows) < 0.5,
            "number": [f"A-{row}" for row in range(rows)],
        }
    )
    return frame, place == "Ulm"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_categories_and_missing_values(library: str) -> None:
    def made(frame: pd.DataFrame) -> Any:
        return frame if library == "pandas" else pl.from_pandas(frame)

    frame, y = shop()
    with pytest.warns(UserWarning, match=r"columns that are not learned from \(number: short texts that hardly repeat"):
        classifier = RecollectClassifier(random_state=0).fit(made(frame), y)
    assert classifier.feature_names_in_.tolist() == ["amount", "class", "new", "number"]
    assert classifier.n_features_in_ == 4
    assert list(classifier.left_out_) == ["number"]
    later, labels = shop(50, seed=1)
    assert classifier.score(made(later), labels) > 0.8
    unknown = later.head(3).assign(**{"class": "Rom"})
    assert classifier.predict_proba(made(unknown)).shape == (3, 2)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(made(later.rename(columns={"new": "old"})))


@pytest.mark.filterwarnings("ignore:columns that are not learned from")
def test_pandas_and_polars_give_the_same_bits() -> None:
    frame, y = shop(60)
    one, other = (
        RecollectClassifier(steps=2, random_state=0).fit(rows, y).predict_proba(rows)
        for rows in (frame, pl.from_pandas(frame))
    )
    assert np.array_equal(one, other)


def test_numbers_written_as_texts_are_numbers() -> None:
    """As `dtype=str`, a database or JSON leave them: nobody can declare them to an estimator."""
    prices = np.random.default_rng(0).normal(size=200)
    rows = pd.DataFrame({"price": [f"{price:.3f}" for price in prices], "count": range(200)})
    classifier = RecollectClassifier(steps=2, random_state=0).fit(rows, prices > 0)
    assert not classifier.left_out_
    assert classifier.model_.intake is not None
    assert classifier.model_.intake.schema.numeric == ("price", "count")


# Time


def test_appended_labels_change_answers_at_once_and_no_weight(fitted: RecollectClassifier) -> None:
    classifier = copy.deepcopy(fitted)
    before = weights(classifier)
    x, y = table(160, seed=2)
    opposite = np.where(y == "yes", "no", "yes")
    asked, right = table(80, seed=3)
    changed = np.where(right == "yes", "no", "yes")
    assert classifier.score(asked, changed) < 0.2
    classifier.append(x, opposite)
    assert classifier.score(asked, changed) > 0.75
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(classifier).items())


def test_answers_as_of_the_past_keep_their_bits(fitted: RecollectClassifier) -> None:
    classifier = copy.deepcopy(fitted)
    asked, _ = table(20, seed=4)
    moments = np.linspace(20.0, 160.0, 20)
    now, then = classifier.predict_proba(asked), classifier.predict_proba(asked, as_of=moments)
    x, y = table(50, seed=5)
    for label in (np.where(y == "yes", "no", "yes"), np.full(50, "maybe")):
        classifier.append(x, label)
        assert np.array_equal(classifier.predict_proba(asked, as_of=160)[:, :2], now)
        assert np.array_equal(classifier.predict_proba(asked, as_of=moments)[:, :2], then)
        assert not np.array_equal(classifier.predict_proba(asked)[:, :2], now)


def test_appending_in_parts_is_appending_at_once(fitted: RecollectClassifier) -> None:
    x, y = table(30, seed=6)
    once, parts = copy.deepcopy(fitted).append(x, y), copy.deepcopy(fitted)
    for first in range(0, 30, 10):
        parts.append(x[first : first + 10], y[first : first + 10])
        parts.predict(x[:1])
    assert np.array_equal(once.predict_proba(x), parts.predict_proba(x))


@pytest.mark.parametrize("missing", [None, pd.NA])
def test_a_label_that_is_missing_is_refused(missing: Any) -> None:
    with pytest.raises(ValueError, match="y has no label for 1 rows, the first is row 1: leave such rows out"):
        RecollectClassifier(steps=1).fit(np.ones((3, 1)), np.array(["a", missing, "b"], dtype=object))


def test_a_label_of_another_kind_is_refused_also_among_objects() -> None:
    x, y = table()
    model = RecollectClassifier(random_state=0).fit(x, y.astype(object))
    with pytest.raises(ValueError, match="of another kind"):
        model.append(x[:1], [1])


def test_what_was_fitted_on_a_frame_answers_its_array() -> None:
    x, y = table()
    frame = pd.DataFrame({"x": x[:, 0], "colour": np.where(x[:, 1] > 0, "red", None), "wet": x[:, 2] > 0})
    model = RecollectClassifier(random_state=0).fit(frame, y)
    expected = model.predict_proba(frame)
    with pytest.warns(UserWarning, match="feature names"):
        found = model.predict_proba(frame.to_numpy())
    assert (found == expected).all()


def test_a_class_first_seen_in_append_can_be_predicted(fitted: RecollectClassifier) -> None:
    classifier = copy.deepcopy(fitted)
    x, _ = table(60, seed=7)
    far = x + np.array([0.0, 3.0, 0.0])
    classifier.append(far, np.full(60, "perhaps"))
    assert classifier.classes_.tolist() == ["no", "yes", "perhaps"]
    probabilities = classifier.predict_proba(far[:10])
    assert probabilities.shape == (10, 3)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert (classifier.predict(far[:10]) == "perhaps").mean() > 0.8
    assert (classifier.predict_proba(far[:10], as_of=100.0)[:, 2] == 0).all()
    with pytest.raises(ValueError, match="the label 7 is of another kind than the classes"):
        classifier.append(x[:1], [7])


def test_labels_known_late_are_seen_late_and_rows_may_come_in_any_order() -> None:
    x, y = table(60)
    time = np.arange(60.0)
    classifier = RecollectClassifier(steps=2, random_state=0).fit(x, y, time=time, known_at=time + 10)
    order = np.random.default_rng(0).permutation(60)
    shuffled = RecollectClassifier(steps=2, random_state=0)
    shuffled.fit(x[order], y[order], time=time[order], known_at=time[order] + 10)
    assert np.array_equal(classifier.predict_proba(x[:5]), shuffled.predict_proba(x[:5]))
    assert classifier.precedents(x[:5], as_of=30.0)["id"].max() == 19
    assert order[shuffled.precedents(x[:5], as_of=30.0)["id"]].max() == 19
    classifier.append(x[:4], y[:4], time=time[:4] + 5, known_at=time[:4] + 12)  # among what is known already
    assert np.isfinite(classifier.predict_proba(x)).all()
    with pytest.raises(ValueError, match="a label can't be known before"):
        classifier.append(x[:1], y[:1], time=[80.0], known_at=[70.0])
    assert classifier.history_.count == 64


def test_moments() -> None:
    x, y = table(40)
    days = pd.date_range("2024-01-01", periods=40)
    classifier = RecollectClassifier(steps=2, random_state=0).fit(x, y, time=days)
    found = classifier.precedents(x[:2], as_of="2024-01-11")
    assert found["id"].max() == 9
    assert found["age"].min() == pd.Timedelta(days=1)
    for same in (days[10], days[10].to_pydatetime(), np.datetime64("2024-01-11")):
        pd.testing.assert_frame_equal(classifier.precedents(x[:2], as_of=same), found)
    with pytest.raises(ValueError, match="as_of is plain numbers, the times are moments"):
        classifier.predict(x, as_of=3.0)
    with pytest.raises(ValueError, match="time is missing: the classifier was fitted with times"):
        classifier.append(x[:1], y[:1])
    with pytest.raises(ValueError, match="time has 2 moments for 1 rows"):
        classifier.append(x[:1], y[:1], time=days[:2])
    with pytest.raises(ValueError, match="time 'soon' of row 0 is not a time"):
        classifier.append(x[:1], y[:1], time=["soon"])


def test_what_is_no_time_is_told_in_one_line(fitted: RecollectClassifier) -> None:
    x, y = table(2)
    days = pd.date_range("2024-01-01", periods=2)
    remedy = "give numbers, datetimes or ISO 8601 texts"
    for spans in (days - days[0], (days - days[0]).to_numpy(), list(days - days[0])):
        with pytest.raises(ValueError, match=rf"^time holds Duration.*: {remedy}$"):
            RecollectClassifier().fit(x, y, time=spans)
    with pytest.raises(ValueError, match=rf"^time can't be read as times .*: {remedy}$"):
        RecollectClassifier().fit(x, y, time=[days[0].to_pydatetime(), 3])
    for missing in (pd.NaT, [pd.NaT, pd.NaT], [None, 1.0], pd.NA):
        with pytest.raises(ValueError, match=r"^as_of None of row 0 is not a time: give .*, one for every row$"):
            fitted.predict(x, as_of=missing)
    with pytest.raises(ValueError, match=r"^as_of has 2 columns: give the one that holds the times$"):
        fitted.predict(x, as_of=pd.DataFrame({"from": [1, 2], "to": [3, 4]}))


@pytest.mark.parametrize("library", [pd, pl])
def test_times_may_be_a_frame_of_one_column(library: Any, fitted: RecollectClassifier) -> None:
    x, _ = table(2)
    moments = [50.0, 90.0]
    found = fitted.predict_proba(x, as_of=library.DataFrame({"t": moments}))
    assert np.array_equal(found, fitted.predict_proba(x, as_of=moments))


@pytest.mark.parametrize("names", [["a", "a", "b"], [1, 1, 2]])
def test_columns_of_one_name_are_refused(names: list[Any], fitted: RecollectClassifier) -> None:
    x, y = table(20)
    for refused in (lambda rows: RecollectClassifier().fit(rows, y), fitted.predict):
        with pytest.raises(ValueError, match=f"two columns called {names[0]}: give each a name of its own"):
            refused(pd.DataFrame(x, columns=names))


def test_what_has_to_be_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "recollect.estimator")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ModuleNotFoundError, match=r"is missing: pip install 'recollect\[sklearn\]'"):
        importlib.import_module("recollect.estimator")


def test_before_everything_there_is_no_precedent(fitted: RecollectClassifier) -> None:
    x, _ = table(3)
    assert fitted.predict_proba(x, as_of=0.0).shape == (3, 2)
    assert len(fitted.precedents(x, as_of=0.0)) == 0


def test_precedents_say_which_items_an_answer_has_in_view(fitted: RecollectClassifier) -> None:
    x, y = table(160)
    found = fitted.precedents(x[:4])
    assert list(found.columns) == ["input", "rank", "id", "age", "label", "weight", "similarity"]
    assert (found["label"].to_numpy() == y[found["id"]]).all()
    assert (found["age"] == 160.0 - found["id"]).all()
    for _, mine in found.groupby("input"):
        assert mine["rank"].tolist() == list(range(1, sizes_for(160).num_retrieved + 1))
        assert mine["weight"].is_monotonic_decreasing
        assert mine["weight"].sum() == pytest.approx(1.0)
    itself = found[found["input"] == found["id"]]
    assert itself["similarity"].to_numpy() == pytest.approx(1.0)
    assert found["similarity"].between(-1.0, 1.000001).all()


# Files


@pytest.mark.filterwarnings("ignore:columns that are not learned from")
def test_what_was_saved_answers_with_the_same_bits_and_goes_on(tmp_path: Path) -> None:
    frame, y = shop(60)
    labels = np.where(y, "Ulm", "else").astype(object)
    classifier = RecollectClassifier(steps=2, random_state=0).fit(frame, labels)
    classifier.append(frame[:5], ["far away"] * 5)
    classifier.save(tmp_path / "model")
    loaded = RecollectClassifier.load(tmp_path / "model")
    assert loaded.get_params() == classifier.get_params()
    assert loaded.classes_.tolist() == ["Ulm", "else", "far away"]
    assert loaded.left_out_ == classifier.left_out_
    for each in (classifier, loaded):
        each.append(frame[5:9], labels[5:9])
    assert np.array_equal(loaded.predict_proba(frame), classifier.predict_proba(frame))
    pd.testing.assert_frame_equal(loaded.precedents(frame), classifier.precedents(frame))
    with pytest.raises(OutputExistsError, match="is not empty"):
        classifier.save(tmp_path / "model")
    classifier.save(tmp_path / "model", force=True)
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".pkl", ".pt")]


def test_rows_that_come_late_answer_the_same_after_loading(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    model = RecollectClassifier(random_state=0).fit(X[:50], y[:50], time=np.arange(50.0))
    model.append(X[50:55], y[50:55], time=np.arange(5.0))
    model.append(X[55:], y[55:], time=np.arange(30.0, 35.0))
    model.save(tmp_path / "kept")
    assert np.array_equal(RecollectClassifier.load(tmp_path / "kept").predict_proba(X), model.predict_proba(X))


def test_all_of_an_embedder_is_saved(tmp_path: Path) -> None:
    frame = pl.DataFrame({"note": [f"the parcel number {row} came {'late' * (row % 2)}" for row in range(40)]})
    classifier = RecollectClassifier(steps=2, embedder=EmbedderSpec("wordllama", width=64), random_state=0)
    classifier.fit(frame, [str(row % 2) for row in range(40)]).save(tmp_path / "model")
    loaded = RecollectClassifier.load(tmp_path / "model")
    assert loaded.get_params() == classifier.get_params()
    assert np.array_equal(loaded.predict_proba(frame), classifier.predict_proba(frame))


def test_texts_are_read_word_by_word_and_come_back_from_files_as_they_were(tmp_path: Path) -> None:
    texts, labels = praise(400)
    frame = pd.DataFrame({"said": texts})
    classifier = RecollectClassifier(steps=20, random_state=0).fit(frame[:300], labels[:300])
    classifier.append(frame[300:350], labels[300:350])
    said = classifier.predict_proba(frame[350:])
    assert (said.argmax(1) == labels[350:]).mean() > 0.8
    classifier.save(tmp_path / "saved")
    for again in (RecollectClassifier.load(tmp_path / "saved"), pickle.loads(pickle.dumps(classifier))):
        assert np.array_equal(again.predict_proba(frame[350:]), said)
        assert np.array_equal(again.predict_proba(frame[360:361]), said[10:11])


def test_parameters_of_numpy_are_saved_as_plain_ones(tmp_path: Path) -> None:
    given = {"steps": np.int64(2), "num_retrieved": np.int32(4), "width": np.uint8(16), "random_state": np.int64(3)}
    classifier = RecollectClassifier(**given, embedder=np.str_("wordllama")).fit(*table(30))
    classifier.save(tmp_path / "model")
    loaded = RecollectClassifier.load(tmp_path / "model").get_params()
    assert loaded == {**given, "embedder": "wordllama"}
    assert {type(value) for value in loaded.values()} == {int, str}
    classifier.random_state = np.random.default_rng(0)
    classifier.save(tmp_path / "model", force=True)
    assert RecollectClassifier.load(tmp_path / "model").random_state is None


def test_force_replaces_a_classifier_and_nothing_else(tmp_path: Path, fitted: RecollectClassifier) -> None:
    mine = tmp_path / "thesis" / "chapter.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    for place in (mine.parent, mine):
        with pytest.raises(OutputExistsError, match="holds no classifier: choose another place"):
            fitted.save(place, force=True)
    assert mine.read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    fitted.save(tmp_path / "empty")
    fitted.save(tmp_path / "empty", force=True)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("estimator.json", CheckpointError),
        ("items.safetensors", HistoryDamagedError),
        ("model/model.json", CheckpointError),
        ("model/weights.safetensors", CheckpointError),
    ],
)
def test_what_is_damaged_isn_t_loaded(
    name: str, error: type[Exception], tmp_path: Path, fitted: RecollectClassifier
) -> None:
    fitted.save(tmp_path / "model")
    path = tmp_path / "model" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(error):
        RecollectClassifier.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match="holds no classifier that can be read"):
        RecollectClassifier.load(tmp_path / "nothing")
