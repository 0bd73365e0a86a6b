"""What the heads would have said of the newest items, kept on disk: a service that starts need not work it out again.

One file per model, checksummed. What is of another model or another history, or damaged, is ignored, never trusted.
"""

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from recollect.deployed import Deployed

FORMAT = 6


class HeadsRecord:
    """Of one deployed model, in a folder; where nothing may be stored, one that is there is still read."""

    def __init__(self, deployed: Deployed, folder: Path, *, stores: bool = True) -> None:
        self._deployed, self._stores = deployed, stores
        self._model = deployed.fingerprint
        self.path = folder / f"record-{self._model}.bin"
        self.saved_rows = -1

    def save(self) -> None:
        """Complete or not at all; not synced, since losing it costs time only."""
        rows = self._deployed.snapshot.num_rows
        if not self._stores:
            self.saved_rows = rows
            return
        record = {name: tensor.contiguous() for name, tensor in self._deployed.live.record().items()}
        data = save(record)
        head = {
            **self._identity(),
            "history_rows": rows,
            "items": self._items(record["rows"]),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        beside = self.path.with_suffix(f".{os.getpid()}.tmp")
        beside.write_bytes(json.dumps(head).encode() + b"\n" + data)
        beside.replace(self.path)
        self.saved_rows = rows

    def load(self) -> bool:
        """Whether there was one that fits."""
        try:
            line, _, data = self.path.read_bytes().partition(b"\n")
            head = json.loads(line)
            sound = hashlib.sha256(data).hexdigest() == head["sha256"]
            if not sound or any(head[name] != value for name, value in self._identity().items()):
                return False
            record = load(data)
            rows = record["rows"]
            rows_then = int(head["history_rows"])
            highest = int(rows.max()) if len(rows) else -1
            if max(rows_then - 1, highest) >= self._deployed.snapshot.num_rows:
                return False
            if head["items"] != self._items(rows):
                return False
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self._deployed.live.restore(record, rows_then)
        return True

    def _identity(self) -> dict[str, object]:
        snapshot = self._deployed.snapshot
        return {
            "format": FORMAT,
            "model": self._model,
            "history": snapshot.url,
            "generation": snapshot.generation,
            "threads": torch.get_num_threads(),  # another number of them may round differently
            "libraries": [metadata.version(name) for name in ("torch", "numpy", "scipy", "lightgbm")],
        }

    def _items(self, rows: Tensor) -> str:
        """Tells a history from another that was put in its place."""
        view = self._deployed.live.lookup.view
        positions = view.positions_of(rows)
        digest = hashlib.sha256()
        for name in ("row", "time", "known_at", "label", "key"):
            digest.update(view.at(name, positions).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
