"""Several heads answer, and what each would have said of the items known since decides how much it counts.

Fixed share: a head's weight falls with its loss on every item, and a small part of all weight is shared out anew each
time, so that a head that was bad can come back. The mixture's loss is then close to that of the best sequence of heads
with few changes, whatever the data do. On top of it each input asks how the heads did on items like itself: one head
may know the summers and another the winters. Knows losses in order of when they became known; no model, no clock.
"""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from recollect.model.blocks import rounded_up

SHARE = 0.002
"""Part of all weight that is shared out at every item: heads are compared over about 1/SHARE items."""

RATE = 0.5
"""How much a loss counts. At 1 the mixture is that of someone who holds one of the heads to be right; none of them is,
their losses come in runs, and a few items then silence a head that is good in the long run."""

WORST = 1e-3
"""A head that gave the right class less than this is charged as if it had given it that: one sure mistake of a head
must not silence it for long."""


def item_losses(
    log_probs: Float[Tensor, "items heads classes"], labels: Int[Tensor, " items"]
) -> Float[Tensor, "items heads"]:
    """What each head is charged for each item; a class it has no place for costs the most."""
    classes = log_probs.shape[2]
    index = labels.clamp(max=classes - 1).view(-1, 1, 1).expand(-1, log_probs.shape[1], 1)
    said = log_probs.gather(2, index).squeeze(2).exp()
    said = said.masked_fill((labels >= classes).unsqueeze(1), 0.0)
    return -said.clamp(min=WORST).log()


def fixed_share(
    losses: Float[Tensor, "items heads"], prior: Float[Tensor, " heads"], *, share: float = SHARE, rate: float = RATE
) -> Float[Tensor, "moments heads"]:
    """Weights before the first item, after it, after the second, and so on: one row more than there are items."""
    first = prior.double() / prior.sum()
    after = shared_after(first, losses, prior, share=share, rate=rate)
    return torch.cat([first.unsqueeze(0), after]).float()


def shared_after(
    now: Float64[Tensor, " heads"],
    losses: Float[Tensor, "items heads"],
    prior: Float[Tensor, " heads"],
    *,
    share: float = SHARE,
    rate: float = RATE,
) -> Float64[Tensor, "items heads"]:
    """How weights go on from where they are: after each item. Doubles, so that going on later gives the same bits."""
    factors = torch.exp(-rate * (losses - losses.min(1, keepdim=True).values)).double()
    fresh = (share * prior.double() / prior.sum()).numpy()
    # numpy: item after item takes a third of the time it takes with tensors.
    weights, last = np.empty(losses.shape), now.numpy()
    for index, factor in enumerate(factors.cpu().numpy()):
        last = last * factor
        last = (1.0 - share) * (last / last.sum()) + fresh
        weights[index] = last
    return torch.from_numpy(weights)


def adjusted(
    weights: Float[Tensor, "batch heads"],
    losses_near: Float[Tensor, "batch near heads"],
    closeness: Float[Tensor, "batch near"],
) -> Float[Tensor, "batch heads"]:
    """The weights after the losses on items near each input as well, each counted as much as it is close."""
    charged = (closeness.unsqueeze(-1) * losses_near).sum(1)
    return F.softmax(weights.clamp(min=1e-30).log() - charged, dim=1)


def mixed(
    log_probs: Float[Tensor, "batch heads classes"], weights: Float[Tensor, "batch heads"]
) -> Float[Tensor, "batch classes"]:
    """Log-probabilities of the weighted mean of the heads' answers."""
    batch, _, classes = log_probs.shape
    # Computed for some rows and classes more, so that the last bits don't depend on how many there are.
    more = (0, rounded_up(classes) - classes, 0, 0, 0, rounded_up(batch) - batch)
    logits = log_probs + weights.clamp(min=1e-30).log().unsqueeze(-1)
    return torch.logsumexp(F.pad(logits, more, value=-torch.inf), dim=1)[:batch, :classes]
