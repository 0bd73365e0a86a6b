"""Plain versions of the fast paths: dense, slow, and short enough to be believed.

Everything is float64 unless a `dtype` is given: the same in float32 says how much error a plain version makes.
"""

import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import OwnKeys, SharedKeys


def dense_keys(keys: SharedKeys | OwnKeys) -> Tensor:
    """The keys as they are stored, rounded or not, with the recency column: [items, width] or [batch, items, width].

    Zeros stand between a table and its tail.
    """
    rows = keys.keys.double()
    if keys.recency is not None:
        rows = torch.cat([rows, keys.recency.double().unsqueeze(-1)], dim=-1)
    if isinstance(keys, SharedKeys) and keys.tail is not None:
        gap = rows.new_zeros(keys.tail_start - rows.shape[0], rows.shape[1])
        rows = torch.cat([rows, gap, dense_keys(keys.tail)])
    return rows


def dense_order(keys: SharedKeys | OwnKeys) -> list[float]:
    """A number for each position that grows with how new its item is."""
    if not isinstance(keys, SharedKeys) or keys.tail is None:
        return [float(position) for position in range(keys.num_items)]
    assert keys.tail_after is not None
    table = [float(position) for position in range(keys.tail_start)]
    # After the last item that is older, before the next; among themselves in their own order.
    return table + [after - 0.5 + 1e-6 * index for index, after in enumerate(keys.tail_after.tolist())]


def dense_seen(visible: Visible, items: int) -> Tensor:
    """[batch, items]: may this input select this item?"""
    seen = torch.zeros(visible.start.shape[0], items, dtype=torch.bool)
    for row in range(seen.shape[0]):
        for start, stop in visible.intervals:
            seen[row, int(start[row]) : int(stop[row])] = True
        for position in [] if visible.hidden is None else visible.hidden[row].tolist():
            if position >= 0:
                seen[row, position] = False
    if visible.gone is not None:
        seen[:, visible.gone] = False
    return seen


def dense_logits(
    queries: Tensor, keys: Tensor, visible: Visible, scale: float, dtype: torch.dtype = torch.float64
) -> Tensor:
    """[batch, retrieved, items], -inf where invisible. `keys` is [items, key_dim] or [batch, items, key_dim].

    Multiplied and summed pair by pair, so that equal keys have equal logits to the last bit.
    """
    by_input = keys if keys.ndim == 3 else keys.unsqueeze(0)
    logits = (queries.to(dtype).unsqueeze(2) * by_input.to(dtype).unsqueeze(1)).sum(-1) * scale
    return logits.masked_fill(~dense_seen(visible, logits.shape[-1]).unsqueeze(1), -torch.inf)


def dense_slot_log_probs(logits: Tensor, taken: Tensor) -> Tensor:
    """log-probabilities of one slot, [batch, items], given the positions taken before ([batch, earlier], -1: none).

    All are -inf, with gradient zero, where nothing is left.
    """
    gone = torch.zeros_like(logits, dtype=torch.bool)
    for pick in taken.unbind(1):
        gone |= torch.arange(logits.shape[1]) == pick.unsqueeze(1)
    left = logits.masked_fill(gone, -torch.inf)
    nothing = (left == -torch.inf).all(1, keepdim=True)
    return torch.log_softmax(left.masked_fill(nothing, 0.0), dim=1).masked_fill(nothing, -torch.inf)


def dense_log_p(logits: Tensor, positions: Tensor) -> Tensor:
    """log p of every pick given the earlier ones, [batch, retrieved]; differentiable; 0 where the slot is empty."""
    slots = []
    for slot in range(positions.shape[1]):
        log_probs = dense_slot_log_probs(logits[:, slot], positions[:, :slot])
        picked = log_probs.gather(1, positions[:, slot : slot + 1].clamp(min=0)).squeeze(1)
        slots.append(picked.masked_fill(positions[:, slot] < 0, 0.0))
    return torch.stack(slots, dim=1)


def dense_greedy(logits: Tensor, order: list[float] | None = None) -> Tensor:
    """[batch, retrieved]; the chain excludes its own picks only; ties go to the newest; -1 where nothing is left."""
    batch, retrieved, items = logits.shape
    order = order or [float(item) for item in range(items)]
    positions = torch.full((batch, retrieved), -1)
    for row in range(batch):
        taken: list[int] = []
        for slot in range(retrieved):
            best, where = (-float("inf"), -float("inf")), -1
            for item, value in enumerate(logits[row, slot].tolist()):
                if item not in taken and value > -float("inf") and (value, order[item]) >= best:
                    best, where = (value, order[item]), item
            positions[row, slot] = where
            taken += [where] if where >= 0 else []
    return positions


def dense_log_normaliser(logits: Tensor) -> Tensor:
    """[batch, retrieved]; 0 where nothing is visible."""
    nothing = (logits == -torch.inf).all(2, keepdim=True)
    return logits.masked_fill(nothing, 0.0).logsumexp(2).masked_fill(nothing.squeeze(2), 0.0)


def dense_entropy(logits: Tensor) -> Tensor:
    """[batch, retrieved], in nats; 0 where nothing is visible."""
    hidden = logits == -torch.inf
    log_p = torch.log_softmax(logits.masked_fill(hidden.all(2, keepdim=True), 0.0), dim=2)
    return -(log_p.exp() * log_p.masked_fill(hidden, 0.0)).masked_fill(hidden, 0.0).sum(2)


def dense_label_mass(logits: Tensor, positions: Tensor, labels: Tensor, num_labels: int) -> Tensor:
    """Probability of each label in the last slot given the earlier picks, [batch, labels]. `labels` as the keys."""
    p = dense_slot_log_probs(logits[:, -1], positions[:, :-1]).exp()
    by_label = labels.expand(p.shape).unsqueeze(2) == torch.arange(num_labels)
    return (p.unsqueeze(2) * by_label).sum(1)
