"""Items from arrays, DataFrames or Arrow tables into checked columns, ready to be written.

Knows a schema and what users hand in; nothing of files, nor of which ids a history already has.
"""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from recollect.errors import ItemError
from recollect.history.disk.ids import MAX_ID_BYTES
from recollect.history.disk.log import Rows
from recollect.history.disk.schema import Column, Key, Schema

REQUIRED = ("id", "time", "label", "key")


@dataclass(frozen=True)
class Given:
    """Checked items. `labels` are codes, or names which only the history can turn into codes."""

    rows: Rows
    names: list[str] | None


def check_items(items: Any, schema: Schema) -> Given:
    """Columns of the schema's types and widths, or an error that names the row and the remedy."""
    columns = _columns_of(items)
    _check_names(columns, schema)
    if all(column is None or len(column) == 0 for column in columns.values()):
        return Given(Rows(0, {}, None), None)  # without values, types can't be told
    time = times(columns["time"], schema, "time")
    count = len(time)
    known_at = time if columns.get("known_at") is None else times(columns["known_at"], schema, "known_at")
    labels, names = check_labels(columns["label"])
    stored: dict[str, NDArray[Any]] = {
        "time": time,
        "known_at": known_at,
        "label": labels,
        "id": check_ids(columns["id"], schema),
        "key": check_keys(columns["key"], schema.key, count),
    }
    for column in schema.features:
        stored[f"feature.{column.name}"] = _fixed_width(columns[column.name], column)
    for name, array in stored.items():
        if len(array) != count:
            raise ItemError(f"column {name} has {len(array)} rows, time has {count}: give one value per item")
    early = np.flatnonzero(known_at < time)
    if len(early):
        row = int(early[0])
        raise ItemError(
            f"row {row} has known_at {shown_moment(known_at[row].item(), schema)} before its time "
            f"{shown_moment(time[row].item(), schema)}: a label can't be known before the item happened; give the "
            "later moment, or leave known_at out"
        )
    payload = _payload(columns, schema, count) if len(schema.payload) else None
    return Given(Rows(count, stored, payload), names)


def _columns_of(items: Any) -> dict[str, Any]:
    """Columns by name, of whatever kind; pandas and polars are known by their names, never imported."""
    if isinstance(items, (pa.Table, pa.RecordBatch)):
        return {str(name): items.column(name) for name in items.schema.names}
    if isinstance(items, Mapping):
        return {str(name): column for name, column in items.items()}
    if _library(items) in ("pandas", "polars") and hasattr(items, "columns"):
        return {str(name): items[name] for name in items.columns}
    raise ItemError(
        f"items came as {type(items).__name__}: "
        "give a mapping of columns, a pandas or polars DataFrame, or a pyarrow Table"
    )


def _library(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _check_names(columns: Mapping[str, Any], schema: Schema) -> None:
    features = [column.name for column in schema.features]
    missing = [name for name in (*REQUIRED, *features) if columns.get(name) is None]
    missing += [field.name for field in schema.payload if not field.nullable and columns.get(field.name) is None]
    if missing:
        raise ItemError(f"items lack the column {', '.join(missing)}: this history's schema requires it")
    unknown = sorted(set(columns) - {*REQUIRED, "known_at", *features, *schema.payload.names})
    if unknown:
        raise ItemError(
            f"items have the column {', '.join(unknown)}, which is not in this history's schema: "
            "leave it out, or create a new history whose schema has it"
        )


# Columns


def _plain(values: Any) -> Any:
    """torch, pandas and polars to numpy or Arrow."""
    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    library = _library(values)
    if library == "polars":
        return values.to_arrow()
    if library == "pandas":
        return pa.Array.from_pandas(values) if values.dtype == object else _of_pandas(values)
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    return values


def _of_pandas(values: Any) -> Any:
    if getattr(values.dtype, "tz", None) is not None:
        return values.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    if isinstance(values.dtype, np.dtype):
        return values.to_numpy()
    return pa.Array.from_pandas(values)


def _array_of(values: Any, name: str) -> NDArray[Any] | torch.Tensor:
    """An array with one entry per item; lists become a second axis."""
    values = _plain(values)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        if values.null_count:
            row = int(np.flatnonzero(np.asarray(values.is_null().to_numpy(zero_copy_only=False)))[0])
            raise ItemError(f"row {row} has no {name}: fill it in, or leave the item out")
        if (
            pa.types.is_fixed_size_list(values.type)
            or pa.types.is_list(values.type)
            or pa.types.is_large_list(values.type)
        ):
            return _of_lists(values, name)
        if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
            return np.asarray(values.to_numpy(zero_copy_only=False))
        return (
            np.asarray(values.to_pylist())
            if not pa.types.is_string(values.type)
            else np.array(values.to_pylist(), object)
        )
    if isinstance(values, torch.Tensor):
        return values if values.dtype == torch.bfloat16 else values.numpy()
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ItemError(f"column {name} is not an array of one width ({error}): give rows of equal width") from error


def _of_lists(values: Any, name: str) -> NDArray[Any]:
    lengths = np.asarray(pa.compute.list_value_length(values).to_numpy(zero_copy_only=False))
    inner = _array_of(values.flatten(), name)
    assert isinstance(inner, np.ndarray)
    if len(lengths) and bool((lengths != lengths[0]).any()):
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        raise ItemError(
            f"row {row} of column {name} is {lengths[row]} wide, row 0 is {lengths[0]}: make them equally wide"
        )
    width = int(lengths[0]) if len(lengths) else 0
    return inner.reshape(len(lengths), width, *inner.shape[1:])


def _fixed_width(values: Any, column: Column) -> NDArray[Any]:
    array = _array_of(values, column.name)
    shape = tuple(array.shape[1:])
    if shape != column.shape and shape != (column.shape or (1,)):
        raise ItemError(
            f"column {column.name} has items of shape {shape}, the history's schema has {column.shape}: "
            "use the features the history was created with"
        )
    array = array.reshape(array.shape[0], *column.shape)
    if column.dtype == "bfloat16":
        return _as_bfloat16(array, column)
    if isinstance(array, torch.Tensor):
        array = array.float().numpy()
    return _cast(array, column)


def _as_bfloat16(array: NDArray[Any] | torch.Tensor, column: Column) -> NDArray[Any]:
    """numpy has no bfloat16, so its bits travel as uint16."""
    if isinstance(array, np.ndarray):
        array = torch.from_numpy(_cast(array, Column(column.name, "float32", column.shape)).copy())
    narrow = array.to(torch.bfloat16).contiguous()
    return narrow.view(torch.int16).numpy().view("<u2")


def _cast(array: NDArray[Any], column: Column) -> NDArray[Any]:
    """To the stored type if every value survives; floats may lose digits, but not overflow."""
    dtype = column.stored
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "O" or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ItemError(
            f"column {column.name} has the type {array.dtype}, the history stores {column.dtype}: convert it first"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    changed = (cast != array) if dtype.kind in "iu" else np.isfinite(array) & ~np.isfinite(cast)
    if bool(changed.any()):
        row = int(np.argwhere(changed)[0][0])
        raise ItemError(
            f"row {row} of column {column.name} holds a value that does not fit into {column.dtype}: scale it"
        )
    return cast


def check_keys(values: Any, key: Key, count: int) -> NDArray[Any]:
    """Finite keys of the right width, one for each of `count` items."""
    keys = _fixed_width(values, key.column)
    if len(keys) != count:
        raise ItemError(f"{len(keys)} keys came for {count} items: give one for each")
    exponent = 0x7F80  # of a bfloat16: all its bits are set if the number is infinite or none
    fine = (keys & exponent) != exponent if key.dtype == "bfloat16" else np.isfinite(keys)
    bad = ~fine.all(axis=1)
    if bool(bad.any()):
        raise ItemError(f"row {int(np.flatnonzero(bad)[0])} has a key that is not finite: such an item can't be found")
    return keys


def times(values: Any, schema: Schema, name: str) -> NDArray[Any]:
    """Moments as the history stores them: nanoseconds since 1970 in UTC, or plain numbers."""
    if schema.time == "nanoseconds":
        return _nanoseconds(_plain(values), name)
    array = _array_of(values, name)
    if isinstance(array, torch.Tensor):
        array = array.double().numpy()
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ItemError(
            f"{name} has the type {array.dtype}, this history's times are plain numbers: give one number per item"
        )
    numbers = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise ItemError(f"row {int(bad[0])} has {name} {numbers[bad[0]]}: give a finite number")
    return numbers


def _nanoseconds(values: Any, name: str) -> NDArray[np.int64]:
    if isinstance(values, (list, tuple)) and values and isinstance(values[0], (str, datetime.date)):
        values = pa.array([_utc(each) if isinstance(each, datetime.datetime) else each for each in values])
    if isinstance(values, np.ndarray) and values.dtype.kind in "UO":
        return _nanoseconds(values.tolist(), name)
    if isinstance(values, pa.Array) and not pa.types.is_integer(values.type):
        values = _timestamps(values, name)
    array = _array_of(values, name)
    if isinstance(array, torch.Tensor) or array.ndim != 1 or array.dtype.kind not in "iuM":
        raise ItemError(
            f"{name} has the type {array.dtype}, this history's times are moments: "
            "give datetimes, or whole nanoseconds since 1970 in UTC"
        )
    if array.dtype.kind == "M":
        missing = np.flatnonzero(np.isnat(array))
        if len(missing):
            raise ItemError(f"row {int(missing[0])} has no {name}: fill it in, or leave the item out")
        exact = array.astype("datetime64[ns]")
        far = np.flatnonzero(exact.astype(array.dtype) != array)
        if len(far):
            raise ItemError(f"row {int(far[0])} has {name} {array[far[0]]}: only the years 1678 to 2261 can be stored")
        array = exact
    return array.astype(np.int64)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    """Without a zone it is taken as UTC already."""
    return moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _timestamps(values: Any, name: str) -> NDArray[Any]:
    """Arrow timestamps, dates or ISO 8601 texts as datetime64."""
    try:
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            try:
                values = values.cast(pa.timestamp("ns"))
            except pa.ArrowInvalid:
                values = values.cast(pa.timestamp("ns", "UTC"))
        if pa.types.is_date(values.type):
            values = values.cast(pa.timestamp("ms"))
        if not pa.types.is_timestamp(values.type):
            raise ItemError(
                f"{name} has the type {values.type}, this history's times are moments: "
                "give datetimes, or whole nanoseconds since 1970 in UTC"
            )
        if values.null_count:
            return np.asarray(_array_of(values, name))  # raises
        return np.asarray(values.cast(pa.timestamp(values.type.unit)).to_numpy(zero_copy_only=False))
    except pa.ArrowInvalid as error:
        unread = re.search(r"parse string: ('.*?')", str(error))  # the rest of it is advice on Arrow
        raise ItemError(
            f"{name} can't be read as moments ({unread[1] if unread else error}): give datetimes, or ISO 8601 texts "
            "such as 2024-05-01T12:00:00Z"
        ) from error


def moment(value: Any, schema: Schema, name: str) -> Any:
    """One moment, as `times` would store it."""
    if schema.time == "nanoseconds" and isinstance(value, (str, datetime.date)):
        return times([value], schema, name)[0].item()
    return times(np.asarray(value).reshape(1), schema, name)[0].item()


def shown_moment(value: int | float, schema: Schema) -> str | float:
    """A stored moment as people write it."""
    return f"{np.datetime64(int(value), 'ns')}Z" if schema.time == "nanoseconds" else value


def check_ids(values: Any, schema: Schema) -> NDArray[Any]:
    """Stored ids: whole numbers, or UTF-8 padded with zero bytes to one width."""
    if (
        schema.id == "string"
        and isinstance(values, (list, tuple))
        and any(isinstance(each, str) for each in values[:1])
    ):
        return _encoded(list(values))  # numpy would take a NUL at the end of a text for padding
    array = _array_of(values, "id")
    if schema.id == "integer":
        if isinstance(array, torch.Tensor) or array.ndim != 1 or array.dtype.kind not in "iu":
            raise ItemError(f"ids have the type {array.dtype}, this history's ids are whole numbers: give those")
        return _cast(array, Column("id", "int64"))
    if isinstance(array, torch.Tensor) or array.ndim != 1 or array.dtype.kind not in "UOT":
        raise ItemError(f"ids have the type {array.dtype}, this history's ids are texts: give those")
    return _encoded(array.tolist())


def _encoded(ids: list[Any]) -> NDArray[Any]:
    try:
        together = "".join(ids)
    except TypeError:
        together = "\0"
    if "\0" in together or "" in ids:
        row = next(row for row, each in enumerate(ids) if not isinstance(each, str) or not each or "\0" in each)
        raise ItemError(
            f"row {row} has the id {ids[row]!r}: an id is a text of one character or more, none of them NUL"
        )
    if not ids:
        return np.empty(0, "S1")
    stored = np.array(ids).astype("S") if together.isascii() else np.array([each.encode() for each in ids])
    if stored.dtype.itemsize > MAX_ID_BYTES:
        row = int(np.argmax(np.strings.str_len(stored)))
        raise ItemError(f"the id of row {row} is longer than {MAX_ID_BYTES} bytes: use a hash of it")
    return stored


def check_labels(values: Any) -> tuple[NDArray[np.int64], list[str] | None]:
    """Codes; or if names came, zeros and the names."""
    array = _array_of(values, "label")
    if isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "UOT":
        names = array.tolist()
        for row, name in enumerate(names):
            if not isinstance(name, str) or not name:
                raise ItemError(f"row {row} has the label {name!r}: give the name of a class, or a code for every item")
        return np.zeros(len(names), np.int64), names
    if isinstance(array, torch.Tensor) or array.ndim != 1 or array.dtype.kind not in "iub":
        raise ItemError(f"labels have the type {array.dtype}: give names of classes, or their codes as whole numbers")
    codes = array.astype(np.int64)
    bad = np.flatnonzero(codes < 0)
    if len(bad):
        raise ItemError(f"row {int(bad[0])} has the label {codes[bad[0]]}: codes count from 0")
    return codes, None


def _payload(columns: Mapping[str, Any], schema: Schema, count: int) -> pa.Table:
    arrays = []
    for field in schema.payload:
        given = columns.get(field.name)
        try:
            array = pa.nulls(count, field.type) if given is None else _payload_column(given, field)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ItemError(
                f"payload {field.name} is not of the type {field.type} ({error}): convert it first"
            ) from error
        if len(array) != count:
            raise ItemError(f"payload {field.name} has {len(array)} rows, time has {count}: give one value per item")
        if not field.nullable and array.null_count:
            raise ItemError(f"payload {field.name} may not be empty in this history: fill it in")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema.payload)


def _payload_column(given: Any, field: Any) -> Any:
    plain = _plain(given)
    if isinstance(plain, torch.Tensor):
        plain = plain.numpy()
    if isinstance(plain, pa.Array):
        return plain.cast(field.type)
    if isinstance(plain, np.ndarray) and plain.ndim > 1:
        plain = list(plain)
    return pa.array(plain, type=field.type)
