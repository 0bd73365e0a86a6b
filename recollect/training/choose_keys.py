"""Which keys a history gets: those in which all columns count alike, or those that emphasise what tells of the label.

Where many columns tell nothing, near by all of them is near by chance; where the rule of the past is soon another one,
what told nothing may come to tell all. The newest rows of the past decide, by how well the labels of their neighbours
foretell theirs. Knows rows in order and their labels; nothing of networks.
"""

import math

import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from recollect.data.keys import KeyFunction, fit_pca, fit_pca_emphasising
from recollect.evaluation.stream import Stream
from recollect.heads import LONG, NEIGHBOURS
from recollect.model.neighbours import nearest, vote
from recollect.records import Visible
from recollect.retrieval.keys import SharedKeys

EMPHASIS = 0.5
"""Part of what all columns count together that goes by how much each tells of the label. The other part is for what may
come to tell."""

JUDGED = 1000
AT_ONCE = 256


def fit_keys(
    stream: Stream,
    by_label: Int[Tensor, " past"],
    held_out: int,
    key_dim: int,
    relevance: Float64[Tensor, " columns"] | None,
) -> KeyFunction:
    """Keys fitted on rows of the past, given in order of when their labels were known; the last `held_out` judge them.

    `relevance` says how much each column told of the labels before those, None if that is not known.
    """
    before = {name: value[by_label] for name, value in stream.features.items()}
    if relevance is None or not held_out or _parts(stream) < 2:
        return fit_pca(before, stream.specs, key_dim, sphere=True, fewer=True)
    plain, emphasising = fit_pca_emphasising(
        before, stream.specs, key_dim, relevance, (0.0, EMPHASIS), sphere=True, fewer=True
    )
    losses = [_losses(stream, by_label, held_out, keys) for keys in (plain, emphasising)]
    return emphasising if better(losses[1], losses[0]) else plain


def better(losses: Float[Tensor, " judged"], than: Float[Tensor, " judged"]) -> bool:
    """By more than the standard error of the difference."""
    gained = than - losses
    return float(gained.mean()) > float(gained.std(correction=0)) / math.sqrt(len(gained))


def _parts(stream: Stream) -> int:
    """Numbers, categories and texts: what can count more than another."""
    return sum(spec.width if spec.kind == "numeric" else 1 for spec in stream.specs)


def _losses(
    stream: Stream, by_label: Int[Tensor, " past"], held_out: int, keys: KeyFunction
) -> Float[Tensor, " judged"]:
    """nll of a vote of the nearest of those known strictly before, for some of the rows held out."""
    assert LONG.items is not None
    rows = by_label[-(held_out + LONG.items) :]
    judged = torch.linspace(len(rows) - held_out, len(rows) - 1, min(held_out, JUDGED)).long()
    made = keys({name: value[rows] for name, value in stream.features.items()})
    labels = torch.from_numpy(stream.labels)[rows]
    known_at: Shaped[Tensor, " rows"] = torch.from_numpy(stream.known_at)[rows]
    stop = torch.searchsorted(known_at, torch.from_numpy(stream.time)[rows][judged])
    visible, table = Visible((stop - LONG.items).clamp(min=0), stop), SharedKeys(made)
    losses = []
    for part in torch.arange(len(judged)).split(AT_ONCE):
        near, closeness = nearest(made[judged[part]], table, visible.take(part), NEIGHBOURS)
        said = vote(labels[near.clamp(min=0)], closeness, stream.num_classes)
        losses.append(-said.gather(1, labels[judged[part]].unsqueeze(1)).squeeze(1))
    return torch.cat(losses)
