"""Answers from the labels of the nearest recent items, without any weight: a vote, and a correction of another answer.

Sees keys, labels and what the plain classifier said of each item; nothing of features, of time or of what made keys.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import Keys
from recollect.retrieval.top import top

STEPS = 6
HALVINGS = 4
SETTLED = 1e-4
"""A correction whose next step is no longer than this has been found."""

ROUNDING = 1e-6
"""A loss that is higher by no more than this part of itself is as low: near the end of the way every other one is."""

LARGEST_LOGIT = 6.0
"""The plain classifier's logits are cut here before they are corrected: it may be sure of what is no longer true."""

APART = 2.0
"""An input's own logits count up to so many deviations from the mean of its neighbours'."""


def nearest(
    own_keys: Float[Tensor, "batch key_dim"], keys: Keys, visible: Visible, count: int
) -> tuple[Int[Tensor, "batch neighbours"], Float[Tensor, "batch neighbours"]]:
    """Positions of the visible items with the largest products, nearest first, and the kernel's weight of each.

    The kernel is as wide as the neighbours are far, so it needs no setting. -1 and weight 0 where there are fewer.
    """
    # Along the recency coordinate nothing is asked for.
    queries = F.pad(own_keys, (0, keys.width - own_keys.shape[1]))
    positions = top(queries, keys, visible, count)
    return positions, kernel(own_keys, keys, positions)


def kernel(
    own_keys: Float[Tensor, "batch key_dim"], keys: Keys, positions: Int[Tensor, "batch neighbours"]
) -> Float[Tensor, "batch neighbours"]:
    filled = positions >= 0
    if not bool(filled.any()):
        return torch.zeros(positions.shape, device=own_keys.device)
    there = keys.at(positions.clamp(min=0))[..., : own_keys.shape[1]]
    squared = (there - own_keys.unsqueeze(1)).square().sum(-1).masked_fill(~filled, 0.0)
    mean = squared.sum(1, keepdim=True) / filled.sum(1, keepdim=True).clamp(min=1)
    weights: Tensor = torch.exp(-squared / (2 * mean).clamp(min=1e-12)) * filled
    return weights


def vote(
    labels: Int[Tensor, "batch neighbours"], weights: Float[Tensor, "batch neighbours"], classes: int
) -> Float[Tensor, "batch classes"]:
    """Log-probabilities by weighted counting; one vote more is spread over all classes."""
    counts = _counts(labels, weights * (labels < classes), classes) + 1.0 / classes
    return (counts / counts.sum(1, keepdim=True)).log()


def with_new_classes(
    log_probs: Float[Tensor, "batch known"],
    labels: Int[Tensor, "batch neighbours"],
    weights: Float[Tensor, "batch neighbours"],
    classes: int,
) -> Float[Tensor, "batch classes"]:
    """An answer of the classes of training, with room made for those that only neighbours have: each gets its share of
    the neighbours' weight and one more. The same whatever classes others met, who are answered beside it."""
    known = log_probs.shape[1]
    if classes == known:
        return log_probs
    shares = _counts(labels, weights * (labels >= known), classes)[:, known:] / (weights.sum(1, keepdim=True) + 1.0)
    return torch.cat([log_probs + torch.log1p(-shares.sum(1, keepdim=True)), shares.log()], dim=1)


def _counts(
    labels: Int[Tensor, "batch neighbours"], weights: Float[Tensor, "batch neighbours"], classes: int
) -> Float[Tensor, "batch classes"]:
    counts = weights.new_zeros(labels.shape[0], classes)
    return counts.scatter_add(1, labels.clamp(0, classes - 1), weights)


def corrected(
    plain: Float[Tensor, "batch classes"],
    plain_of_items: Float[Tensor, "batch neighbours classes"],
    labels: Int[Tensor, "batch neighbours"],
    weights: Float[Tensor, "batch neighbours"],
) -> Float[Tensor, "batch classes"]:
    """The plain answer, with a slope and an offset per class that would have been right for the neighbours.

    A logistic regression with a prior for each input, on the plain logits of its neighbours: with nothing to correct
    the slope is 1 and the offsets are 0; where the plain answers tell nothing the slope falls to 0 and it is a vote.
    Neighbours of a class that the plain answer has no place for are left aside.
    """
    batch, _, classes = plain_of_items.shape
    weights = weights * (labels < classes)
    labels = labels.clamp(0, classes - 1)
    # Neighbours last: there are more of them than classes, and sums over classes then go over whole rows of them.
    logits = centred(plain_of_items).transpose(1, 2).contiguous()
    target = F.one_hot(labels, classes).transpose(1, 2).to(logits.dtype).contiguous()
    theta = torch.cat([logits.new_ones(batch, 1), logits.new_zeros(batch, classes)], dim=1)
    start = theta.clone()

    def loss(theta: Tensor) -> Tensor:
        log_p = F.log_softmax(theta[:, :1, None] * logits + theta[:, 1:, None], dim=1)
        said = log_p.gather(1, labels.unsqueeze(1)).squeeze(1)
        return 0.5 * (theta - start).square().sum(1) - (weights * said).sum(1)

    now = loss(theta)
    settled = torch.zeros(batch, dtype=torch.bool, device=theta.device)
    for _ in range(STEPS):
        step = _newton_step(theta, start, logits, target, weights)
        # For good, and without the last bit of it: an input's answer must not depend on when others are found.
        settled |= step.abs().amax(1) <= SETTLED
        if bool(settled.all()):
            break
        step = step.masked_fill(settled.unsqueeze(1), 0.0)
        after = loss(theta - step)
        for _ in range(HALVINGS):
            worse = after > now + ROUNDING * now.abs()
            if not bool(worse.any()):
                break
            step = torch.where(worse.unsqueeze(1), 0.4 * step, step)
            after = loss(theta - step)
        better = after <= now + ROUNDING * now.abs()
        theta = torch.where(better.unsqueeze(1), theta - step, theta)
        now = torch.where(better, after, now)
    return F.log_softmax(theta[:, :1] * _not_apart(centred(plain), logits, weights) + theta[:, 1:], dim=-1)


def _not_apart(
    own: Float[Tensor, "batch classes"],
    logits: Float[Tensor, "batch classes neighbours"],
    weights: Float[Tensor, "batch neighbours"],
) -> Float[Tensor, "batch classes"]:
    """An input's own logits, no farther from the mean of its neighbours' than `APART` of their deviations.

    The correction was right for the neighbours; beyond where they lie it would go on along a line that nobody has seen.
    """
    total = weights.sum(1, keepdim=True)
    shares = (weights / total.clamp(min=1e-12)).unsqueeze(1)
    mean = (shares * logits).sum(2)
    reach = APART * (shares * (logits - mean.unsqueeze(2)).square()).sum(2).sqrt()
    return torch.where(total > 0, own.maximum(mean - reach).minimum(mean + reach), own)


def _newton_step(
    theta: Float[Tensor, "batch parameters"],
    start: Float[Tensor, "batch parameters"],
    logits: Float[Tensor, "batch classes neighbours"],
    target: Float[Tensor, "batch classes neighbours"],
    weights: Float[Tensor, "batch neighbours"],
) -> Float[Tensor, "batch parameters"]:
    p = F.softmax(theta[:, :1, None] * logits + theta[:, 1:, None], dim=1)
    weighted = weights.unsqueeze(1) * p
    wrong = weighted - weights.unsqueeze(1) * target
    gradient = torch.cat([(wrong * logits).sum((1, 2)).unsqueeze(1), wrong.sum(2)], dim=1) + theta - start
    apart = logits - (p * logits).sum(1, keepdim=True)
    beside = weighted * apart
    slope = (beside * apart).sum((1, 2))
    offsets = torch.diag_embed(weighted.sum(2)) - weighted @ p.transpose(1, 2)
    hessian = torch.cat(
        [
            torch.cat([slope[:, None, None], beside.sum(2).unsqueeze(1)], dim=2),
            torch.cat([beside.sum(2).unsqueeze(2), offsets], dim=2),
        ],
        dim=1,
    )
    hessian = hessian + torch.eye(hessian.shape[1], device=hessian.device)
    step: Tensor = torch.linalg.solve(hessian, gradient)
    return step


def centred(log_probs: Float[Tensor, "*lead classes"]) -> Float[Tensor, "*lead classes"]:
    """Logits around nothing, cut where they would be too sure to be corrected."""
    finite = log_probs.clamp(min=-30.0)
    return (finite - finite.mean(-1, keepdim=True)).clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
