"""Plain versions of the fast paths: dense, slow, and short enough to be believed.

Everything is float64 unless a `dtype` is given: the same in float32 says how much error a plain version makes.
"""

import torch
from torch import Tensor

from recollect.records import Visible
from recollect.retrieval.keys import OwnKeys, SharedKeys


def dense_keys(keys: SharedKeys | OwnKeys) -> Tensor:
    """The keys as they are stored, rounded or not, with the recency column: [items, width] or [batch, items, width]."""
    if keys.recency is None:
        return keys.keys.double()
    return torch.cat([keys.keys.double(), keys.recency.double().unsqueeze(-1)], dim=-1)


def dense_logits(
    queries: Tensor, keys: Tensor, visible: Visible, scale: float, dtype: torch.dtype = torch.float64
) -> Tensor:
    """[batch, retrieved, items], -inf where invisible. `keys` is [items, key_dim] or [batch, items, key_dim].

    Multiplied and summed pair by pair, so that equal keys have equal logits to the last bit.
    """
    by_input = keys if keys.ndim == 3 else keys.unsqueeze(0)
    logits = (queries.to(dtype).unsqueeze(2) * by_input.to(dtype).unsqueeze(1)).sum(-1) * scale
    positions = torch.arange(logits.shape[-1])
    seen = (positions >= visible.start[:, None]) & (positions < visible.stop[:, None])
    return logits.masked_fill(~seen.unsqueeze(1), -torch.inf)


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


def dense_greedy(logits: Tensor) -> Tensor:
    """[batch, retrieved]; the chain excludes its own picks only; ties go to the newest; -1 where nothing is left."""
    batch, retrieved, _ = logits.shape
    positions = torch.full((batch, retrieved), -1)
    for row in range(batch):
        taken: list[int] = []
        for slot in range(retrieved):
            best, where = -float("inf"), -1
            for item, value in enumerate(logits[row, slot].tolist()):
                if item not in taken and value > -float("inf") and value >= best:
                    best, where = value, item
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
