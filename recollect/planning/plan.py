"""Peak memory of training, predicted: what is held throughout, and what each phase of a step adds to it.

Phases follow each other, so the peak is what is held plus the largest of them. Sizes are those of the tensors, which
are the same on every device; what the allocator keeps of freed memory is not in them.
"""

from dataclasses import dataclass, replace
from typing import Literal

from recollect.planning.model import FLOAT, model_terms
from recollect.planning.retrieval import RetrievalTerms, blocked, dense
from recollect.planning.sizes import BYTES, Sizes

Method = Literal["ours", "dense", "dense_kept"]
METHODS: tuple[Method, ...] = ("ours", "dense", "dense_kept")

RUNTIME_BYTES = 240_000_000
"""Python and torch before there is any data: anonymous memory of a process that has trained one tiny step, 233 MB with
torch 2.13 on a CPU, 249 to 259 MB where the allocator is left alone (`runtime_bytes` of benchmarks/memory.py)."""

COLUMN_BYTES = 4 * 8 + 2 * 4 + 8 + 8
"""Per item beside its key: label, time, known_at and stored row; recency and norm; its time by the model's clock; and
its position in the list of training inputs."""


@dataclass(frozen=True)
class Phase:
    """One phase of a step, and the bytes that only it needs."""

    name: str
    terms: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.terms.values())


@dataclass(frozen=True)
class Plan:
    """Peak memory with one way to retrieve."""

    held: dict[str, int]
    phases: tuple[Phase, ...]

    @property
    def peak_phase(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def above_runtime(self) -> int:
        """What data and model need."""
        return sum(self.held.values()) + self.peak_phase.total

    @property
    def total(self) -> int:
        return RUNTIME_BYTES + self.above_runtime


def predict(sizes: Sizes, method: Method = "ours") -> Plan:
    """`dense` is the paper's equation; `dense_kept` the same where plain autograd keeps every slot for its backward."""
    phases = _training(sizes, method) + (_validation(sizes, method) if sizes.validation else ())
    return Plan(_held(sizes), phases)


def num_parameters(sizes: Sizes) -> int:
    return model_terms(sizes).parameters if sizes.parameters is None else sizes.parameters


def _held(sizes: Sizes) -> dict[str, int]:
    model = model_terms(sizes)
    best = 1 if sizes.validation else 0  # the best weights so far
    # This batch, and the next one, which is read while this one computes.
    batches = 2 * sizes.batch * (sizes.feature_width + sizes.key_dim)
    return {
        "keys": sizes.items * sizes.key_dim * BYTES[sizes.key_type],
        "labels, times, places": sizes.items * COLUMN_BYTES,
        "weights, Adam": (3 + best) * FLOAT * num_parameters(sizes),
        "inputs, queries": FLOAT * (batches + model.state + model.queries),
    }


def _selecting(method: Method, retrieval: RetrievalTerms) -> dict[str, int]:
    if method == "ours":
        return {"block summary": retrieval.summary, "tiles, draws": retrieval.selecting, "kept logits": retrieval.kept}
    return {"logits, noise, mask": retrieval.selecting, "kept logits": retrieval.kept}


def _training(sizes: Sizes, method: Method) -> tuple[Phase, ...]:
    model, retrieval = model_terms(sizes), _retrieval(sizes, method)
    gradients = FLOAT * num_parameters(sizes)
    kept = {"kept logits": retrieval.kept}
    passes = "tiles, picks" if method == "ours" else "softmax, gradients, mask"

    def classifying(items: int, activations: int) -> dict[str, int]:
        return {"items": FLOAT * items, "activations": FLOAT * activations} | kept

    return (
        Phase("select", _selecting(method, retrieval)),
        Phase("read items", {"items": FLOAT * model.reading} | kept),
        Phase("classify", classifying(model.shown + model.read, model.activations + model.forward_extra)),
        Phase("classifier's gradient", classifying(model.read, model.activations + model.backward_extra)),
        Phase("retrieval's gradient", {passes: retrieval.gradient, "gradients": gradients} | kept),
        # Adam makes two temporary copies of one parameter at a time.
        Phase("update", {"gradients": gradients + 2 * FLOAT * model.largest_parameter}),
    )


def _validation(sizes: Sizes, method: Method) -> tuple[Phase, ...]:
    """Inputs of its own, no more at once than in training, one greedy chain each, and nothing kept for a gradient."""
    sizes = replace(sizes, batch=min(sizes.batch, sizes.validation), chains=1)
    model, retrieval = model_terms(sizes), blocked(sizes) if method == "ours" else dense(sizes)
    inputs = {"inputs, queries": FLOAT * (sizes.batch * (sizes.feature_width + sizes.key_dim) + model.state)}
    return (
        Phase("validate: select", _selecting(method, retrieval) | inputs),
        Phase("validate: classify", {"items": FLOAT * max(model.reading, model.shown + model.passing)} | inputs),
    )


def _retrieval(sizes: Sizes, method: Method) -> RetrievalTerms:
    return blocked(sizes) if method == "ours" else dense(sizes, keeps_slots=method == "dense_kept")
