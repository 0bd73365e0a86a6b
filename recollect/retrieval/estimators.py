"""From losses and log-probabilities to something whose gradient estimates that of the expected nll.

One sign everywhere: nll is positive and minimised. A chain that does worse than its baseline has a positive advantage,
and minimising `log_p * advantage` makes it less probable.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Pathwise = Literal["sampled", "greedy"]


def greedy_baseline(
    nll_sampled: Float[Tensor, "batch chains"],
    nll_greedy: Float[Tensor, "batch 1"],
    log_p: Float[Tensor, "batch chains"],
    pathwise: Pathwise,
) -> Float[Tensor, " batch"]:
    """The paper's estimator, signs corrected: the greedy chain's nll is the baseline.

    Unbiased with `pathwise="sampled"`. The paper takes the classifier's own gradient at the greedy selection
    (`"greedy"`), which is the gradient of another objective: the nll that greedy prediction will have.
    """
    advantage = (nll_sampled - nll_greedy).detach()
    surrogate = (log_p * advantage).mean(1)
    path = nll_sampled.mean(1) if pathwise == "sampled" else nll_greedy.squeeze(1)
    return path + surrogate


def leave_one_out(
    nll_sampled: Float[Tensor, "batch chains"], log_p: Float[Tensor, "batch chains"]
) -> Float[Tensor, " batch"]:
    """The baseline of each chain is the mean nll of the others: unbiased, and advantages sum to zero."""
    surrogate = (log_p * centred_advantage(nll_sampled)).mean(1)
    return nll_sampled.mean(1) + surrogate


def centred_advantage(nll: Float[Tensor, "batch chains"]) -> Float[Tensor, "batch chains"]:
    """nll minus the mean of the other chains' nll, as a constant."""
    chains = nll.shape[1]
    return ((nll - nll.mean(1, keepdim=True)) * (chains / (chains - 1))).detach()


def label_marginal(
    nll_by_label: Float[Tensor, "batch chains labels"],
    mass: Float[Tensor, "batch chains labels"],
    log_p_earlier: Float[Tensor, "batch chains"],
) -> Float[Tensor, " batch"]:
    """The last slot summed over its label instead of sampled; the score function for the slots before it.

    `mass` is the probability, given the earlier picks, that the last slot shows each label (or nothing). With one slot
    there is nothing left to sample, and the variance is zero.
    """
    expected = (mass * nll_by_label).sum(2)
    advantage = expected.detach() if expected.shape[1] == 1 else centred_advantage(expected)
    return (expected + log_p_earlier * advantage).mean(1)


def multi_sample(
    nll_sampled: Float[Tensor, "batch chains"], log_p: Float[Tensor, "batch chains"]
) -> Float[Tensor, " batch"]:
    """The nll of the mean probability over the chains, with each chain's leave-one-out baseline (unbiased for it).

    Another objective than the mean nll, and a lower one. Under the mean nll a classifier must stay as unsure as its
    worst chain while retrieval still explores, so that a good pick hardly shows in the loss; here it may be as sure as
    its best chain allows. The two objectives meet where retrieval has made up its mind.
    """
    chains = nll_sampled.shape[1]
    mean_nll = math.log(chains) - torch.logsumexp(-nll_sampled, dim=1)
    itself = torch.eye(chains, dtype=torch.bool, device=nll_sampled.device)
    others = (-nll_sampled).unsqueeze(1).masked_fill(itself, -torch.inf).logsumexp(dim=2)
    advantage = (mean_nll.unsqueeze(1) - (math.log(chains - 1) - others)).detach()
    return mean_nll + (log_p * advantage).sum(1)
