"""All the ways a model can answer, side by side, and how much each of them counts.

The network answers without its precedents, trusting them, and wary of them; trees answer without any; labels of near
items answer by a vote and by correcting what network and trees say together, and so do regressions and trees over the
newest items; a pool makes one answer of all these, and so do two pools that are fitted anew to the newest items. The
hedge weighs these heads by what each would have said of items whose labels are known by now. Nothing here learns: all
follows from the model and the visible history alone, so it replays exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from recollect.answering.item_record import ItemRecord
from recollect.answering.newest import Untrained
from recollect.answering.pools import Pools
from recollect.answering.regressions import Regressions
from recollect.answering.regrown import Regrown
from recollect.history.visibility import Window
from recollect.inputs import Inputs, Lookup
from recollect.model.neighbours import corrected, kernel, nearest, vote, with_new_classes
from recollect.model.pool import even, frozen
from recollect.model.trees import together
from recollect.predictor import TILE_ROWS, Predictor, repeated
from recollect.records import TERMS, Visible

HEADS = (
    "no_context",
    "trees",
    "trusting",
    "wary",
    "vote",
    "corrected_recent",
    "corrected",
    "regression_recent",
    "regression",
    "regrown_recent",
    "regrown",
    "pooled",
    "repooled_recent",
    "repooled",
)
POOLED = HEADS.index("pooled")
"""How many heads the pools make one answer of: all before them."""

WITHOUT_A_RECORD = "wary"
"""The head that answers where nothing is known yet of how the heads did."""

NEIGHBOURS = 32
CORRECTING = 64
RECENT = Window(items=1024)
LONG = Window(items=8192)
NEWEST = (1024, 4096)
"""How many of the newest items those heads look back on that are fitted anew as labels come: regressions, trees and
pools."""

FEW_TERMS = 16
"""More terms a row, as texts have, only the longer regression reads: a fit takes some tenths of a second."""


@dataclass(frozen=True)
class HeadAnswers:
    """What every head says, and the items not trained on that are near each input: by how the heads did on these, and
    on all that came before, their answers are weighed. `precedents` are those the network was shown, -1 for none, with
    the wary head's attention on each."""

    log_probs: Float[Tensor, "batch heads classes"]
    near: Int[Tensor, "batch near"]
    closeness: Float[Tensor, "batch near"]
    precedents: Int[Tensor, "batch retrieved"]
    attention: Float[Tensor, "batch retrieved"]

    @staticmethod
    def joined(parts: Sequence["HeadAnswers"]) -> "HeadAnswers":
        """One below the other; a part that met no new class says of it that it is impossible."""
        classes = max(part.log_probs.shape[2] for part in parts)
        padded = [F.pad(part.log_probs, (0, classes - part.log_probs.shape[2]), value=-torch.inf) for part in parts]
        others = [torch.cat([getattr(part, field.name) for part in parts]) for field in fields(HeadAnswers)[1:]]
        return HeadAnswers(torch.cat(padded), *others)

    def take(self, rows: slice | Int[Tensor, " _"]) -> "HeadAnswers":
        return HeadAnswers(*(getattr(self, field.name)[rows] for field in fields(self)))

    def of_heads(self, names: Sequence[str]) -> Float[Tensor, "batch _ classes"]:
        """What some of the heads say, in the order asked for."""
        return self.log_probs[:, places_of(names)]


def places_of(names: Sequence[str]) -> list[int]:
    return [HEADS.index(name) for name in names]


@dataclass(frozen=True)
class Heads:
    """The heads of one model over one view of a history.

    Of `record` they ask what network and trees say together of items without context, and what the heads said of them.
    `untrained_from` is the first position that network and trees were not trained on: only from there on do these
    answers tell how far to correct others.
    """

    predictor: Predictor
    lookup: Lookup
    record: ItemRecord
    untrained_from: int
    regressions: Regressions
    regrown: Regrown
    pools: Pools

    @torch.no_grad()
    def answers(self, inputs: Inputs) -> HeadAnswers:
        """What the heads up to the first pool say of some inputs; at least one. The others are `repooled`."""
        tiles = [self._tile(inputs.take(index), different) for index, different in _tiles(len(inputs))]
        return HeadAnswers.joined(tiles).take(slice(len(inputs)))

    @torch.no_grad()
    def repooled(self, said: HeadAnswers, visible: Visible) -> HeadAnswers:
        """The same answers, with those of the pools that are fitted anew to items that each input may see."""
        tiles = [self._repooled_tile(said.take(index), visible.take(index)) for index, _ in _tiles(len(said.near))]
        return HeadAnswers.joined(tiles).take(slice(len(said.near)))

    def _repooled_tile(self, said: HeadAnswers, visible: Visible) -> HeadAnswers:
        known, untrained = self.record.plain.shape[1], Untrained(self.lookup.view, self.untrained_from)
        others, first_pool = said.log_probs[:, :POOLED, :known], said.log_probs[:, POOLED]
        # What the first pool leaves to classes that no training knew, the others leave as well.
        rest = first_pool[:, :known].logsumexp(1, keepdim=True)
        found = [first_pool]
        for window in NEWEST:
            by_all = self.pools.answers(others, self._pool_weights, visible, window, untrained, self.record.told)
            found.append(torch.cat([by_all + rest, first_pool[:, known:]], dim=1))
        return replace(said, log_probs=torch.cat([said.log_probs[:, :POOLED], torch.stack(found, dim=1)], dim=1))

    @property
    def _pool_weights(self) -> Float[Tensor, " heads"]:
        return even(POOLED) if self.predictor.pool is None else self.predictor.pool

    def _tile(self, inputs: Inputs, different: int) -> HeadAnswers:
        """Answers to a tile of which the first `different` rows are asked for."""
        system = self.predictor.system
        state = system.encode(inputs.features)
        everyone = torch.ones(len(inputs), dtype=torch.bool, device=inputs.rows.device)
        shown_positions, _ = self.predictor.select(state, inputs, different, with_probability=False)
        items, _ = inputs.show(shown_positions, features=self.predictor.retrieve == "items", ages=self.predictor.ages)
        # In one call: most of the time of a few inputs goes into calling, not into computing.
        of_ways = system.classify(state, items.in_ways([(False, False), (True, False), (True, True)]), everyone)
        known = self.record.plain.shape[1]
        no_context, *with_context = of_ways.log_probs.unbind(1)
        attention = None if of_ways.weights is None else of_ways.weights[:, 2]
        by_trees = self.predictor.by_trees(inputs.features, no_context[:, :known])
        said = [no_context, by_trees, *with_context]
        plain = together(no_context[:, :known], by_trees)
        seen, recent = within(inputs.visible, LONG), within(inputs.visible, RECENT)
        untrained = self._untrained(seen)
        found = [self._nearest(inputs, each, CORRECTING, different) for each in (self._untrained(recent), untrained)]
        if torch.equal(untrained.start, seen.start):
            # What was trained on is long past: those who vote are among those who correct.
            near = found[1][0][:, :NEIGHBOURS]
            closeness = kernel(inputs.own_keys, inputs.keys, near)
        else:
            near, closeness = self._nearest(inputs, seen, NEIGHBOURS, different)
        by_neighbours = [(vote(self._labels(near), closeness, known), near, closeness)]
        near, closeness = (torch.cat(parts) for parts in zip(*found, strict=True))
        both = corrected(torch.cat([plain] * 2), self._plain_at(near), self._labels(near), closeness)
        by_neighbours += zip(both.chunk(2), near.chunk(2), closeness.chunk(2), strict=True)
        renewed = [self._regression(inputs, plain, items) for items in NEWEST]
        renewed += [self._regrown(inputs, plain, items) for items in NEWEST]
        met = [int(self._labels(near).masked_fill(near < 0, 0).max()) + 1 for _, near, _ in by_neighbours]
        classes = max(known, *met, *(answer.shape[1] for answer in said), *(found.shape[1] for found, _ in renewed))
        said = [F.pad(answer, (0, classes - answer.shape[1]), value=-torch.inf) for answer in said]
        for answer, near, closeness in by_neighbours:
            said.append(with_new_classes(answer, self._labels(near), closeness, classes))
        for answer, told in renewed:
            # Of classes that a fit did not meet the nearest tell, here too.
            said.append(_with_untold(answer, told, self._labels(near), closeness, classes))
        by_all = frozen(self._pool_weights, known)(torch.stack(said, dim=1)[..., :known])
        said.append(with_new_classes(by_all, self._labels(near), closeness, classes))
        precedents = shown_positions[:, 0]
        attended = torch.zeros(precedents.shape) if attention is None else attention
        return HeadAnswers(torch.stack(said, dim=1), near, closeness, precedents, attended)

    def _regression(
        self, inputs: Inputs, plain: Float[Tensor, "batch classes"], window: int
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        untrained = Untrained(self.lookup.view, self.untrained_from)
        terms = inputs.features[TERMS] if TERMS in self.lookup.of_inputs else None
        if terms is not None and window < max(NEWEST) and terms.shape[1] > FEW_TERMS:
            terms = None
        return self.regressions.answers(
            inputs.own_keys, plain, inputs.visible, window, untrained, self.record.plain, terms
        )

    def _regrown(
        self, inputs: Inputs, plain: Float[Tensor, "batch classes"], window: int
    ) -> tuple[Float[Tensor, "batch _"], Int[Tensor, " batch"]]:
        untrained, specs = Untrained(self.lookup.view, self.untrained_from), self.predictor.specs
        return self.regrown.answers(inputs.features, specs, plain, inputs.visible, window, untrained, self.record.plain)

    def _untrained(self, visible: Visible) -> Visible:
        return replace(visible, start=visible.start.clamp(min=self.untrained_from).minimum(visible.stop))

    def _nearest(
        self, inputs: Inputs, visible: Visible, count: int, different: int
    ) -> tuple[Int[Tensor, "batch neighbours"], Float[Tensor, "batch neighbours"]]:
        rows = slice(0, different)
        positions, closeness = nearest(inputs.own_keys[rows], inputs.keys, visible.take(rows), count)
        return repeated(positions, len(inputs)), repeated(closeness, len(inputs))

    def _plain_at(self, positions: Int[Tensor, "batch neighbours"]) -> Float[Tensor, "batch neighbours classes"]:
        """Where there is no item, what was said of some other; nothing where there is none at all."""
        if len(self.record.plain) == 0:
            return torch.zeros(*positions.shape, self.record.plain.shape[1])
        return torch.nan_to_num(self.record.plain[self.lookup.view.at("row", positions)])

    def _labels(self, positions: Int[Tensor, "batch neighbours"]) -> Int[Tensor, "batch neighbours"]:
        return self.lookup.view.at("label", positions)


def _tiles(count: int) -> Iterator[tuple[Int[Tensor, " tile"], int]]:
    """Rows by tiles of one size, so that an answer's bits don't depend on its company, and how many of a tile are asked
    for: the last row fills the rest."""
    for first in range(0, count, TILE_ROWS):
        yield torch.arange(first, first + TILE_ROWS).clamp(max=count - 1), min(TILE_ROWS, count - first)


def _with_untold(
    answer: Float[Tensor, "batch _"],
    told: Int[Tensor, " batch"],
    labels: Int[Tensor, "batch neighbours"],
    closeness: Float[Tensor, "batch neighbours"],
    classes: int,
) -> Float[Tensor, "batch _"]:
    """`with_new_classes`, of answers that each tell of a number of classes of their own."""
    found = answer.new_full((len(answer), classes), -torch.inf)
    for known in told.unique().tolist():
        widened = with_new_classes(answer[:, :known], labels, closeness, classes)
        found = torch.where((told == known).unsqueeze(1), widened, found)
    return found


def within(visible: Visible, window: Window) -> Visible:
    """No more than the last so many items of what is visible already; the tail, which is small, stays."""
    assert window.items is not None
    return replace(visible, start=visible.start.maximum(visible.stop - window.items))
