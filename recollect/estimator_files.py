"""A fitted estimator in a directory: `estimator.json`, the model beneath it and all items, each with a checksum."""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.data.embedding import EmbedderSpec
from recollect.errors import CheckpointError, SettingError
from recollect.history.growing import GrowingHistory
from recollect.trained import MODEL as MODEL_FILE
from recollect.trained import Trained, check_replaceable, put_in_place

FORMAT = 1
ESTIMATOR, MODEL, ITEMS = "estimator.json", "model", "items.safetensors"


@dataclass(frozen=True)
class Kept:
    """What an estimator knows beside its model and its items. `columns` are the names by which the model reads."""

    params: dict[str, Any]
    classes: NDArray[Any]
    n_features_in: int
    feature_names_in: list[str] | None
    columns: list[str]
    by_order: bool


def write_kept(folder: Path, kept: Kept, model: Trained, history: GrowingHistory, *, force: bool) -> None:
    """Complete or not at all."""
    check_replaceable(folder, ESTIMATOR, "classifier", force=force)
    labels = kept.classes.tolist()
    if not all(isinstance(label, str | int | float) for label in labels):
        raise SettingError(f"labels such as {labels[0]!r} can't be saved: use texts or numbers as labels")
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    model.save(beside / MODEL)
    checksums = {ITEMS: history.save(beside / ITEMS), MODEL: _digest((beside / MODEL / MODEL_FILE).read_text())}
    plain = asdict(kept) | {"classes": [kept.classes.dtype.str, labels], "format": FORMAT, "sha256": checksums}
    written = {"estimator": plain, "sha256": _digest(json.dumps(plain, indent=1))}
    (beside / ESTIMATOR).write_text(json.dumps(written, indent=1))
    put_in_place(beside, folder)


def plain_value(value: Any) -> Any:
    """A parameter as JSON has it: NumPy's numbers and texts as Python's own."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return str(value) if isinstance(value, str) else value


def read_kept(folder: Path) -> tuple[Kept, Trained, GrowingHistory]:
    """Raises unless everything is as it was written."""
    try:
        written = json.loads((folder / ESTIMATOR).read_text())
        plain = dict(written["estimator"])
        model_text = (folder / MODEL / MODEL_FILE).read_text()
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{folder} holds no classifier that can be read ({error}): give a directory that save wrote"
        ) from error
    if plain.get("format") != FORMAT:
        raise CheckpointError(
            f"classifier {folder} has format {plain.get('format')}, this version reads {FORMAT}: "
            "use the version of recollect that wrote it"
        )
    sound = _digest(json.dumps(plain, indent=1)) == written.get("sha256")
    if not sound or _digest(model_text) != plain["sha256"][MODEL]:
        raise CheckpointError(f"classifier {folder} does not match its checksums: restore it from a copy, or fit anew")
    model = Trained.load(folder / MODEL)
    history = GrowingHistory.load(folder / ITEMS, plain["sha256"][ITEMS], model.keys.fingerprint)
    dtype, labels = plain["classes"]
    kept = Kept(
        _params(plain["params"]),
        np.array(labels, dtype=np.dtype(dtype)),
        plain["n_features_in"],
        plain["feature_names_in"],
        plain["columns"],
        plain["by_order"],
    )
    return kept, model, history


def _params(plain: dict[str, Any]) -> dict[str, Any]:
    embedder = plain["embedder"]
    return plain | {"embedder": EmbedderSpec(**embedder) if isinstance(embedder, dict) else embedder}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
