"""The passes over a tile against plain expressions, and compiled against eager."""

import pytest
import torch

from recollect.retrieval import kernels
from recollect.retrieval.kernels import can_compile, exponentials, exponentials_, reduce_blocks, reduction


@pytest.mark.parametrize("scratch", ["none", "other", "itself"])
def test_a_reduction_is_a_maximum_and_a_sum_of_powers_of_2(scratch: str) -> None:
    logits = 50 * torch.randn(4, 3, 17)
    copy = logits.clone()
    maximum, total = reduce_blocks(logits, {"none": None, "other": torch.empty_like(logits), "itself": logits}[scratch])
    assert torch.equal(maximum, copy.amax(-1))
    torch.testing.assert_close(total, (copy - maximum.unsqueeze(-1)).exp2().sum(-1))
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
    expected = (logits - shift.unsqueeze(-1)).exp2()
    mass = exponentials_(logits, shift)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(mass, expected.sum(-1))
    assert mass[0, 0] == 0


def test_each_pass_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    caches = (kernels._compiled_reduction, kernels._compiled_exponentials)
    monkeypatch.setattr(kernels.torch, "compile", lambda function, dynamic: compiled.append(function) or function)
    for cache in caches:
        cache.cache_clear()
    logits, shift = 30 * torch.randn(5, 256), torch.full((5,), 90.0)
    for _ in range(2):
        torch.testing.assert_close(reduction(True)(logits, None), reduce_blocks(logits))
        fused, plain = logits.clone(), logits.clone()
        torch.testing.assert_close(exponentials(True)(fused, shift), exponentials_(plain, shift))
        torch.testing.assert_close(fused, plain)
    for cache in caches:
        cache.cache_clear()
    assert len(compiled) == 2


@pytest.mark.skipif(not can_compile("cpu"), reason="no C++ compiler, so nothing is ever compiled")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in the compiler
def test_compiled_and_eager_passes_agree() -> None:
    for shape in [(60, 256), (7, 256), (1, 1)]:
        logits, shift = 30 * torch.randn(shape), torch.full(shape[:1], 90.0)
        logits[0, 0] = -torch.inf
        expected, expected_total = reduction(False)(logits, None)
        maximum, total = reduction(True)(logits, None)
        assert torch.equal(maximum, expected)
        torch.testing.assert_close(total, expected_total)
        fused, plain = logits.clone(), logits.clone()
        torch.testing.assert_close(exponentials(True)(fused, shift), exponentials(False)(plain, shift))
        torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize(
    ("compiler", "triton", "cpu", "cuda"),
    [(True, True, True, True), (True, False, True, False), (False, True, False, False)],
)
def test_compiling_needs_a_compiler_and_triton_for_an_accelerator(
    compiler: bool, triton: bool, cpu: bool, cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.shutil, "which", lambda name: name if compiler else None)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: name if triton else None)
    can_compile.cache_clear()
    assert (can_compile("cpu"), can_compile("cuda")) == (cpu, cuda)
    can_compile.cache_clear()
