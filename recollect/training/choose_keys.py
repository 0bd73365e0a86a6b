"""Which keys a history gets: those in which all columns count alike, or those that emphasise what tells of the label.

Where many columns tell nothing, near by all of them is near by chance; where the rule of the past is soon another one,
what told nothing may come to tell all. The newest rows of the past decide, by how well the labels of their neighbours
foretell theirs. Knows rows in order and their labels; nothing of networks.
"""

from dataclasses import replace

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from recollect.answering.heads import LONG, NEIGHBOURS, within
from recollect.data.key_fitting import fit_pca, fit_pca_emphasising
from recollect.data.keys import KeyFunction
from recollect.evaluation.stream import Stream
from recollect.model.neighbours import nearest, vote
from recollect.records import Visible
from recollect.retrieval.keys import SharedKeys
from recollect.training.judge import AT_ONCE, better, spread

EMPHASIS = 0.5
"""Part of what all columns count together that goes by how much each tells of the label. The other part is for what may
come to tell."""


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
    before = stream.read(by_label)
    if relevance is None or not held_out or _parts(stream) < 2:
        return fit_pca(before, stream.specs, key_dim, sphere=True, fewer=True)
    plain, emphasising = fit_pca_emphasising(
        before, stream.specs, key_dim, relevance, (0.0, EMPHASIS), sphere=True, fewer=True
    )
    losses = [_losses(stream, by_label, held_out, keys) for keys in (plain, emphasising)]
    return emphasising if better(losses[1], losses[0]) else plain


def _parts(stream: Stream) -> int:
    """Numbers, categories and texts: what can count more than another."""
    return sum(spec.width if spec.kind == "numeric" else 1 for spec in stream.specs)


def _losses(
    stream: Stream, by_label: Int[Tensor, " past"], held_out: int, keys: KeyFunction
) -> Float[Tensor, " judged"]:
    """nll of a vote of the nearest of those known strictly before, for some of the rows held out."""
    judged = spread(len(by_label) - held_out, len(by_label))
    judged = judged[torch.from_numpy(stream.labels)[by_label[judged]] < stream.num_classes]
    if not len(judged):
        return torch.empty(0)
    stop = torch.searchsorted(
        torch.from_numpy(stream.known_at)[by_label], torch.from_numpy(stream.time)[by_label[judged]]
    )
    visible = within(Visible(torch.zeros_like(stop), stop), LONG)
    # What nobody sees is left out, and positions are counted from there.
    first = int(visible.start.min())
    visible, judged, rows = (
        replace(visible, start=visible.start - first, stop=stop - first),
        judged - first,
        by_label[first:],
    )
    made = keys(stream.read(rows))
    labels, table = torch.from_numpy(stream.labels)[rows], SharedKeys(made)
    losses = []
    for part in torch.arange(len(judged)).split(AT_ONCE):
        near, closeness = nearest(made[judged[part]], table, visible.take(part), NEIGHBOURS)
        said = vote(labels[near.clamp(min=0)], closeness, stream.num_classes)
        losses.append(-said.gather(1, labels[judged[part]].unsqueeze(1)).squeeze(1))
    return torch.cat(losses)
