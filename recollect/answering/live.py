"""A model over a history that grows: answers as of any moment, weighed by how the heads did on what was known by then.

An item that was not trained on is answered once, as of its own time, and its label then tells how each head did. That
depends on the model and the history alone, so a replay years later and the service of that day give the same bits.
Replay, estimator, command line and service all answer through here.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.answering.heads import HEADS, LONG, NEWEST, POOLED, WITHOUT_A_RECORD, HeadAnswers, Heads, places_of
from recollect.answering.item_record import ItemRecord
from recollect.answering.newest import RENEWALS
from recollect.answering.pools import Pools, pools_for
from recollect.answering.regressions import Regressions
from recollect.answering.regrown import Regrown
from recollect.history.key_table import KeyTable, Source
from recollect.history.visibility import Window
from recollect.inputs import Lookup
from recollect.model.hedge import adjusted, item_losses, mixed, shared_after
from recollect.predictor import Predictor
from recollect.records import Features

BLOCK = 4096
"""Weights begin anew at every so many items, from the block before: so that they follow from the last few thousand
items, and a service need not go through years to start."""

CHUNK = 512

LONG_ITEMS = LONG.items or 0
POOLS_REACH = max(NEWEST) + max(NEWEST) // RENEWALS
"""How many items before the first that counts a pool may be fitted to."""

Progress = Callable[[int, int], None]
"""Told (done, total) now and then."""


@dataclass(frozen=True)
class Answers:
    """What was answered, by each head and by all together, with the precedents the network was shown (-1 is none) and
    the wary head's attention on each."""

    log_probs: Float[Tensor, "batch classes"]
    weights: Float[Tensor, "batch heads"]
    said: HeadAnswers

    @property
    def heads(self) -> Float[Tensor, "batch heads classes"]:
        return self.said.log_probs

    @property
    def precedents(self) -> Int[Tensor, "batch retrieved"]:
        return self.said.precedents

    @property
    def attention(self) -> Float[Tensor, "batch retrieved"]:
        return self.said.attention

    def head(self, name: str) -> Float[Tensor, "batch classes"]:
        return self.heads[:, HEADS.index(name)]


@dataclass(frozen=True)
class TrainedOn:
    """The items a model was trained on, what it says of which tells nothing of it: all known before a moment, and the
    first few of those known at that very moment."""

    until: int | float
    more: int = 0

    def count(self, known_at: Shaped[Tensor, " items"]) -> int:
        """How many they are of items in order."""
        moment = torch.tensor([self.until], dtype=known_at.dtype, device=known_at.device)
        return min(int(torch.searchsorted(known_at, moment)) + self.more, len(known_at))


class Live:
    """One model and the history it follows. One thread at a time. `columns` and `of_inputs` are what a `Lookup` fetches
    of items."""

    def __init__(
        self,
        predictor: Predictor,
        table: KeyTable,
        *,
        window: Window,
        trained_on: TrainedOn,
        num_classes: int,
        columns: tuple[str, ...] | None = None,
        of_inputs: tuple[str, ...] = (),
    ) -> None:
        self.predictor, self.table, self.window = predictor, table, window
        self.columns, self.of_inputs = columns, of_inputs
        self.trained_on, self.num_classes = trained_on, num_classes
        self._weights: dict[tuple[tuple[str, ...], int], Float[Tensor, "moments heads"]] = {}
        self._regressions, self._regrown, self._pools = Regressions(), Regrown(), Pools()
        self.unscored = 0
        self._unscored_from: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._record = ItemRecord(
            classes=self.num_classes, heads=len(HEADS), pooled=POOLED if pools_for(self.num_classes) else 0
        )
        self._last_told: int | float | None = None
        self._forget_fits()

    def _forget_fits(self) -> None:
        """Of weights, regressions, trees and pools: they go by position."""
        self._weights.clear()
        self._forget_newest()

    def _forget_newest(self) -> None:
        self._regressions.forget()
        self._regrown.forget()
        self._pools.forget()

    def follow(self, source: Source) -> None:
        """See what a newer state of the history holds; nothing is computed yet."""
        old = self.table.view
        view = self.table.follow(source)
        if view is old:
            return
        if old is not None and old.source.generation != source.generation:
            self._forget()
        elif old is not None:
            in_place = view.items.row.data_ptr() == old.items.row.data_ptr()  # then old rows stand where they stood
            same = in_place or torch.equal(view.items.row[: len(old.items)], old.items.row)
            if not same or len(view.items) < len(old.items) or len(view.gone) != len(old.gone):
                self._forget_fits()  # positions moved, or items no longer count
            elif len(view.tail) != len(old.tail) or len(view.superseded) != len(old.superseded):
                self._forget_newest()
        self._record.make_room(source.num_rows)
        self.lookup = Lookup(view, window=self.window, columns=self.columns, of_inputs=self.of_inputs)
        self.untrained_from = self.trained_on.count(view.items.known_at)
        if old is not None and old.source.generation == source.generation:
            self._unscore_for(old.source.num_rows)

    def _unscore_for(self, first: int) -> None:
        """Items that would have seen the rows from `first` on, had these been there when they were known, are to be
        scored again: what came late, or corrects the past."""
        view = self.lookup.view
        known_at = view.source.column("known_at", first)
        if self._last_told is None or not len(known_at) or self._last_told <= (earliest := known_at.min().item()):
            return
        for part in (view.items, view.tail):
            self._record.unscore(part.row[part.time > earliest])
        self._forget_fits()

    @property
    def heads(self) -> Heads:
        fits = self._regressions, self._regrown, self._pools
        return Heads(self.predictor, self.lookup, self._record, self.untrained_from, *fits)

    def answer(
        self,
        features: Features,
        keys: Float[Tensor, "batch key_dim"],
        as_of: Shaped[Tensor, " batch"],
        excluded: Int[Tensor, "batch excluded"] | None = None,
        *,
        most: int | None = None,
    ) -> Answers:
        """Answers to inputs as of stored moments, less the stored rows that are excluded for each; with `most`, without
        waiting for more than so many items to be scored, as in `catch_up`."""
        few = CHUNK if most is None else most
        pending = self._pending(as_of)
        if excluded is not None or (most is None and len(pending) > few):
            self.catch_up(as_of, most=most)
            pending = pending[:0]
        else:
            self._note_left(pending[few:], as_of)
        if len(pending) and few:
            said = self._answer_and_score(features, keys, as_of, pending[:few])
        else:
            self._make_plain(self._before(as_of, LONG_ITEMS))
            inputs = self.lookup.inputs(features, keys, as_of, excluded)
            said = self.heads.repooled(self.heads.answers(inputs), inputs.visible)
        return Answers(*self.mix(said, as_of), said)

    @torch.no_grad()
    def _answer_and_score(
        self,
        features: Features,
        keys: Float[Tensor, "batch key_dim"],
        as_of: Shaped[Tensor, " batch"],
        scored: Int[Tensor, " scored"],
    ) -> HeadAnswers:
        """Inputs, and the last few items that are to be scored before them, in one pass: tiles are seldom full."""
        self._make_plain(self._before(torch.cat([as_of, self._times(scored)]), LONG_ITEMS))
        stored, view = self.lookup.features_at(scored), self.lookup.view
        inputs = self.lookup.inputs(
            {name: torch.cat([features[name], value]) for name, value in stored.items()},
            torch.cat([keys.float(), view.at("key", scored).float()]),
            torch.cat([as_of, self._times(scored)]),
        )
        said = self.heads.answers(inputs)
        self._keep_told(scored, said.log_probs[len(keys) :])
        said = self.heads.repooled(said, inputs.visible)
        self._judge(scored, said.log_probs[len(keys) :], self._first_counted(as_of))
        return said.take(slice(len(keys)))

    @torch.no_grad()
    def answer_items(self, positions: Int[Tensor, " batch"], on_progress: Progress | None = None) -> Answers:
        """Items of the history as they would have been answered at their own times, by position; at least one."""
        as_of = self._times(positions)
        others = self._untold(as_of)
        others = others[~torch.isin(others, positions)]
        if len(others):
            self._keep_told(others, self.said_of(others).log_probs)
        self._make_plain(self._before(as_of, LONG_ITEMS))
        order = self._as_known(positions)
        parts = [self._score(part) for part in _chunks(positions[order], on_progress)]
        said = HeadAnswers.joined(parts).take(order.argsort())
        self.catch_up(as_of)
        return Answers(*self.mix(said, as_of), said)

    def said_of(self, positions: Int[Tensor, " batch"]) -> HeadAnswers:
        """What the heads up to the first pool say of items as of their own times, by position; at least one. Nobody is
        judged by it."""
        self._make_plain(self._before(self._times(positions), LONG_ITEMS))
        return HeadAnswers.joined([self.heads.answers(self.lookup.inputs_at(part)) for part in positions.split(CHUNK)])

    @torch.no_grad()
    def catch_up(
        self, as_of: Shaped[Tensor, " batch"], on_progress: Progress | None = None, *, most: int | None = None
    ) -> int:
        """Answer, as of their own times, the items that weights at these moments follow from.

        With `most`, no more than so many of them, the oldest first; until the next call weights then follow from those
        before the first that is left. Returns how many are left, and `unscored` says so again.
        """
        positions = self._pending(as_of)
        now, left = (positions, positions[:0]) if most is None else (positions[:most], positions[most:])
        if len(now):
            self._make_plain(self._before(self._times(now), LONG_ITEMS))
            for part in _chunks(now, on_progress):
                self._score(part, self._first_counted(as_of))
        self._note_left(left, as_of)
        return self.unscored

    def _first_counted(self, as_of: Shaped[Tensor, " batch"]) -> int:
        return self.untrained_from + max(0, int(self._counts(as_of).min()) - max(2 * BLOCK, LONG_ITEMS))

    def _pending(self, as_of: Shaped[Tensor, " batch"]) -> Int[Tensor, " pending"]:
        """Items that weights at these moments follow from and that are not scored yet, and those before them that pools
        are fitted to and heads have not been asked of; by position, in the order in which they became known."""
        view = self.lookup.view
        stop = self.untrained_from + int(self._counts(as_of).max())
        scored = self._known_before(as_of, self._not_gone(torch.arange(self._first_counted(as_of), stop)))
        scored = scored[self._record.losses[view.at("row", scored), 0].isnan()]
        if not len(scored):
            return scored
        untold = self._known_before(as_of, self._untold(self._times(scored)))
        positions: Tensor = torch.cat([untold, scored]).unique()
        return positions[self._as_known(positions)]

    def _known_before(self, as_of: Shaped[Tensor, " batch"], positions: Int[Tensor, " _"]) -> Int[Tensor, " _"]:
        """Those of some items that were known before the last of some moments: a late one may have come after it, and
        not all is told that its pools follow from."""
        return positions[self.lookup.view.at("known_at", positions) < as_of.max()]

    def _before(self, moments: Shaped[Tensor, " moments"], reach: int) -> Int[Tensor, " items"]:
        """Positions of the last so many untrained items in order that were known before any of some moments, and of all
        late ones, that are not erased."""
        stops = self._counts(moments).unique()
        starts = (stops - reach).clamp(min=0)
        starts[1:] = starts[1:].maximum(stops[:-1])
        lengths = stops - starts
        # One range below the other: a place among all of them, less that of the first of its range.
        shifts = (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)
        return self._not_gone(self.untrained_from + torch.arange(len(shifts)) + shifts)

    def _not_gone(self, in_order: Int[Tensor, " in_order"]) -> Int[Tensor, " items"]:
        """These positions and those of late items, less what is erased."""
        view = self.lookup.view
        positions = torch.cat([in_order, torch.arange(view.tail_start, view.tail_start + len(view.tail))])
        return positions[~torch.isin(positions, view.gone)]

    def _untold(self, moments: Shaped[Tensor, " moments"]) -> Int[Tensor, " untold"]:
        """Items that pools are fitted to which hold at some moments, and that heads have not been asked of."""
        positions = self._before(moments, self._pools_reach)
        return positions[~self._record.told.there[self.lookup.view.at("row", positions)]]

    @property
    def _pools_reach(self) -> int:
        return POOLS_REACH if pools_for(self.num_classes) else 0

    def _times(self, positions: Int[Tensor, " items"]) -> Shaped[Tensor, " items"]:
        return self.lookup.view.at("time", positions)

    def _as_known(self, positions: Int[Tensor, " items"]) -> Int[Tensor, " items"]:
        """The order in which items became known: whatever a pool is fitted to comes before those it answers."""
        return self.lookup.view.at("known_at", positions).argsort(stable=True)

    def _note_left(self, left: Int[Tensor, " left"], as_of: Shaped[Tensor, " batch"]) -> None:
        """What was not asked of the heads: weights follow from what comes before the first that counts for them."""
        counting = left[(left < self.lookup.view.tail_start) & (left >= self._first_counted(as_of))]
        self._unscored_from, self.unscored = (int(counting.min()) if len(counting) else None), len(left)

    # What was computed, to be kept elsewhere

    def record(self) -> dict[str, Tensor]:
        """What was computed of the newest items by stored row: what answers as of now, and of moments soon before,
        follow from. For the same model and the same history later on, `restore` spares computing it again."""
        view, most = self.lookup.view, max(2 * BLOCK, LONG_ITEMS)
        newest = torch.arange(max(self.untrained_from, len(view.items) - 2 * most), len(view.items))
        # Where labels are late, what pools of the newest are fitted to may lie far before them.
        before = self._before(self._times(newest[-most:]), self._pools_reach)
        return self._record.of(view.at("row", torch.cat([self._not_gone(newest), before]).unique()))

    def restore(self, record: dict[str, Tensor], rows_then: int) -> None:
        """Take over a `record` of a history that had so many rows. That it is of this model and of this history is for
        the caller to know."""
        self._record.take_over(record)
        self._forget_fits()
        self._note_told(self.lookup.view.positions_of(record["told_rows"]))
        self._unscore_for(rows_then)

    def _counts(self, moments: Shaped[Tensor, " moments"]) -> Int[Tensor, " moments"]:
        """How many items in order, of those not trained on, were known strictly before each moment."""
        return (torch.searchsorted(self.lookup.view.items.known_at, moments) - self.untrained_from).clamp(min=0)

    @torch.no_grad()
    def _make_plain(self, positions: Int[Tensor, " items"]) -> None:
        """What network and trees say without context of some items."""
        view, plain = self.lookup.view, self._record.plain
        missing = plain[view.at("row", positions), :1].isnan().any(1)
        for part in positions[missing].split(CHUNK) if bool(missing.any()) else ():
            plain[view.at("row", part)] = self.predictor.plain(self.lookup.inputs_at(part))[:, : self.num_classes]

    def _score(self, positions: Int[Tensor, " batch"], judged_from: int = 0) -> HeadAnswers:
        """Ask the heads of items, and judge them by those from a position on: of what came before the first that counts
        not all is known that pools would be fitted to."""
        inputs = self.lookup.inputs_at(positions)
        answers = self.heads.answers(inputs)
        self._keep_told(positions, answers.log_probs)
        if int(positions.max()) < judged_from:
            return answers
        answers = self.heads.repooled(answers, inputs.visible)
        self._judge(positions, answers.log_probs, judged_from)
        return answers

    def _keep_told(self, positions: Int[Tensor, " batch"], log_probs: Float[Tensor, "batch heads classes"]) -> None:
        rows, told = self.lookup.view.at("row", positions), self._record.told
        told.keep(rows, log_probs[:, : told.log_probs.shape[1], : self.num_classes])
        self._note_told(positions)

    def _judge(
        self, positions: Int[Tensor, " batch"], log_probs: Float[Tensor, "batch heads classes"], judged_from: int = 0
    ) -> None:
        view = self.lookup.view
        counted = positions >= judged_from
        positions, log_probs = positions[counted], log_probs[counted]
        self._record.losses[view.at("row", positions)] = item_losses(log_probs, view.at("label", positions))

    def rescored(self, positions: Int[Tensor, " batch"], log_probs: Float[Tensor, "batch heads classes"]) -> "Live":
        """The same, its heads judged by other answers to items, by position: what if one had said something else?"""
        other = copy(self)
        other._record, other._weights = copy(self._record), {}
        other._record.losses = self._record.losses.clone()
        other._judge(positions, log_probs)
        return other

    def _note_told(self, positions: Int[Tensor, " told"]) -> None:
        if len(positions):
            last = self._times(positions).max().item()
            self._last_told = last if self._last_told is None else max(last, self._last_told)

    def mix(
        self, said: HeadAnswers, as_of: Shaped[Tensor, " batch"], kept: Sequence[str] = HEADS, *, nearby: bool = True
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch _"]]:
        """One answer of what the heads said, and how much each counts in it; by all heads, or by those that are kept.

        Without `nearby` the items like an input have no say of their own. Whoever asks has caught up with the moments.
        """
        weights = self._overall(as_of, tuple(kept))
        if nearby:
            rows = self.lookup.view.at("row", said.near)
            # Where nothing is near, something or other stands, with closeness 0.
            near = torch.nan_to_num(self._record.losses[rows][..., places_of(kept)])
            weights = adjusted(weights, near, said.closeness)
        return mixed(said.of_heads(kept), weights), weights

    def _overall(self, as_of: Shaped[Tensor, " batch"], kept: tuple[str, ...]) -> Float[Tensor, "batch _"]:
        """Weights by all items known strictly before: a label known at the very moment doesn't count yet."""
        counts = self._counts(as_of)
        if self._unscored_from is not None:
            counts = counts.clamp(max=max(0, self._unscored_from - self.untrained_from))
        weights = torch.empty(len(counts), len(kept))
        for block in counts.div(BLOCK, rounding_mode="floor").unique().tolist():
            mine = counts.div(BLOCK, rounding_mode="floor") == block
            start = max(0, block - 1) * BLOCK
            found = self._extended(kept, block, start, int(counts[mine].max()))
            weights[mine] = found[counts[mine] - start].float()
        return weights

    def _extended(self, kept: tuple[str, ...], block: int, start: int, stop: int) -> Float[Tensor, "moments _"]:
        """The weights of a block after each of its items up to `stop`, going on from what is there."""
        known = self._weights.get((kept, block), prior(kept).double().unsqueeze(0))
        done = start + len(known) - 1
        if stop > done:
            view = self.lookup.view
            positions = torch.arange(self.untrained_from + done, self.untrained_from + stop)
            losses = self._record.losses[view.at("row", positions)][:, places_of(kept)]
            # What is erased tells nothing any more. Items that had it as a precedent keep what the heads said of them.
            losses[torch.isin(positions, view.gone)] = 0.0
            scored = int((~losses.isnan().any(1)).cumprod(0).sum())
            done = len(known) + scored
            known = torch.cat([known, shared_after(known[-1], torch.nan_to_num(losses), prior(kept))])
            self._weights[kept, block] = known[:done]  # after what is not scored they are those of someone in a hurry
        return known


def _chunks(positions: Int[Tensor, " batch"], on_progress: Progress | None) -> Iterator[Int[Tensor, " part"]]:
    for done, part in enumerate(positions.split(CHUNK)):
        yield part
        if on_progress is not None:
            on_progress(min((done + 1) * CHUNK, len(positions)), len(positions))


def prior(kept: Sequence[str] = HEADS) -> Float[Tensor, " _"]:
    """Before anything is known, half of all weight is with the head that answers without a record, if it is kept."""
    weights = torch.full((len(kept),), 0.5 / max(1, len(kept) - 1))
    if WITHOUT_A_RECORD in kept:
        weights[kept.index(WITHOUT_A_RECORD)] = 0.5
    return weights / weights.sum()
