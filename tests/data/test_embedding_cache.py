"""Each text is embedded once, whatever kills the run, and rows come back in the order of the texts."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.data import embedding_cache
from recollect.data.embedding_cache import EmbeddingCache, clean_text, embed_column
from recollect.errors import DataError, SettingError
from tests.data.hashing_embedder import TEXTS, HashingEmbedder

ROOT = Path(__file__).parents[2]


def files(cache: Path, ending: str) -> list[Path]:
    return sorted(cache.rglob(f"*.{ending}"))


def test_rows_come_in_the_order_of_the_texts_and_equal_texts_are_embedded_once(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    rows = embed_column(TEXTS, embedder, tmp_path)
    assert rows.dtype == np.float16
    assert np.array_equal(rows, HashingEmbedder().embed(TEXTS).astype(np.float16))
    assert sorted(embedder.embedded) == sorted(set(TEXTS))


def test_a_second_run_embeds_only_what_is_new(tmp_path: Path) -> None:
    first = embed_column(TEXTS[:100], HashingEmbedder(), tmp_path)
    again = HashingEmbedder()
    both = embed_column(["something new", *TEXTS[:100]], again, tmp_path)
    assert again.embedded == ["something new"]
    assert np.array_equal(both[1:], first)
    before = files(tmp_path, "rows")
    embed_column(TEXTS[:100], again, tmp_path)
    assert again.embedded == ["something new"]
    assert files(tmp_path, "rows") == before, "a run that embeds nothing leaves no file"


def test_no_text_is_a_row_of_zeros_and_reaches_no_model(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    rows = embed_column([None, "a", "", " \n\t"], embedder, tmp_path)
    assert embedder.embedded == ["a"]
    assert not rows[[0, 2, 3]].any()
    assert rows[1].any()
    assert embed_column([], embedder, tmp_path).shape == (0, 5)


def test_rows_may_be_mapped_from_a_file_that_goes_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = embed_column(TEXTS, HashingEmbedder(), tmp_path / "cache")
    monkeypatch.setattr(embedding_cache, "WINDOW", 7)
    rows = embed_column(TEXTS, HashingEmbedder(), tmp_path / "cache", folder=tmp_path / "rows")
    assert isinstance(rows, np.memmap)
    assert np.array_equal(rows, expected)
    assert list((tmp_path / "rows").iterdir()) == []


def test_another_fingerprint_shares_nothing(tmp_path: Path) -> None:
    embed_column(["a"], HashingEmbedder(), tmp_path)
    other = HashingEmbedder(fingerprint="f2", width=3)
    assert embed_column(["a"], other, tmp_path).shape == (1, 3)
    assert other.embedded == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hashing-f1", "hashing-f2"]


def test_a_batch_holds_texts_of_like_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_cache, "WINDOW", 20)
    embedder = HashingEmbedder()
    texts = ["x" * (1 + (7 * number) % 50) for number in range(50)]
    embed_column(texts, embedder, tmp_path)
    assert max(len(batch) for batch in embedder.batches) == 4
    lengths = [len(text) for text in embedder.embedded]
    for start in (0, 20, 40):
        window = lengths[start : start + 20]
        assert window == sorted(window, reverse=True)
        assert sorted(window) == sorted(len(text) for text in texts[start : start + 20])


def test_the_callers_batch_goes_before_the_embedders(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    embed_column(TEXTS[:30], embedder, tmp_path, batch=30)
    assert [len(batch) for batch in embedder.batches] == [30]


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    cache, log = tmp_path / "cache", tmp_path / "log"
    command = [sys.executable, "-m", "tests.data.hashing_embedder", str(cache), str(log)]
    run = subprocess.Popen(command, cwd=ROOT)
    while not log.exists() or len(log.read_text().splitlines()) < 30:
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    before = log.read_text().splitlines()
    distinct = len(set(TEXTS))
    assert 30 <= len(before) < distinct
    resumed = HashingEmbedder()
    rows = embed_column(TEXTS, resumed, cache)
    assert distinct <= len(before) + len(resumed.embedded) <= distinct + resumed.batch
    assert np.array_equal(rows, embed_column(TEXTS, HashingEmbedder(), tmp_path / "uninterrupted"))


@settings(max_examples=25)  # each writes and syncs a file
@given(lost_rows=st.integers(0, 200), lost_digests=st.integers(0, 320))
def test_files_cut_at_any_byte_lose_only_what_was_cut(lost_rows: int, lost_digests: int) -> None:
    texts = [f"text {number}" for number in range(20)]
    with tempfile.TemporaryDirectory() as folder:
        whole = embed_column(texts, HashingEmbedder(), Path(folder))
        for path, lost in (
            (files(Path(folder), "rows")[0], lost_rows),
            (files(Path(folder), "digests")[0], lost_digests),
        ):
            content = path.read_bytes()
            path.write_bytes(content[: len(content) - lost])
        resumed = HashingEmbedder()
        assert np.array_equal(embed_column(texts, resumed, Path(folder)), whole)
        assert len(resumed.embedded) == max(-(-lost_rows // 10), -(-lost_digests // 16))


def test_what_lost_its_rows_is_embedded_again(tmp_path: Path) -> None:
    whole = embed_column(TEXTS[:8], HashingEmbedder(), tmp_path)
    embed_column(TEXTS[:10], HashingEmbedder(), tmp_path)
    larger = max(files(tmp_path, "rows"), key=lambda path: path.stat().st_size)
    larger.unlink()
    again = HashingEmbedder()
    assert np.array_equal(embed_column(TEXTS[:10], again, tmp_path)[:8], whole)
    assert sorted(again.embedded) == sorted(TEXTS[:8])


def test_processes_that_share_a_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    digests = [embedding_cache.Digest(bytes([number]) * 16) for number in range(6)]
    rows = np.arange(12, dtype=np.float16).reshape(6, 2)
    with EmbeddingCache(tmp_path, 2) as one, EmbeddingCache(tmp_path, 2) as other:
        one.add(digests[:2], rows[:2])
        other.add(digests[2:5], rows[2:5])
        one.add(digests[4:], rows[4:])
        assert digests[2] not in one
        assert np.array_equal(one.look_up([digests[5], None]), [[10, 11], [0, 0]])
        with EmbeddingCache(tmp_path, 2) as late:
            assert len(late) == 6
            assert np.array_equal(late.look_up(digests), rows)


def test_half_a_surrogate_pair_is_embedded_as_a_question_mark(tmp_path: Path) -> None:
    embedder = HashingEmbedder()
    embed_column(["good \ud83d camera"], embedder, tmp_path)
    assert embedder.embedded == ["good ? camera"]


def test_what_is_not_a_text_is_named() -> None:
    with pytest.raises(DataError, match=r"row 7 of the texts is nan, not a text: make it a str, or None"):
        clean_text(float("nan"), 7)


def test_a_row_that_is_not_finite_is_never_kept(tmp_path: Path) -> None:
    class Broken(HashingEmbedder):
        def embed(self, texts: list[str]) -> np.ndarray:
            return np.where(np.array([[text == "b"] for text in texts]), np.nan, super().embed(texts))

    with pytest.raises(SettingError, match=r"hashing gives a row that is not finite for 'b'"):
        embed_column(["a", "b"], Broken(), tmp_path)
    assert not files(tmp_path, "rows")


def test_progress_shows_the_rate_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    embed_column(TEXTS, HashingEmbedder(), tmp_path / "quiet")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    embed_column(TEXTS, HashingEmbedder(), tmp_path / "hidden", progress=False)
    assert capsys.readouterr() == ("", "")
    embed_column(TEXTS, HashingEmbedder(), tmp_path / "shown")
    shown = capsys.readouterr().err
    assert "texts/s" in shown
    assert "150/150" in shown


def test_a_log_gets_a_line_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter(range(0, 10_000, 8))  # a batch of four texts every eight seconds
    monkeypatch.setattr(embedding_cache, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    embed_column(TEXTS, HashingEmbedder(), tmp_path / "told")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "embedding with some/where/hashing: 16 of 150 texts, 0.5 texts/s, 0:04:28 left"
    assert len(lines) == 9, "one every 32 seconds of 304"
    embed_column(TEXTS, HashingEmbedder(), tmp_path / "hidden", progress=False)
    assert capsys.readouterr().err == ""
