"""The two passes over a tile of logits in which retrieval spends its time, apart from the products.

They know nothing of keys or inputs. Logits are base 2, because powers of 2 need a third less time than powers of e.
Compiled, each pass is one loop over the tile instead of three or four, with the same results but for the order of
summation. Eager, they write over the tile they are given: new memory of its size would cost more than the arithmetic.
So written they are as fast as compiled on a CPU, where the tile stays in a cache: nothing is compiled there unasked.
"""

import functools
import importlib.util
import math
import shutil
from collections.abc import Callable
from typing import no_type_check

import torch
from torch import Tensor

Reduction = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
Exponentials = Callable[[Tensor, Tensor], Tensor]

LN_2 = math.log(2.0)
LEAST = torch.finfo(torch.float32).min


def reduction(compiled: bool) -> Reduction:
    return _compiled_reduction() if compiled else reduce_blocks


def exponentials(compiled: bool) -> Exponentials:
    return _compiled_exponentials() if compiled else exponentials_


# no_type_check keeps the shape checks of the tests out of what is compiled.
@no_type_check
def reduce_blocks(logits: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each block [..., items] the maximum, and the sum of 2 ** (logit - maximum): 0, not NaN, where all are -inf.

    `scratch` is written over, and may be `logits` itself.
    """
    maximum = logits.amax(-1)
    return maximum, torch.sub(logits, maximum.clamp(min=LEAST).unsqueeze(-1), out=scratch).exp2_().sum(-1)


@no_type_check
def exponentials_(logits: Tensor, shift: Tensor) -> Tensor:
    """Overwrites logits [..., items] with 2 ** (logits - shift) and returns the sums over the items."""
    return logits.sub_(shift.unsqueeze(-1)).exp2_().sum(-1)


@no_type_check
def _fused_reduction(logits: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    maximum = logits.amax(-1)
    return maximum, (logits - maximum.clamp(min=LEAST).unsqueeze(-1)).exp2().sum(-1)


@no_type_check
def _fused_exponentials(logits: Tensor, shift: Tensor) -> Tensor:
    # Here a power of e: of 2, the compiler would make two loops and take every power twice.
    weights = ((logits - shift.unsqueeze(-1)) * LN_2).exp()
    logits.copy_(weights)
    return weights.sum(-1)


@functools.cache
def _compiled_reduction() -> Reduction:
    return torch.compile(_fused_reduction, dynamic=True)


@functools.cache
def _compiled_exponentials() -> Exponentials:
    return torch.compile(_fused_exponentials, dynamic=True)


@functools.cache
def can_compile(device: str) -> bool:
    """Whether there is a C++ compiler and, for an accelerator, Triton."""
    compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    return compiler and (device == "cpu" or importlib.util.find_spec("triton") is not None)
