"""One training step, to be read beside Algorithm 1 of the paper: query, select, fetch, classify, estimate.

Knows no optimiser and no loop. All randomness of a step comes from one generator.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor, nn

from recollect.config import Dropouts, StepSettings, chains_for
from recollect.errors import SettingError
from recollect.model.system import RetrievalSystem
from recollect.records import Answer, Items
from recollect.retrieval.estimators import greedy_baseline, label_marginal, leave_one_out, multi_sample
from recollect.retrieval.gradients import Retrieval, Selection, entropy, log_normaliser, retrieve
from recollect.retrieval.masses import last_slot_label_mass
from recollect.training.batches import Batch
from recollect.training.showing import Showing, draw_showing

KEEP_LOGITS_BYTES = 128 << 20
"""In training, logits of small histories are kept rather than multiplied again for every slot."""

IMPOSSIBLE = -10.0
"""What a class counts that can't be answered, as rehearsal makes them: not so little that it drowns all other
differences between chains."""


@dataclass(frozen=True)
class Moment:
    """What of the schedules holds at a step."""

    temperature: float = 1.0
    entropy_bonus: float = 0.0


class StepResult(NamedTuple):
    """The loss to differentiate, and what a person wants to see of the step."""

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    entropy: Float[Tensor, ""]
    age: Float[Tensor, ""]


class Objective(nn.Module):
    """A system and the settings it is trained with; calling it is one step of Algorithm 1 up to the gradient."""

    def __init__(
        self,
        system: RetrievalSystem,
        settings: StepSettings,
        num_classes: int,
        *,
        retrieve_labels_only: bool = False,
        ages: bool = False,
    ) -> None:
        super().__init__()
        check(settings, retrieve_labels_only, ages)
        self.system, self.settings, self.num_classes = system, settings, num_classes
        self.features, self.ages = not retrieve_labels_only, ages
        self.chains = chains_for(settings, system.num_retrieved)

    def forward(self, take: Callable[[], tuple[Batch, Moment]], generator: Generator) -> StepResult:
        """The batch comes in a closure: Fabric would convert every tensor it sees to the precision of the weights,
        times among them, and decades in half precision are a blur."""
        batch, moment = take()
        settings, system, inputs = self.settings, self.system, batch.inputs
        state = system.encode(inputs.features)
        if system.num_retrieved == 0:
            return self._without_context(batch, state)
        if batch.selected is not None:
            return self._with_selected(batch, batch.selected, state, generator, self.settings)
        # Compute query vectors (the keys were computed once and are cached).
        queries = system.queries(state, inputs.own_keys).float()
        # Sample items by learned relevance without replacement; select greedily too where that is the baseline.
        shape = (queries.shape[0], self.chains, queries.shape[1])
        with in_float32(queries):
            found = retrieve(
                queries,
                inputs.keys,
                inputs.visible,
                temperature=moment.temperature,
                uniforms=torch.rand(shape, generator=generator, dtype=torch.float64, device=queries.device),
                with_greedy=settings.estimator == "greedy_baseline",
                keep_bytes=KEEP_LOGITS_BYTES,
            )
        sampled = found.sampled(centred=settings.estimator == "leave_one_out")
        # Load the selected items; drift is rehearsed on their labels once they are here.
        showing = self._draw_showing(batch, sampled.filled[:, 0], generator, settings)
        targets, items = showing.targets(batch), showing.items(batch, sampled.positions)
        nll = nll_of(system.classify(state, items, showing.keep_input), targets)
        # The surrogate's gradient, added to the classifier's own, estimates that of the expected nll.
        log_p = sampled.log_p.sum(2)
        if settings.estimator == "leave_one_out":
            per_input = leave_one_out(nll, log_p)
        elif settings.estimator == "multi_sample":
            per_input = multi_sample(nll, log_p)
        elif settings.estimator == "greedy_baseline":
            best = showing.items(batch, found.greedy().positions)
            nll_greedy = nll_of(system.classify(state, best, showing.keep_input), targets)
            per_input = greedy_baseline(nll, nll_greedy, log_p, settings.pathwise)
        else:
            per_input = self._label_marginal(batch, found, sampled, items, targets, showing, state)
        with in_float32(queries):
            loss = per_input.mean() + self._terms(batch, found, sampled, queries, moment)
        return StepResult(loss, nll.detach().mean(), *_watched(sampled, items))

    @torch.no_grad()
    def validate(self, batch: Batch, generator: Generator, *, rehearsed: bool) -> Float[Tensor, ""]:
        """nll of greedy prediction with nothing dropped, as it is or with every input's drift rehearsed."""
        system, inputs = self.system, batch.inputs
        state = system.encode(inputs.features)
        if system.num_retrieved == 0:
            return self._without_context(batch, state).nll
        rehearsal = self.settings.rehearsal
        if rehearsed:
            rehearsal = replace(rehearsal, probability=1.0, trusting=0.0)
        else:
            rehearsal = replace(rehearsal, probability=0.0, trusting=1.0 if rehearsal.trusting else 0.0)
        still = replace(self.settings, dropouts=Dropouts(), rehearsal=rehearsal)
        selected = batch.selected
        if selected is None:
            queries = system.queries(state, inputs.own_keys)
            found = retrieve(queries, inputs.keys, inputs.visible, temperature=1.0, keep_bytes=KEEP_LOGITS_BYTES)
            selected = found.greedy().positions[:, 0]
        return self._with_selected(batch, selected, state, generator, still).nll

    def _with_selected(
        self,
        batch: Batch,
        selected: Int[Tensor, "batch retrieved"],
        state: Float[Tensor, "batch ..."],
        generator: Generator,
        settings: StepSettings,
    ) -> StepResult:
        """The nll with these items in the slots; nothing is drawn, so the queries have no part in it."""
        showing = self._draw_showing(batch, selected >= 0, generator, settings)
        items = showing.items(batch, selected.unsqueeze(1))
        nll = nll_of(self.system.classify(state, items, showing.keep_input), showing.targets(batch))
        zero = torch.zeros_like(nll.mean()).detach()
        age = zero if items.ages is None else mean_age(items.ages, items.filled)
        return StepResult(nll.mean(), nll.detach().mean(), zero, age)

    def _without_context(self, batch: Batch, state: Tensor) -> StepResult:
        """The plain classifier: one empty chain, and nothing to select."""
        size = batch.targets.shape[0]
        nothing = Items(torch.zeros(size, 1, 0, dtype=torch.bool, device=state.device), {})
        keep = torch.ones(size, dtype=torch.bool, device=state.device)
        nll = nll_of(self.system.classify(state, nothing, keep), batch.targets)
        zero = torch.zeros((), device=state.device)
        return StepResult(nll.mean(), nll.detach().mean(), zero, zero)

    def _draw_showing(
        self, batch: Batch, filled: Bool[Tensor, "batch retrieved"], generator: Generator, settings: StepSettings
    ) -> Showing:
        return draw_showing(
            batch,
            filled,
            settings.dropouts,
            settings.rehearsal,
            self.num_classes,
            generator,
            features=self.features,
            ages=self.ages,
        )

    def _label_marginal(
        self,
        batch: Batch,
        found: Retrieval,
        sampled: Selection,
        items: Items,
        targets: Int[Tensor, " batch"],
        showing: Showing,
        state: Tensor,
    ) -> Float[Tensor, " batch"]:
        """The last slot summed over its labels: one classification per label, none sampled."""
        assert found.sampled_chains is not None
        assert items.labels is not None
        num_labels = self.num_classes + 1  # one more for a class that only rehearsal knows
        labels = showing.labels_of_all(batch).clamp(max=self.num_classes)
        with in_float32(found.queries):
            mass = last_slot_label_mass(found.queries, found.scores, found.sampled_chains, labels, num_labels)
        nll_by_label = []
        for label in [*range(num_labels), None]:  # None: nothing was left for the last slot
            shown = torch.zeros_like(items.filled[:, :, -1:]) if label is None else ~showing.dropped[:, None, -1:]
            filled = torch.cat([items.filled[:, :, :-1], shown.expand(-1, items.filled.shape[1], -1)], dim=2)
            last = torch.full_like(items.labels[:, :, -1:], label or 0)
            guess = Items(filled, {}, torch.cat([items.labels[:, :, :-1], last], dim=2), wary=showing.wary.unsqueeze(1))
            nll_by_label.append(nll_of(self.system.classify(state, guess, showing.keep_input), targets))
        nothing_left = (~sampled.filled[:, :, -1:]).float()
        return label_marginal(
            torch.stack(nll_by_label, dim=2),
            torch.cat([mass, nothing_left], dim=2),
            sampled.log_p[:, :, :-1].sum(2),
        )

    def _terms(
        self, batch: Batch, found: Retrieval, sampled: Selection, queries: Tensor, moment: Moment
    ) -> Float[Tensor, ""]:
        """The paper's three terms that shape the queries directly."""
        settings, total = self.settings, queries.new_zeros(())
        if moment.entropy_bonus > 0:
            total = total - moment.entropy_bonus * entropy(queries, found.scores).mean()
        if settings.diversity_weight > 0:
            total = total + settings.diversity_weight * mass_on_others_picks(queries, found, sampled)
        if settings.similarity_weight > 0:
            own_keys = batch.inputs.own_keys
            plain = queries[:, :, : own_keys.shape[1]]
            likeness = F.cosine_similarity(plain, own_keys.unsqueeze(1), dim=-1)
            total = total - settings.similarity_weight * likeness.mean()
        return total


def in_float32(queries: Float[Tensor, "batch retrieved key_dim"]) -> torch.autocast:
    """Retrieval multiplies in float32 whatever the networks do: half precision would blur what is nearly equal."""
    return torch.autocast(queries.device.type, enabled=False)


def nll_of(answer: Answer, targets: Int[Tensor, " batch"]) -> Float[Tensor, "batch chains"]:
    """Negative log-likelihood of the targets; a class that the answer doesn't reach is as good as impossible."""
    missing = int(targets.max()) + 1 - answer.log_probs.shape[2]
    log_probs = F.pad(answer.log_probs, (0, max(0, missing)), value=-torch.inf)
    log_probs = log_probs.masked_fill(log_probs == -torch.inf, IMPOSSIBLE)
    index = targets[:, None, None].expand(-1, log_probs.shape[1], 1)
    return -log_probs.gather(2, index).squeeze(2)


def mass_on_others_picks(
    queries: Float[Tensor, "batch retrieved key_dim"], found: Retrieval, sampled: Selection
) -> Float[Tensor, ""]:
    """Mean probability that a query gives to the items picked by the other queries of its chain."""
    positions = sampled.positions
    retrieved = positions.shape[2]
    keys = found.scores.keys.at(positions.clamp(min=0).flatten(1)).unflatten(1, positions.shape[1:])
    # What stands in for an empty slot may be hidden from the input: erased, since a weight of 0 stops no NaN.
    keys = keys.masked_fill(~sampled.filled.unsqueeze(-1), 0.0)
    logits = torch.einsum("bqd,bcpd->bcqp", queries, keys) * found.scores.scale
    same = torch.eye(retrieved, dtype=torch.bool, device=queries.device)
    there = sampled.filled.unsqueeze(2) & ~same
    log_p = logits - log_normaliser(queries, found.scores)[:, None, :, None]
    return log_p.masked_fill(~there, -torch.inf).exp().sum() / there.sum().clamp(min=1)


def _watched(sampled: Selection, items: Items) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Entropy of retrieval, estimated by the mean of -log p over what was drawn, and the mean age of what is shown."""
    surprise = -sampled.log_p.detach().sum() / sampled.filled.sum().clamp(min=1)
    if items.ages is None:
        return surprise, torch.zeros_like(surprise)
    return surprise, mean_age(items.ages, items.filled)


def mean_age(
    ages: Float[Tensor, "batch chains retrieved"], filled: Bool[Tensor, "batch chains retrieved"]
) -> Float[Tensor, ""]:
    return ages.masked_fill(~filled, 0.0).sum() / filled.sum().clamp(min=1)


def check(settings: StepSettings, labels_only: bool, ages: bool) -> None:
    """Refuse settings that can't be estimated as asked."""
    if settings.estimator in ("leave_one_out", "multi_sample") and settings.samples == 1:
        raise SettingError(
            f"{settings.estimator} compares chains with each other, but samples is {settings.samples}: "
            "set it to 2 or more"
        )
    if settings.estimator == "label_marginal" and (ages or not labels_only):
        raise SettingError(
            "label_marginal sums over bare labels, but items come with features or ages: set "
            'retrieve = "labels" and ages = False, or use estimator "leave_one_out"'
        )
