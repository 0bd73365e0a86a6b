"""Items from files, for the command line: Parquet, Arrow, JSON lines and NumPy archives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.json
import pyarrow.parquet
from numpy.typing import NDArray

from recollect.errors import ItemError
from recollect.history.disk.schema import RESERVED, STORED_TYPES, Column, IdKind, Key, Schema, TimeKind


def read_items(path: Path) -> pa.Table | dict[str, Any]:
    """Every column of the file; the ending of its name says what it is."""
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            return pyarrow.parquet.read_table(path)
        if ending in (".arrow", ".feather"):
            return pyarrow.feather.read_table(path)
        if ending in (".jsonl", ".ndjson"):
            return pyarrow.json.read_json(path)
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ItemError(f"{path} can't be read as {ending[1:]} ({error})") from error
    raise ItemError(f"{path} ends in {ending!r}: give a .parquet, .arrow, .feather, .jsonl or .npz file")


def schema_of(
    items: pa.Table | dict[str, Any], *, features: Sequence[str], key_function: str, time: TimeKind | None = None
) -> Schema:
    """A schema that fits these items: what is not a feature is payload."""
    names = list(items.schema.names) if isinstance(items, pa.Table) else list(items)
    missing = [name for name in ("id", "time", "label", "key", *features) if name not in names]
    if missing:
        raise ItemError(f"the file lacks the column {', '.join(missing)}")
    arrays = {name: _sample(items[name]) for name in names}
    key = _column("key", arrays["key"])
    if len(key.shape) != 1:
        raise ItemError(f"keys have the shape {key.shape}: give a list of numbers for every item")
    numbers = arrays["time"].dtype.kind in "iuf"
    ids: IdKind = "integer" if arrays["id"].dtype.kind in "iu" else "string"
    payload = [name for name in names if name not in (*RESERVED, *features)]
    return Schema(
        key=Key(key.shape[0], key.dtype, key_function),
        features=tuple(_column(name, arrays[name]) for name in features),
        time=time or ("number" if numbers else "nanoseconds"),
        id=ids,
        payload=pa.schema([(name, _arrow_type(items[name])) for name in payload]),
    )


def _sample(column: Any) -> NDArray[Any]:
    if isinstance(column, np.ndarray):
        return column[:1]
    first = column.slice(0, 1)
    if pa.types.is_timestamp(first.type) or pa.types.is_date(first.type):
        return np.array(["text"])
    return np.asarray(first.to_pylist(), dtype=_element_type(first.type))


def _element_type(kind: Any) -> Any:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind.to_pandas_dtype() if pa.types.is_floating(kind) or pa.types.is_integer(kind) else None


def _column(name: str, sample: NDArray[Any]) -> Column:
    """Double precision is kept as single: that is what files hold for want of a smaller type."""
    dtype = "float32" if sample.dtype == np.float64 else str(sample.dtype)
    if dtype not in STORED_TYPES:
        raise ItemError(f"column {name} has the type {dtype}: only numbers can be features and keys")
    return Column(name, dtype, sample.shape[1:])


def _arrow_type(column: Any) -> Any:
    return column.type if not isinstance(column, np.ndarray) else pa.array(column[:1].tolist()).type
