"""Tokens and where they are needed."""

from pathlib import Path

import pytest

from recollect.cli_serve import seconds_from
from recollect.errors import SettingError
from recollect.serving.settings import Limits, Settings, Tokens, is_loopback, state_of

LONG = "0123456789abcdef"


def test_scopes_add_up() -> None:
    tokens = Tokens.from_environment(
        {"RECOLLECT_PREDICT_TOKEN": f"{LONG}1 {LONG}2", "RECOLLECT_PAYLOADS_TOKEN": f"{LONG}2", "RECOLLECT_TOKEN": LONG}
    )
    assert tokens.scopes(f"Bearer {LONG}1") == {"predict"}
    assert tokens.scopes(f"bearer {LONG}2 ") == {"predict", "payloads"}
    assert tokens.scopes(f"Bearer {LONG}") == {"predict", "write", "payloads"}
    for wrong in (None, "", LONG, "Bearer", "Bearer ", f"Basic {LONG}", f"Bearer {LONG}3", f"Bearer {LONG}é"):
        assert tokens.scopes(wrong) is None
    assert LONG not in repr(vars(tokens))


def test_weak_tokens_are_refused() -> None:
    for weak in ("short", "é" * 20):
        with pytest.raises(SettingError, match="openssl"):
            Tokens.from_environment({"RECOLLECT_TOKEN": weak})


def test_without_tokens_only_this_machine_is_served() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(SettingError, match="RECOLLECT_TOKEN"):
            Settings(Path("m"), "h", Path("s"), host=host)
        Settings(Path("m"), "h", Path("s"), host=host, tokens=Tokens.from_environment({"RECOLLECT_TOKEN": LONG}))
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        Settings(Path("m"), "h", Path("s"), host=host)


def test_limits_and_places() -> None:
    for wrong in (0.0, float("nan"), float("inf")):
        with pytest.raises(SettingError, match="seconds"):
            Limits(idle_seconds=wrong)
        if wrong:
            with pytest.raises(SettingError, match="kept"):
                Settings(Path("m"), "h", Path("s"), keep_seconds=wrong)
    assert state_of("./h/") == Path("./h.service")
    with pytest.raises(SettingError, match="--state"):
        state_of("s3://bucket/h")
    assert (seconds_from("90d"), seconds_from("0"), seconds_from("1.5h")) == (90 * 86_400, 0, 5400)
    for wrong in ("", "90", "d", "-", "9y", "-5d", "nand", "infd"):
        with pytest.raises(SettingError, match="90d"):
            seconds_from(wrong)
