"""A history in memory: what fits is handed to the key table as a history on disk is."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from recollect.errors import HistoryError, SettingError
from recollect.history.key_table import Array
from recollect.history.visibility import check_order
from recollect.records import Features


@dataclass(frozen=True)
class MemoryHistory:
    """Items in order of `known_at`, all of them complete: nothing is ever corrected or erased here.

    `key_function` is the fingerprint of what computed the keys, empty if it has none.
    """

    features: Features
    keys: Float[Tensor, "items key_dim"]
    labels: Int[Tensor, " items"]
    times: Shaped[Tensor, " items"]
    known_at: Shaped[Tensor, " items"]
    key_function: str = ""

    def __post_init__(self) -> None:
        check_order(self.known_at)
        check_known(self.times, self.known_at)

    @property
    def generation(self) -> int:
        return 0

    @property
    def num_rows(self) -> int:
        return self.labels.shape[0]

    @property
    def erased(self) -> Array:
        return np.empty(0, dtype=np.int64)

    @property
    def superseded(self) -> tuple[Array, Array, Array]:
        return self.erased, self.known_at[:0].numpy(), self.erased

    def check_key_function(self, fingerprint: str) -> None:
        if self.key_function != fingerprint:
            raise HistoryError(
                f"the history in memory has keys of {self.key_function or 'an unnamed function'}, the model expects "
                f"{fingerprint or 'an unnamed function'}: compute the keys by the model's key function"
            )

    def column(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        columns = {"key": self.keys, "label": self.labels, "time": self.times, "known_at": self.known_at}
        values: Array = columns[name][start:stop].numpy()
        return values

    def fetch(self, rows: Int[Tensor, "..."], columns: list[str] | None = None) -> Features:
        rows = rows.cpu()
        return {name: self.features[name][rows] for name in (self.features if columns is None else columns)}


def _shown(moment: int | float) -> str:
    return f"{np.datetime64(moment, 'ns')}Z" if isinstance(moment, int) else f"{moment}"


def check_known(times: Shaped[Tensor, " items"], known_at: Shaped[Tensor, " items"]) -> None:
    early = (known_at < times).nonzero()
    if len(early):
        row = int(early[0])
        raise SettingError(
            f"item {row} has known_at {_shown(known_at[row].item())} before its time {_shown(times[row].item())}: "
            "a label can't be known before the item happened; give the later moment"
        )
