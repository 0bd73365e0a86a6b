"""Checkpoints as safetensors and JSON: nothing pickled, written beside and renamed, verified when read.

A checkpoint is a directory `step-00000123` with `tensors.safetensors` and `state.json`, which holds a checksum of
both. Knows tensors and numbers; nothing of what they mean to a training run.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from recollect.errors import CheckpointError

TENSORS, STATE = "tensors.safetensors", "state.json"
FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and a JSON state beside them."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write `folder/step-N`, complete or not at all, and remove all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{checkpoint.step:08d}"
    beside = folder / f".{final.name}.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    # Cloned: safetensors refuses tensors that share memory, as those of a layer with two names do.
    data = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()})
    state = {
        "format": FORMAT,
        "step": checkpoint.step,
        "sha256": _checksum(data, checkpoint.step, checkpoint.state),
        "state": checkpoint.state,
    }
    _write_durably(beside / TENSORS, data)
    _write_durably(beside / STATE, json.dumps(state, indent=1).encode())
    if final.exists():
        shutil.rmtree(final)
    beside.rename(final)
    for old in complete_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def complete_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints from the oldest to the newest; half-written ones have another name."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint directory."""
    try:
        written = dict(json.loads((path / STATE).read_text()))
        data = (path / TENSORS).read_bytes()
    except (OSError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {path} can't be read ({error}): remove it and resume from the one before"
        ) from error
    if written.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {written.get('format')}, this version reads {FORMAT}: "
            "use the version of recollect that wrote it"
        )
    if _checksum(data, written.get("step"), written.get("state")) != written.get("sha256"):
        raise CheckpointError(
            f"checkpoint {path} does not match its checksum: remove it and resume from the one before"
        )
    return Checkpoint(written["step"], load(data), written["state"])


def _checksum(data: bytes, step: Any, state: Any) -> str:
    return hashlib.sha256(data + json.dumps([step, state]).encode()).hexdigest()


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
