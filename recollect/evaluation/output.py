"""Where a reproduction writes: report.json, figures as PNG and SVG, and DONE last; nothing is overwritten unasked."""

from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from recollect.errors import OutputExistsError
from recollect.plain_json import as_json

DONE = "DONE"


def claim(out: Path, *, force: bool, resumable: str | None = None) -> None:
    """Make the directory ready for a new result; refuse if one is there, unless forced."""
    check_free(out, force=force, resumable=resumable)
    # Made at once, so that a run is known to be one that can be gone on with from its first moment.
    (out / (resumable or "")).mkdir(parents=True, exist_ok=True)
    (out / DONE).unlink(missing_ok=True)


def check_free(out: Path, *, force: bool, resumable: str | None = None) -> None:
    """Refuse if a result is there, unless forced. Nothing is written.

    What an interrupted run left is no obstacle where a folder called `resumable` says that it can be gone on with.
    """
    interrupted = resumable is not None and (out / resumable).exists() and not (out / DONE).exists()
    if out.exists() and any(out.iterdir()) and not force and not interrupted:
        what = "a result" if (out / DONE).exists() else "files, of an interrupted run perhaps"
        raise OutputExistsError(f"{out} already holds {what}: add --force to replace it, or choose another --out")


def save_figure(figure: Figure, out: Path, name: str) -> None:
    for ending in ("png", "svg"):
        figure.savefig(out / f"{name}.{ending}", dpi=150, bbox_inches="tight")


def finish(out: Path, report: dict[str, Any]) -> Path:
    """Write the report, beside and renamed, then DONE: what lacks it is not a result."""
    path = out / "report.json"
    beside = out / ".report.json.tmp"
    beside.write_text(as_json(report, _written, indent=1))
    beside.rename(path)
    (out / DONE).touch()
    return path


def moment(value: Any) -> str | float:
    """A time as JSON has it: ISO 8601 for moments, the number itself for plain ones."""
    if isinstance(value, (int, np.integer)):
        return str(np.datetime64(int(value), "ns").astype("datetime64[s]"))
    return float(value)


def _written(value: Any) -> str:
    """Of what JSON doesn't know: times and decimals, which people's tables hold."""
    if isinstance(value, (date, time, timedelta, Decimal)):
        return str(value)
    raise TypeError(f"a report can't hold a {type(value).__name__}")
