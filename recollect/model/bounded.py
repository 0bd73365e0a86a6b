"""The weights of a softmax that is linear in them, found by steps that can't go too far: no line search, no tolerance,
so that the same rows give the same bits whenever they are asked for. Knows columns and gradients; not what they mean.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Weights = Float[Tensor, "columns outputs"]


def lowest(
    gradient: Callable[[Weights], Weights],
    products: Float[Tensor, "columns columns"],
    start: Weights,
    held: Float[Tensor, " columns"],
    steps: int,
) -> Weights:
    """Weights with nearly the lowest nll and penalty together, `steps` steps from the start.

    `gradient` is that of the nll, and weights are held at the start as if so many rows spoke for it. `products` are
    those of the columns with each other, `columns.T @ columns`. No step can raise the sum of both: the second
    derivatives of a softmax are at most half of these (Böhning's bound), so that dividing by them never goes too far,
    and they are factored once.
    """
    factor = torch.linalg.cholesky(0.5 * products + torch.diag(held))
    weights = start
    for _ in range(steps):
        uphill = gradient(weights) + held.unsqueeze(1) * (weights - start)
        weights = weights - torch.cholesky_solve(uphill, factor)
    return weights
