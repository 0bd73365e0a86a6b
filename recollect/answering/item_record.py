"""What was computed of the items of a history, each as of its own time, by stored row: nothing of it has to be computed
again while the row is seen the same way. Knows numbers only; what they mean, and what they follow from, is for others.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass
class Told:
    """What the heads said of items, of the classes of training. `there` says of which rows; nothing is written for the
    others, so that they take no memory either."""

    log_probs: Float[Tensor, "rows heads classes"]
    there: Bool[Tensor, " rows"]

    def keep(self, rows: Int[Tensor, " items"], log_probs: Float[Tensor, "items heads classes"]) -> None:
        self.log_probs[rows], self.there[rows] = log_probs, True


class ItemRecord:
    """`plain` is what is said without context, `losses` what each head is charged, NaN where not computed yet; `told`
    what the heads up to the first pool said. There is room for more rows than there are."""

    def __init__(self, *, classes: int, heads: int, pooled: int) -> None:
        self.plain: Float[Tensor, "rows classes"] = torch.full((0, classes), torch.nan)
        self.losses: Float[Tensor, "rows heads"] = torch.full((0, heads), torch.nan)
        self.told = Told(torch.empty(0, pooled, classes), torch.zeros(0, dtype=torch.bool))

    def make_room(self, rows: int) -> None:
        if rows <= len(self.plain):
            return
        more = rows - len(self.plain) + rows // 8
        self.plain, self.losses = (F.pad(each, (0, 0, 0, more), value=torch.nan) for each in (self.plain, self.losses))
        old, (_, heads, classes) = self.told, self.told.log_probs.shape
        self.told = Told(torch.empty(len(self.plain), heads, classes), F.pad(old.there, (0, more)))
        known = old.there.nonzero().flatten()
        self.told.keep(known, old.log_probs[known])

    def unscore(self, rows: Int[Tensor, " items"]) -> None:
        """What heads said of these is to be asked again; what is said without context stays."""
        self.losses[rows], self.told.there[rows] = torch.nan, False

    def of(self, rows: Int[Tensor, " items"]) -> dict[str, Tensor]:
        """What there is of some rows, as tensors to be kept elsewhere."""
        rows = rows[~self.plain[rows, :1].isnan().any(1) | self.told.there[rows]]
        told = rows[self.told.there[rows]]
        return {
            "rows": rows,
            "plain": self.plain[rows],
            "losses": self.losses[rows],
            "told_rows": told,
            "told": self.told.log_probs[told],
        }

    def take_over(self, record: dict[str, Tensor]) -> None:
        rows = record["rows"]
        self.plain[rows], self.losses[rows] = record["plain"], record["losses"]
        self.told.keep(record["told_rows"], record["told"])
