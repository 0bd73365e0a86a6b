"""A model over a history that grows: answers as of any moment, weighed by how the heads did on what was known by then.

An item that was not trained on is answered once, as of its own time, and its label then tells how each head did. That
depends on the model and the history alone, so a replay years later and the service of that day give the same bits.
Replay, estimator, command line and service all answer through here.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.heads import HEADS, LONG, WITHOUT_A_RECORD, HeadAnswers, Heads, places_of
from recollect.history.key_table import KeyTable, Source
from recollect.history.visibility import Window
from recollect.inputs import Lookup
from recollect.model.hedge import adjusted, item_losses, mixed, shared_after
from recollect.predictor import Predictor
from recollect.records import Features
from recollect.regressions import Regressions

BLOCK = 4096
"""Weights begin anew at every so many items, from the block before: so that they follow from the last few thousand
items, and a service need not go through years to start."""

CHUNK = 512

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
    """One model and the history it follows. One thread at a time."""

    def __init__(
        self, predictor: Predictor, table: KeyTable, *, window: Window, trained_on: TrainedOn, num_classes: int
    ) -> None:
        self.predictor, self.table, self.window = predictor, table, window
        self.trained_on, self.num_classes = trained_on, num_classes
        self._weights: dict[tuple[tuple[str, ...], int], Float[Tensor, "moments heads"]] = {}
        self._regressions = Regressions()
        self.unscored = 0
        self._unscored_from: int | None = None
        self._forget()

    def _forget(self) -> None:
        # By stored row, with room for more, NaN where not computed yet.
        self._plain = torch.full((0, self.num_classes), torch.nan)
        self._losses = torch.full((0, len(HEADS)), torch.nan)
        self._last_scored: int | float | None = None
        self._forget_fits()

    def _forget_fits(self) -> None:
        """Of weights and regressions: they go by position."""
        self._weights.clear()
        self._regressions.forget()

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
            elif len(view.tail) != len(old.tail):
                self._regressions.forget()
        if source.num_rows > len(self._plain):
            more = source.num_rows - len(self._plain) + source.num_rows // 8
            self._plain = F.pad(self._plain, (0, 0, 0, more), value=torch.nan)
            self._losses = F.pad(self._losses, (0, 0, 0, more), value=torch.nan)
        self.lookup = Lookup(view, window=self.window)
        self.untrained_from = self.trained_on.count(view.items.known_at)
        if old is not None and old.source.generation == source.generation:
            self._unscore_for(old.source.num_rows)

    def _unscore_for(self, first: int) -> None:
        """Items that would have seen the rows from `first` on, had these been there when they were known, are to be
        scored again: what came late, or corrects the past."""
        view = self.lookup.view
        known_at = view.source.column("known_at", first)
        if self._last_scored is None or not len(known_at) or self._last_scored <= (earliest := known_at.min().item()):
            return
        for part in (view.items, view.tail):
            self._losses[part.row[part.time > earliest]] = torch.nan
        self._forget_fits()

    @property
    def heads(self) -> Heads:
        return Heads(self.predictor, self.lookup, self._plain, self.untrained_from, self._regressions)

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
            self._note_left(pending[few:])
        if len(pending) and few:
            said = self._answer_and_score(features, keys, as_of, pending[:few])
        else:
            if len(pending):
                self._make_plain(*self._reach(as_of))  # they may be neighbours already
            said = self.heads.answers(self.lookup.inputs(features, keys, as_of, excluded))
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
        self._make_plain(*self._reach(as_of))
        stored, view = self.lookup.features_at(scored), self.lookup.view
        inputs = self.lookup.inputs(
            {name: torch.cat([value, stored[name]]) for name, value in features.items()},
            torch.cat([keys.float(), view.at("key", scored).float()]),
            torch.cat([as_of, view.at("time", scored)]),
        )
        said = self.heads.answers(inputs)
        self._keep_losses(scored, said.log_probs[len(keys) :])
        return said.first(len(keys))

    def answer_items(self, positions: Int[Tensor, " batch"], on_progress: Progress | None = None) -> Answers:
        """Items of the history as they would have been answered at their own times, by position; at least one."""
        as_of = self.lookup.view.at("time", positions)
        self._make_plain(int(positions.min()) - (LONG.items or 0), len(self.lookup.view.items))
        said = HeadAnswers.joined([self._score(part) for part in _chunks(positions, on_progress)])
        self.catch_up(as_of)
        return Answers(*self.mix(said, as_of), said)

    def said_of(self, positions: Int[Tensor, " batch"]) -> HeadAnswers:
        """What every head says of items as of their own times, by position; at least one. Nobody is judged by it."""
        self._make_plain(int(positions.min()) - (LONG.items or 0), int(positions.max()) + 1)
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
        if len(positions):
            self._make_plain(*self._reach(as_of))  # those that are left may be neighbours already
        if len(now):
            for part in _chunks(now, on_progress):
                self._score(part)
        self._note_left(left)
        return self.unscored

    def _first_counted(self, as_of: Shaped[Tensor, " batch"]) -> int:
        return self.untrained_from + max(0, self._counted(as_of.min()) - max(2 * BLOCK, LONG.items or 0))

    def _reach(self, as_of: Shaped[Tensor, " batch"]) -> tuple[int, int]:
        """From where to where items may be near those that weights at these moments follow from."""
        stop = self.untrained_from + self._counted(as_of.max())
        return self._first_counted(as_of) - (LONG.items or 0), stop

    def _pending(self, as_of: Shaped[Tensor, " batch"]) -> Int[Tensor, " pending"]:
        """Items that weights at these moments follow from and that are not scored yet, by position."""
        view = self.lookup.view
        stop = self.untrained_from + self._counted(as_of.max())
        late = torch.arange(view.tail_start, view.tail_start + len(view.tail))
        positions = torch.cat([torch.arange(self._first_counted(as_of), stop), late])
        rows = view.at("row", positions)
        return positions[self._losses[rows, 0].isnan() & ~torch.isin(positions, view.gone)]

    def _note_left(self, left: Int[Tensor, " left"]) -> None:
        self._unscored_from, self.unscored = (int(left[0]) if len(left) else None), len(left)

    # What was computed, to be kept elsewhere

    def record(self) -> dict[str, Tensor]:
        """What was computed of the newest items by stored row: what answers as of now, and of moments soon before,
        follow from. For the same model and the same history later on, `restore` spares computing it again."""
        view = self.lookup.view
        first = max(self.untrained_from, len(view.items) - 2 * max(2 * BLOCK, LONG.items or 0))
        positions = torch.cat(
            [torch.arange(first, len(view.items)), torch.arange(view.tail_start, view.tail_start + len(view.tail))]
        )
        rows = view.at("row", positions[~torch.isin(positions, view.gone)])
        rows = rows[~self._plain[rows, 0].isnan() if self.num_classes else ~self._losses[rows, 0].isnan()]
        return {"rows": rows, "plain": self._plain[rows], "losses": self._losses[rows]}

    def restore(self, record: dict[str, Tensor], rows_then: int) -> None:
        """Take over a `record` of a history that had so many rows. That it is of this model and of this history is for
        the caller to know."""
        rows, view = record["rows"], self.lookup.view
        self._plain[rows], self._losses[rows] = record["plain"], record["losses"]
        self._forget_fits()
        self._note_scored(view.at("time", view.positions_of(rows)))
        self._unscore_for(rows_then)

    def _counted(self, moment: Shaped[Tensor, ""]) -> int:
        """How many items in order, of those not trained on, were known strictly before a moment."""
        known_at = self.lookup.view.items.known_at
        return max(0, int(torch.searchsorted(known_at, moment.view(1))) - self.untrained_from)

    @torch.no_grad()
    def _make_plain(self, first: int, stop: int) -> None:
        """What network and trees say without context of the items between two positions, and of late ones."""
        view = self.lookup.view
        positions = torch.arange(max(self.untrained_from, first), max(self.untrained_from, stop))
        positions = torch.cat([positions, torch.arange(view.tail_start, view.tail_start + len(view.tail))])
        rows = view.at("row", positions)
        missing = self._plain[rows, 0].isnan() & ~torch.isin(positions, view.gone)
        for part in positions[missing].split(CHUNK):
            inputs = self.lookup.inputs_at(part)
            self._plain[view.at("row", part)] = self.predictor.plain(inputs)[:, : self.num_classes]

    def _score(self, positions: Int[Tensor, " batch"]) -> HeadAnswers:
        answers = self.heads.answers(self.lookup.inputs_at(positions))
        self._keep_losses(positions, answers.log_probs)
        return answers

    def _keep_losses(self, positions: Int[Tensor, " batch"], log_probs: Float[Tensor, "batch heads classes"]) -> None:
        view = self.lookup.view
        self._losses[view.at("row", positions)] = item_losses(log_probs, view.at("label", positions))
        self._note_scored(view.at("time", positions))

    def rescored(self, positions: Int[Tensor, " batch"], log_probs: Float[Tensor, "batch heads classes"]) -> "Live":
        """The same, its heads judged by other answers to items, by position: what if one had said something else?"""
        other = copy(self)
        other._losses, other._weights = self._losses.clone(), {}
        other._keep_losses(positions, log_probs)
        return other

    def _note_scored(self, times: Shaped[Tensor, " scored"]) -> None:
        if len(times):
            last = times.max().item()
            self._last_scored = last if self._last_scored is None else max(last, self._last_scored)

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
            near = torch.nan_to_num(self._losses[rows][..., places_of(kept)])
            weights = adjusted(weights, near, said.closeness)
        return mixed(said.of_heads(kept), weights), weights

    def _overall(self, as_of: Shaped[Tensor, " batch"], kept: tuple[str, ...]) -> Float[Tensor, "batch _"]:
        """Weights by all items known strictly before: a label known at the very moment doesn't count yet."""
        view = self.lookup.view
        counts = (torch.searchsorted(view.items.known_at, as_of) - self.untrained_from).clamp(min=0)
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
            losses = torch.nan_to_num(self._losses[view.at("row", positions)][:, places_of(kept)])
            # What is erased tells nothing any more. Items that had it as a precedent keep what the heads said of them.
            losses[torch.isin(positions, view.gone)] = 0.0
            known = torch.cat([known, shared_after(known[-1], losses, prior(kept))])
            self._weights[kept, block] = known
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
