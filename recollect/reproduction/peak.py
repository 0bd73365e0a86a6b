"""How much anonymous memory a process takes at its peak: this one, or one that is started to be measured.

Anonymous memory (RssAnon) is what a process allocated; files that it has mapped don't count. It is sampled every two
milliseconds. Knows nothing of what is measured, nor of predictions.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.errors import RecollectError

STATUS = Path("/proc/self/status")

GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
"""Makes glibc give freed memory of 128 kB or more back at once, so that tensors are measured and not its heap. Left
alone it raises that threshold to 32 MB by and by, and its heap fragments."""

SECONDS_BETWEEN = 0.002


@dataclass
class Peak:
    """The most that was seen; final when the block that watches has ended."""

    bytes: int = 0


def anonymous_bytes(status: Path = STATUS) -> int:
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RecollectError(f"{status} has no RssAnon: memory can be measured on Linux 4.5 or later only")


@contextmanager
def peak_bytes(status: Path = STATUS) -> Iterator[Peak]:
    """Watch a process while the block runs; it may end before the block does."""
    peak, done = Peak(), threading.Event()

    def look() -> None:
        try:
            peak.bytes = max(peak.bytes, anonymous_bytes(status))
        except (OSError, RecollectError):
            if status == STATUS:  # one that has ended has no memory to speak of
                raise

    def watch() -> None:
        while not done.wait(SECONDS_BETWEEN):
            look()

    look()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        look()


@contextmanager
def peak_extra_bytes() -> Iterator[Peak]:
    """The peak of this process above what there was at first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give back what warming up has freed, or it would be used again unseen
    before, extra = anonymous_bytes(), Peak()
    with peak_bytes() as peak:
        yield extra
    extra.bytes = peak.bytes - before


def run_apart(arguments: list[str], *, gives_back: bool = True) -> dict[str, Any]:
    """Run Python in a fresh process, whose allocator gives freed memory back at once, or is left as it is.

    Returns the JSON object that it prints last, with the peak of the whole process as `process_bytes`.
    """
    if not STATUS.exists():
        raise RecollectError(f"there is no {STATUS}: memory can be measured on Linux only")
    command = [sys.executable, *arguments]
    environment = {**os.environ, **(GIVES_BACK if gives_back else {})}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        with peak_bytes(Path(f"/proc/{process.pid}/status")) as peak:
            printed, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return {**result, "process_bytes": peak.bytes}
