"""Peers that go on learning: River's trees row by row, and a small network fine-tuned bin by bin.

The same rule of time as for all peers: what was known strictly before a row, or before the start of its bin, and no
more. River is imported when asked for.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import nn

from recollect.evaluation.simple_peers import Answers, Progress, answer_width, by_period, past_scale, shares
from recollect.evaluation.stream import Stream

HIDDEN = 128
BATCH = 64
MOST_EPOCHS = 30
PATIENCE = 3
TUNING_EPOCHS = 2


def prequential(stream: Stream, *, name: str, seed: int, on_progress: Progress) -> Answers:
    """One of River's classifiers, with River's own settings: each label is learned once, as soon as it is known."""
    model = _river_model(name, seed)
    asked = stream.asked
    order = np.argsort(stream.known_at, kind="stable")
    stops = np.searchsorted(stream.known_at[order], stream.time[asked], side="left")
    total = int(stops[-1]) + len(asked) if len(asked) else 0
    found = np.zeros((len(asked), answer_width(stream)))
    fallback = shares(stream)
    learned = 0
    for place, (row, stop) in enumerate(zip(asked, stops, strict=True)):
        for known in order[learned:stop]:
            model.learn_one(_river_row(stream, int(known)), int(stream.labels[known]))
            learned += 1
            if learned % 1000 == 0:
                on_progress(learned + place, total)
        answer = model.predict_proba_one(_river_row(stream, int(row)))
        for label, probability in answer.items():
            found[place, label] = probability
        if not found[place].sum() > 0:
            found[place] = fallback
    on_progress(total, total)
    found /= found.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.log(found)


def finetuned(stream: Stream, *, every: int | float | None, seed: int, on_progress: Progress) -> Answers:
    """A network fitted on the past, then at the start of each bin, or `every` so often, trained some more on what
    became known since.

    It knows the classes of the stream's `num_classes`; later ones it neither learns nor answers.
    """
    mean, deviation = past_scale(stream)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(stream.table.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, stream.num_classes)
        )
    learner = _Learner(network, torch.Generator().manual_seed(seed))

    def inputs(rows: Int[np.ndarray, " _"]) -> torch.Tensor:
        return torch.from_numpy((stream.table[rows] - mean) / deviation).float()

    def learnable(rows: Int[np.ndarray, " _"]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = rows[stream.labels[rows] < stream.num_classes]
        return inputs(rows), torch.from_numpy(stream.labels[rows])

    learner.fit(*learnable(stream.past))
    found = np.full((len(stream.asked), answer_width(stream)), -np.inf)
    groups = by_period(stream, every)
    since = stream.cutoff
    for done, places in enumerate(groups):
        rows = stream.asked[places]
        moment = stream.time[rows[0]]
        learner.tune(*learnable(np.flatnonzero((stream.known_at >= since) & (stream.known_at < moment))))
        since = moment
        found[places, : stream.num_classes] = learner.answer(inputs(rows)).numpy()
        on_progress(done + 1, len(groups))
    return found


class _Learner:
    """A network with its optimiser, which remembers its steps from one training to the next."""

    def __init__(self, network: nn.Module, generator: torch.Generator) -> None:
        self.network = network
        self.generator = generator
        self.optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=1e-4)

    def fit(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Until the newest tenth of the rows, which is held out, is no longer answered better; the best is kept."""
        held = -(-len(labels) // 10) if len(labels) > 1 else 0
        train, test = slice(0, len(labels) - held), slice(len(labels) - held, None)
        best, best_state, since = float("inf"), self._state(), 0
        for _ in range(MOST_EPOCHS):
            self._epoch(inputs[train], labels[train])
            loss = float(nn.functional.nll_loss(self.answer(inputs[test]).float(), labels[test])) if held else 0.0
            since = 0 if loss < best else since + 1
            if loss < best:
                best, best_state = loss, self._state()
            if since == PATIENCE:
                break
        self.network.load_state_dict(best_state)

    def tune(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        for _ in range(TUNING_EPOCHS):
            self._epoch(inputs, labels)

    def answer(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.network(inputs).double().log_softmax(1)  # type: ignore[no-any-return]

    def _epoch(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        for rows in torch.randperm(len(labels), generator=self.generator).split(BATCH):
            if not len(rows):
                continue
            self.optimiser.zero_grad()
            nn.functional.cross_entropy(self.network(inputs[rows]), labels[rows]).backward()
            self.optimiser.step()

    def _state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.network.state_dict().items()}


def _river_model(name: str, seed: int) -> Any:
    from river import ensemble, forest, tree

    if name == "arf":
        return forest.ARFClassifier(seed=seed)
    if name == "leveraging_bagging":
        return ensemble.LeveragingBaggingClassifier(tree.HoeffdingTreeClassifier(), seed=seed)
    return tree.HoeffdingAdaptiveTreeClassifier(seed=seed)


def _river_row(stream: Stream, row: int) -> dict[int, float]:
    return dict(enumerate(stream.table[row].tolist()))
