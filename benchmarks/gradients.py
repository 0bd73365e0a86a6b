"""How noisy each gradient estimator is, at equal numbers of classifier evaluations, on the needle task.

The classifier is frozen and reads the first bit; queries point at the needle, with a length that gives it a small or a
large probability. With one slot the exact gradient of the expected nll in the queries is a sum over the K items. For
every estimator: relative variance (spread of single estimates) and relative bias (distance of their mean), both as
squares over the squared norm of the exact gradient. The last line is one JSON object.

Straight-through, Gumbel-softmax, truncated marginalisation and the unordered-set estimator live only here: the first
two need all K items in the classifier at once, which is what retrieval is there to avoid.

    python benchmarks/gradients.py
"""

import argparse
import itertools
import json
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from recollect.data.synthetic import NeedleTask
from recollect.retrieval.estimators import greedy_baseline, label_marginal, leave_one_out, multi_sample

CONFIDENCE = 4.0
"""The frozen classifier's logit for what the first bit says."""


class Setting:
    """A batch of needle episodes with queries, and the frozen classifier's nll for every item it could be shown."""

    def __init__(self, history_size: int, batch: int, needle_probability: float, generator: Generator) -> None:
        episodes = NeedleTask.draw(history_size, generator).sample(batch, generator)
        assert episodes.needle is not None
        self.keys, self.bits = episodes.keys, episodes.features["x"][..., 0]
        self.sign = 2.0 * episodes.targets[:, None] - 1.0
        self.nll = self.classify(self.bits)
        ideal = self.keys[torch.arange(batch), episodes.needle]
        self.queries = self._length_for(ideal, episodes.needle, needle_probability) * ideal

    def classify(self, first_bit: Tensor) -> Tensor:
        """nll of the target where the classifier is shown this first bit, or a mixture of bits."""
        nll: Tensor = torch.nn.functional.softplus(-self.sign * CONFIDENCE * (2.0 * first_bit - 1.0))
        return nll

    def logits(self, queries: Tensor) -> Tensor:
        logits: Tensor = (self.keys @ queries.unsqueeze(2)).squeeze(2) / self.keys.shape[2] ** 0.5
        return logits

    def _length_for(self, ideal: Tensor, needle: Tensor, wanted: float) -> float:
        low, high = 0.0, 4.0
        for _ in range(40):
            length = (low + high) / 2
            reached = self.logits(length * ideal).softmax(1).gather(1, needle[:, None]).mean()
            low, high = (length, high) if reached < wanted else (low, length)
        return low


Loss = Callable[[Setting, Tensor, Generator], Tensor]
"""From a setting, logits with a gradient and randomness to a loss whose gradient is one estimate."""


def exact(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
    return (logits.softmax(1) * setting.nll).sum()


def sampled(logits: Tensor, count: int, generator: Generator) -> Tensor:
    return torch.multinomial(logits.detach().softmax(1), count, replacement=True, generator=generator)


def with_greedy_baseline(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
    picks = sampled(logits, 1, generator)
    best = logits.detach().argmax(1, keepdim=True)
    log_p = logits.log_softmax(1).gather(1, picks)
    return greedy_baseline(setting.nll.gather(1, picks), setting.nll.gather(1, best), log_p, "sampled").sum()


def with_leave_one_out(count: int) -> Loss:
    def loss(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
        picks = sampled(logits, count, generator)
        return leave_one_out(setting.nll.gather(1, picks), logits.log_softmax(1).gather(1, picks)).sum()

    return loss


def with_multi_sample(count: int) -> Loss:
    """Estimates the gradient of another objective, the nll of the chains' mean probability: see `multi_sample`."""

    def loss(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
        picks = sampled(logits, count, generator)
        return multi_sample(setting.nll.gather(1, picks), logits.log_softmax(1).gather(1, picks)).sum()

    return loss


def with_label_marginal(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
    """As if items were bare labels, their first bits: one evaluation per label."""
    is_one = setting.bits == 1
    probabilities = logits.softmax(1)
    mass = torch.stack([(probabilities * ~is_one).sum(1), (probabilities * is_one).sum(1)], dim=1)
    nll = torch.cat([setting.classify(torch.zeros(1)), setting.classify(torch.ones(1))], dim=1)
    return label_marginal(nll.unsqueeze(1), mass.unsqueeze(1), torch.zeros(mass.shape[0], 1)).sum()


def truncated_marginalisation(count: int) -> Loss:
    """The most probable items, renormalised, as in RAG and REALM: no noise, but blind to all others."""

    def loss(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
        top = logits.topk(count, dim=1)
        return (top.values.softmax(1) * setting.nll.gather(1, top.indices)).sum()

    return loss


def gumbel(like: Tensor, generator: Generator) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, dtype=like.dtype).clamp(1e-12, 1 - 1e-7)
    return -(-uniform.log()).log()


def straight_through(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
    soft = logits.softmax(1)
    hard = torch.zeros_like(soft).scatter(1, sampled(logits, 1, generator), 1.0)
    weights = hard + soft - soft.detach()
    return setting.classify((weights * setting.bits).sum(1, keepdim=True)).sum()


def gumbel_softmax(temperature: float) -> Loss:
    def loss(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
        weights = ((logits + gumbel(logits, generator)) / temperature).softmax(1)
        return setting.classify((weights * setting.bits).sum(1, keepdim=True)).sum()

    return loss


def set_probability(p: Tensor, removed: Tensor) -> Tensor:
    """Probability that sampling without replacement, what is `removed` gone, draws exactly the items of `p` first."""
    total = torch.zeros_like(removed)
    for order in itertools.permutations(range(p.shape[1])):
        gone, product = removed, torch.ones_like(removed)
        for index in order:
            product = product * p[:, index] / (1.0 - gone)
            gone = gone + p[:, index]
        total = total + product
    return total


def unordered_set(count: int) -> Loss:
    """Sampling without replacement, summed over the orders the same set could have come in, with its own baseline."""

    def loss(setting: Setting, logits: Tensor, generator: Generator) -> Tensor:
        picks = (logits.detach() + gumbel(logits, generator)).topk(count, dim=1).indices
        p_live = logits.softmax(1).gather(1, picks)
        p, nll = p_live.detach().double(), setting.nll.gather(1, picks).double()
        none = torch.zeros(p.shape[0], dtype=p.dtype)
        whole = set_probability(p, none)
        result = torch.zeros(p.shape[0], dtype=p.dtype)
        for one in range(count):
            rest = [other for other in range(count) if other != one]
            without = set_probability(p[:, rest], p[:, one])
            baseline = p[:, one] * nll[:, one]
            for other in rest:
                left = [index for index in rest if index != other]
                ratio = set_probability(p[:, left], p[:, one] + p[:, other]) / without
                baseline = baseline + p[:, other] * ratio * nll[:, other]
            result = result + p_live[:, one] * (without / whole * (nll[:, one] - baseline))
        return result.sum()

    return loss


ESTIMATORS: dict[str, tuple[int | None, Loss]] = {
    "greedy_baseline": (2, with_greedy_baseline),
    "leave_one_out_2": (2, with_leave_one_out(2)),
    "label_marginal": (2, with_label_marginal),
    "unordered_set_2": (2, unordered_set(2)),
    "truncated_marginalisation_2": (2, truncated_marginalisation(2)),
    "multi_sample_2": (2, with_multi_sample(2)),
    "leave_one_out_4": (4, with_leave_one_out(4)),
    "unordered_set_4": (4, unordered_set(4)),
    "truncated_marginalisation_4": (4, truncated_marginalisation(4)),
    "multi_sample_4": (4, with_multi_sample(4)),
    "leave_one_out_32": (32, with_leave_one_out(32)),
    "multi_sample_32": (32, with_multi_sample(32)),
    "truncated_marginalisation_32": (32, truncated_marginalisation(32)),
    # These show the classifier a mixture of all items: one evaluation, but of the whole history.
    "straight_through": (None, straight_through),
    "gumbel_softmax_0.5": (None, gumbel_softmax(0.5)),
}


def gradient(setting: Setting, loss: Loss, generator: Generator) -> Tensor:
    queries = setting.queries.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(setting, setting.logits(queries), generator), queries)
    return found


def measure(setting: Setting, loss: Loss, repeats: int, generator: Generator) -> tuple[float, float]:
    """Relative variance and relative squared bias; the bias is corrected for what variance alone would leave."""
    truth = gradient(setting, exact, generator)
    estimates = torch.stack([gradient(setting, loss, generator) for _ in range(repeats)]).double()
    size = truth.double().square().sum()
    variance = estimates.var(0).sum() / size
    bias = (estimates.mean(0) - truth).square().sum() / size - variance / repeats
    return float(variance), float(bias.clamp(min=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--needle-probability", type=float, nargs="+", default=[0.02, 0.62])
    arguments = parser.parse_args()
    results: dict[str, dict[str, object]] = {}
    for name, (evaluations, _) in ESTIMATORS.items():
        results[name] = {"evaluations": evaluations, "relative_variance": {}, "relative_bias": {}}
    for probability in arguments.needle_probability:
        generator = torch.Generator().manual_seed(0)
        setting = Setting(arguments.items, arguments.batch, probability, generator)
        print(f"K = {arguments.items}, p(needle) = {probability}", flush=True)
        for name, (evaluations, loss) in ESTIMATORS.items():
            variance, bias = measure(setting, loss, arguments.repeats, generator)
            for key, value in (("relative_variance", variance), ("relative_bias", bias)):
                entry = results[name][key]
                assert isinstance(entry, dict)
                entry[str(probability)] = value
            shown = "all" if evaluations is None else evaluations
            print(f"  {name:28} evaluations {shown:>3}  variance {variance:10.4f}  bias {bias:10.4f}", flush=True)
    print(json.dumps({"items": arguments.items, "batch": arguments.batch, "estimators": results}))


if __name__ == "__main__":
    main()
