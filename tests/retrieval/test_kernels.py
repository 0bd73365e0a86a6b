"""The passes over a tile against plain expressions, and compiled against eager."""

import pytest
import torch

from recollect.retrieval import kernels
from recollect.retrieval.kernels import can_compile, compiled_reduction, exponentials_, reduce_blocks


@pytest.mark.parametrize("scratch", ["none", "other", "itself"])
def test_a_reduction_is_a_maximum_and_a_log_sum_exp(scratch: str) -> None:
    logits = 50 * torch.randn(4, 3, 17)
    copy = logits.clone()
    maximum, total = reduce_blocks(logits, {"none": None, "other": torch.empty_like(logits), "itself": logits}[scratch])
    assert torch.equal(maximum, copy.amax(-1))
    torch.testing.assert_close(maximum + total.log(), copy.logsumexp(-1))
    assert torch.equal(logits, copy) == (scratch != "itself")


def test_a_block_of_nothing_has_no_total() -> None:
    logits = torch.randn(2, 5)
    logits[1] = -torch.inf
    maximum, total = reduce_blocks(logits)
    assert maximum[1] == -torch.inf
    assert total[1] == 0


def test_exponentials_overwrite_and_sum() -> None:
    logits, shift = torch.randn(2, 3, 9), torch.randn(2, 3)
    shift[0, 0] = torch.inf
    logits[1, 1, 1] = -torch.inf
    expected = (logits - shift.unsqueeze(-1)).exp()
    mass = exponentials_(logits, shift)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(mass, expected.sum(-1))
    assert mass[0, 0] == 0


def test_the_reduction_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(kernels.torch, "compile", lambda function, dynamic: compiled.append(function) or function)
    compiled_reduction.cache_clear()
    logits = 30 * torch.randn(5, 256)
    for _ in range(2):
        maximum, total = compiled_reduction()(logits, None)
    compiled_reduction.cache_clear()
    assert len(compiled) == 1
    torch.testing.assert_close((maximum, total), reduce_blocks(logits))


@pytest.mark.skipif(not can_compile(), reason="no C++ compiler, so nothing is ever compiled")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in the compiler
def test_compiled_and_eager_reductions_agree() -> None:
    for shape in [(60, 256), (7, 256), (1, 1)]:
        logits = 30 * torch.randn(shape)
        logits[0, 0] = -torch.inf
        expected, expected_total = reduce_blocks(logits)
        maximum, total = compiled_reduction()(logits, None)
        assert torch.equal(maximum, expected)
        torch.testing.assert_close(total, expected_total)


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    can_compile.cache_clear()
    assert not can_compile()
    can_compile.cache_clear()
