"""Scores block by block against dense logits: summaries, tiles, single blocks, and what lies out of sight."""

from dataclasses import replace

import pytest
import torch

from recollect.errors import SettingError
from recollect.records import Visible
from recollect.retrieval import scoring
from recollect.retrieval.kernels import LN_2, can_compile
from recollect.retrieval.keys import OwnKeys, SharedKeys
from recollect.retrieval.scoring import block_positions, row_slices, score, summarise
from tests.retrieval.cases import CASES, Case


@pytest.fixture(params=["one block a tile", "one tile"])
def _tile_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one block a tile":
        monkeypatch.setattr(scoring, "TILE_BYTES", 1)


@pytest.mark.usefixtures("_tile_bytes")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_summaries_are_those_of_the_dense_logits(case: Case) -> None:
    problem = case.build()
    summary, size = summarise(problem.scores()), problem.keys.block
    logits = problem.logits() / LN_2
    padding = summary.maximum.shape[2] * size - logits.shape[2]
    blocks = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf).unflatten(2, (-1, size))
    torch.testing.assert_close(summary.maximum.double(), blocks.amax(-1), rtol=1e-6, atol=1e-6)
    total = (blocks - blocks.amax(-1, keepdim=True)).exp2().sum(-1).nan_to_num(0.0)
    torch.testing.assert_close(summary.total.double(), total, rtol=2e-6, atol=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(SettingError, match=f"temperature is {temperature}: it must be positive"):
        Case("shared", 123).build(temperature).scores()


@pytest.mark.usefixtures("_tile_bytes")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_masked_walk_covers_the_dense_logits(case: Case) -> None:
    problem = case.build()
    logits, scores = problem.logits() / LN_2, problem.scores()
    walked = torch.full_like(logits, -torch.inf)
    for start, stop, tile in scores.walk_masked():
        inside = min(stop, problem.keys.num_items)
        assert bool((tile[:, :, inside - start :] == -torch.inf).all())
        walked[:, :, start:inside] = tile[:, :, : inside - start].double()
        tile.fill_(7.0)  # what a caller may do
    torch.testing.assert_close(walked, logits, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_logits_of_single_blocks(case: Case) -> None:
    problem = case.build()
    scores, size = problem.scores(), problem.keys.block
    rows, blocks = slice(1, 4), torch.randint(scores.num_blocks, (3, 5))
    found = scores.block_logits(rows, 1, blocks)
    padded = torch.nn.functional.pad(problem.logits() / LN_2, (0, size), value=-torch.inf)[rows, 1:]
    index = block_positions(blocks, size).flatten(1).unsqueeze(1).expand(-1, padded.shape[1], -1)
    expected = padded.gather(2, index).unflatten(2, (5, size)).transpose(1, 2)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_blocks_that_nobody_sees_are_not_multiplied() -> None:
    keys = SharedKeys(torch.randn(5000, 4))
    visible = Visible(torch.tensor([1000, 900, 0]), torch.tensor([1100, 1000, 0]))
    scores = score(torch.randn(3, 2, 4), keys, visible, temperature=1.0)
    assert scores.tiles() == [(768, 1280)]


def test_nobody_sees_anything() -> None:
    nothing = Visible(torch.tensor([3, 5]), torch.tensor([3, 4]))
    scores = score(torch.randn(2, 2, 4), SharedKeys(torch.randn(300, 4)), nothing, temperature=1.0)
    assert list(scores.walk()) == list(scores.walk_masked()) == []
    summary = summarise(scores)
    assert bool((summary.maximum == -torch.inf).all())
    assert bool((summary.total == 0).all())


@pytest.mark.parametrize("keys", [SharedKeys(torch.zeros(0, 4)), OwnKeys(torch.zeros(2, 0, 4))], ids=["shared", "own"])
def test_an_empty_history(keys: SharedKeys | OwnKeys) -> None:
    visible = Visible(torch.tensor([0, 0]), torch.tensor([0, 0]))
    summary = summarise(score(torch.randn(2, 3, 4), keys, visible, temperature=1.0))
    assert summary.maximum.shape == (2, 3, 1)
    assert bool((summary.total == 0).all())


def test_logits_are_kept_for_own_histories_and_where_they_fit() -> None:
    visible = Visible(torch.zeros(2, dtype=torch.int64), torch.full((2,), 300))
    queries, shared = torch.randn(2, 3, 4), SharedKeys(torch.randn(300, 4))
    size = 4 * 2 * 3 * 512
    assert score(queries, shared, visible, temperature=1.0).kept is None
    assert score(queries, shared, visible, temperature=1.0, keep_bytes=size - 1).kept is None
    kept = score(queries, shared, visible, temperature=1.0, keep_bytes=size).kept
    assert kept is not None
    assert kept.shape == (2, 3, 512)
    assert score(queries, OwnKeys(torch.randn(2, 300, 4)), visible, temperature=1.0).kept is not None


def test_some_of_the_slots() -> None:
    for case in (Case("shared", 257), Case("shared", 257, keep=True)):
        scores = case.build().scores()
        whole, part = summarise(scores), summarise(scores.slots(slice(1, None)))
        torch.testing.assert_close(part.maximum, whole.maximum[:, 1:])
        torch.testing.assert_close(part.total, whole.total[:, 1:])


def test_only_large_passes_on_an_accelerator_are_compiled_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, visible = SharedKeys(torch.zeros(300, 4, device="meta")), Visible(torch.tensor([0]), torch.tensor([300]))
    queries = torch.zeros(1, 2, 4, device="meta")  # stands for an accelerator: not a CPU
    monkeypatch.setattr(scoring, "can_compile", lambda device: device == "meta")
    assert not score(queries, keys, visible, temperature=1.0).compiled
    monkeypatch.setattr(scoring, "COMPILE_FROM", 1)
    assert score(queries, keys, visible, temperature=1.0).compiled
    assert not score(queries, keys, visible, temperature=1.0, compiled=False).compiled
    assert not Case("shared", 257).build().scores().compiled


@pytest.mark.skipif(not can_compile("cpu"), reason="no C++ compiler, so nothing is ever compiled")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in the compiler
def test_compiled_and_eager_summaries_agree() -> None:
    for case in CASES:
        scores = case.build().scores()
        eager, compiled = (summarise(replace(scores, compiled=compiled)) for compiled in (False, True))
        assert torch.equal(compiled.maximum, eager.maximum)
        torch.testing.assert_close(compiled.total, eager.total)


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
def test_slices_of_rows_keep_to_the_budget(rows: int) -> None:
    slices = row_slices(rows, bytes_per_row=10, budget=35)
    assert [row for part in slices for row in range(part.start, part.stop)] == list(range(rows))
    assert all(part.stop - part.start <= 3 for part in slices)
    assert row_slices(2, bytes_per_row=100, budget=35) == [slice(0, 1), slice(1, 2)]
