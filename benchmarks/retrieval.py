"""Time and memory of one retrieval step, forward and backward, beside the plain dense version and the bare product.

    python benchmarks/retrieval.py [--paper-scale]

Prints progress, and one JSON object as its last line. Times are the least of several repeats (one for the dense
version), taken in turns so that a busy moment of the machine falls on all alike; compiling is done before.
`extra_bytes` is the peak of a process's anonymous memory (RssAnon: what it allocated, without mapped files) above what
it held when the inputs were ready, sampled every two milliseconds; each variant has a process of its own, so that none
profits from memory that another has freed.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from recollect.records import Visible
from recollect.reproduction.peak import peak_extra_bytes, run_apart
from recollect.retrieval.gradients import retrieve
from recollect.retrieval.scoring import SharedKeys, score

PAPER_ITEMS, PAPER_BATCH, PAPER_RETRIEVED = 1_900_000, 1024, 4


@dataclass(frozen=True)
class Size:
    items: int
    batch: int
    retrieved: int
    key_dim: int
    compiled: bool


@dataclass(frozen=True)
class Inputs:
    queries: Tensor
    keys: Tensor
    visible: Visible
    uniforms: Tensor
    compiled: bool


Step = Callable[[Inputs], Tensor]


def inputs_of(size: Size) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    return Inputs(
        torch.randn(size.batch, size.retrieved, size.key_dim, generator=generator).requires_grad_(),
        torch.randn(size.items, size.key_dim, generator=generator),
        Visible(torch.zeros(size.batch, dtype=torch.int64), torch.full((size.batch,), size.items)),
        torch.rand(size.batch, 1, size.retrieved, generator=generator, dtype=torch.float64),
        size.compiled,
    )


def dense(inputs: Inputs) -> Tensor:
    """The paper's Algorithm 1 as it stands: batch x items logits for every slot; returns log p of the sample."""
    positions = torch.arange(inputs.keys.shape[0])
    start, stop = inputs.visible.start.unsqueeze(1), inputs.visible.stop.unsqueeze(1)
    unseen = (positions < start) | (positions >= stop)
    gone_sampled, gone_greedy, log_p = unseen, unseen.clone(), []
    for slot in range(inputs.queries.shape[1]):
        logits = inputs.queries[:, slot] @ inputs.keys.T / math.sqrt(inputs.keys.shape[1])
        log_probs = logits.masked_fill(gone_sampled, -torch.inf).log_softmax(1)
        sampled = torch.multinomial(log_probs.detach().exp(), 1)
        greedy = logits.detach().masked_fill(gone_greedy, -torch.inf).argmax(1, keepdim=True)
        log_p.append(log_probs.gather(1, sampled))
        # A new mask each time: the old one is needed for the gradient.
        gone_sampled, gone_greedy = gone_sampled.scatter(1, sampled, True), gone_greedy.scatter(1, greedy, True)
    return torch.cat(log_p, dim=1)


def ours(inputs: Inputs) -> Tensor:
    """The same sample and greedy chain from blocks; returns log p of the sample."""
    found = retrieve(
        inputs.queries,
        SharedKeys(inputs.keys),
        inputs.visible,
        temperature=1.0,
        uniforms=inputs.uniforms,
        compiled=inputs.compiled,
    )
    return found.sampled().log_p


def product(inputs: Inputs) -> None:
    """The bare product of all queries and keys, tile by tile into one buffer: what no exact method can do without."""
    rows = inputs.queries.detach().flatten(0, 1)
    tiles = score(inputs.queries, SharedKeys(inputs.keys), inputs.visible, temperature=1.0).tiles()
    buffer = rows.new_empty(rows.shape[0], tiles[0][1] - tiles[0][0])
    for start, stop in tiles:
        keys = inputs.keys[start:stop]
        torch.mm(rows, keys.T, out=buffer if keys.shape[0] == buffer.shape[1] else None)


VARIANTS: dict[str, Step] = {"dense": dense, "ours": ours}


def warm_up(variant: str, size: Size) -> None:
    """Compile and load whatever is compiled and loaded once, on a few tiles of the size that will be used."""
    VARIANTS[variant](inputs_of(replace(size, items=min(size.items, 5000)))).sum().backward()


# Time


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def forward_and_backward(step: Step, inputs: Inputs) -> tuple[float, float]:
    inputs.queries.grad = None
    results: list[Tensor] = []
    forward = seconds(lambda: results.append(step(inputs)))
    return forward, seconds(lambda: results[0].sum().backward())


def least(times: list[tuple[float, float]]) -> tuple[float, float]:
    """The least of each, rounded to what a clock on a shared machine can tell."""
    return round(min(one for one, _ in times), 4), round(min(two for _, two in times), 4)


# Memory


def measure(variant: str, size: Size) -> dict[str, float]:
    """Time and memory of one step of one variant; meant for a fresh process."""
    warm_up(variant, size)
    inputs = inputs_of(size)
    with peak_extra_bytes() as peak:
        forward, backward = forward_and_backward(VARIANTS[variant], inputs)
    return {"forward_s": round(forward, 4), "backward_s": round(backward, 4), "extra_bytes": peak.bytes}


def measure_apart(variant: str, size: Size) -> dict[str, float]:
    """`measure` in a fresh process; what it prints last is the result."""
    sizes = {name: value for name, value in asdict(size).items() if name != "compiled"}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    command = [__file__, f"--measure={variant}", *arguments, *(["--compiled"] if size.compiled else [])]
    result = run_apart(command, gives_back=False)
    return {name: result[name] for name in ("forward_s", "backward_s", "extra_bytes")}


# The run


def compare(size: Size, repeats: int) -> dict[str, float]:
    inputs = inputs_of(size)
    print(f"{size}, {torch.get_num_threads()} threads", flush=True)
    warm_up("ours", size)
    product_times, our_times = [], []
    for repeat in range(repeats):
        product_times.append((seconds(lambda: product(inputs)), 0.0))
        our_times.append(forward_and_backward(ours, inputs))
        times = f"product {product_times[-1][0]:.3f} s, ours {our_times[-1][0]:.3f} + {our_times[-1][1]:.3f} s"
        print(f"repeat {repeat + 1} of {repeats}: {times}", flush=True)
    result: dict[str, float] = {"product_s": least(product_times)[0]}
    for variant, times_taken in (("dense", []), ("ours", our_times)):
        apart = measure_apart(variant, size)
        print(f"{variant} in a process of its own: {apart}", flush=True)
        times_taken.append((apart["forward_s"], apart["backward_s"]))
        result[f"{variant}_forward_s"], result[f"{variant}_backward_s"] = least(times_taken)
        result[f"{variant}_extra_bytes"] = apart["extra_bytes"]
    return {**result, **ratios(result)}


def ratios(result: dict[str, float]) -> dict[str, float]:
    """What the aims are stated in: at least 10, at least 30, at most 2."""
    dense_s, ours_s = (result[f"{name}_forward_s"] + result[f"{name}_backward_s"] for name in ("dense", "ours"))
    return {
        "times_faster_than_dense": round(dense_s / ours_s, 2),
        "times_less_memory_than_dense": round(result["dense_extra_bytes"] / max(1, result["ours_extra_bytes"]), 2),
        "forward_over_product": round(result["ours_forward_s"] / result["product_s"], 3),
        "forward_and_backward_over_product": round(ours_s / result["product_s"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--retrieved", type=int, default=4)
    parser.add_argument("--key-dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--paper-scale", action="store_true", help="also K=1.9M, batch 1024: the paper's largest")
    parser.add_argument("--compiled", action="store_true", help="compile what can be; needs a C++ compiler")
    parser.add_argument("--measure", choices=sorted(VARIANTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = Size(arguments.items, arguments.batch, arguments.retrieved, arguments.key_dim, arguments.compiled)
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, size)))
        return
    result: dict[str, object] = {**asdict(size), "threads": torch.get_num_threads()}
    result.update(compare(size, arguments.repeats))
    if arguments.paper_scale:
        print("the paper's scale", flush=True)
        large = measure_apart("ours", replace(size, items=PAPER_ITEMS, batch=PAPER_BATCH, retrieved=PAPER_RETRIEVED))
        result.update({f"paper_scale_{name}": value for name, value in large.items()})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
