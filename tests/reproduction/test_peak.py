"""What a process allocates is seen, in this one and in another."""

import subprocess
import time

import pytest
import torch

from recollect.errors import RecollectError
from recollect.reproduction import peak
from recollect.reproduction.peak import STATUS, anonymous_bytes, peak_bytes, peak_extra_bytes, run_apart

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="memory is measured through /proc")

MB = 1_000_000


def test_what_is_allocated_within_the_block_is_seen() -> None:
    with peak_extra_bytes() as extra, peak_bytes() as whole:
        held = torch.ones(20 * MB)
        kept = anonymous_bytes()
        time.sleep(0.2)  # for a few looks
        del held
    assert extra.bytes == pytest.approx(80 * MB, rel=0.1)
    assert whole.bytes >= kept - MB


def test_another_process_is_watched_from_its_start_to_its_end() -> None:
    small, large = (
        run_apart(["-c", f"import time; held = bytearray({size}); time.sleep(0.2); print('x'); print('{{\"a\": 1}}')"])
        for size in (1, 60 * MB)
    )
    assert small["a"] == large["a"] == 1
    assert large["process_bytes"] - small["process_bytes"] == pytest.approx(60 * MB, rel=0.1)


def test_a_process_that_fails_is_an_error() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run_apart(["-c", "raise SystemExit(3)"])


def test_where_memory_can_not_be_measured_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "STATUS", STATUS.with_name("not there"))
    with pytest.raises(RecollectError, match="on Linux only"):
        run_apart(["-c", ""])
