"""The two passes over a tile of logits in which retrieval spends its time, apart from the products.

They know nothing of keys or inputs. Both take powers of 2, for which the vector units need a third less time than for
powers of e, and write over the tile: new memory of its size would cost more than the arithmetic.
"""

import functools
import math
import shutil
from collections.abc import Callable
from typing import no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

Reduction = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]

LOG2_E = 1.0 / math.log(2.0)


@no_type_check  # keeps the shape checks of the tests out of what is compiled
def reduce_blocks(logits: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Of each block [..., items] the maximum, and the sum of exp(logit - maximum): 0, not NaN, where all are -inf.

    `scratch` is written over, and may be `logits` itself.
    """
    maximum = logits.amax(-1)
    shift = maximum.clamp(min=torch.finfo(torch.float32).min)
    return maximum, torch.sub(logits, shift.unsqueeze(-1), out=scratch).mul_(LOG2_E).exp2_().sum(-1)


@no_type_check
def _fused_reduction(logits: Tensor, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    maximum = logits.amax(-1)
    shift = maximum.clamp(min=torch.finfo(torch.float32).min)
    return maximum, ((logits - shift.unsqueeze(-1)) * LOG2_E).exp2().sum(-1)


@functools.cache
def compiled_reduction() -> Reduction:
    """`reduce_blocks` compiled: one loop, no scratch. The maxima have the same bits, the sums another order."""
    return torch.compile(_fused_reduction, dynamic=True)


@functools.cache
def can_compile() -> bool:
    return any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++", "cl"))


def exponentials_(
    logits: Float[Tensor, "batch retrieved items"], shift: Float[Tensor, "batch retrieved"]
) -> Float[Tensor, "batch retrieved"]:
    """Overwrites logits with exp(logits - shift) and returns the sum over the items."""
    return logits.sub_(shift.unsqueeze(-1)).mul_(LOG2_E).exp2_().sum(-1)
