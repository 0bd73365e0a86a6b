"""What a service is told when it starts: where things are, who may do what, and how much it takes on at once."""

import hashlib
import hmac
import ipaddress
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from recollect.errors import SettingError

Scope = Literal["predict", "write", "payloads"]
"""`predict`: answers and what is known of the service. `write`: items, labels, corrections, erasures, reloading.
`payloads`: the raw rows of items, which are other people's data."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERYTHING = frozenset(SCOPES)

VARIABLES: dict[str, frozenset[Scope]] = {
    "RECOLLECT_TOKEN": EVERYTHING,
    "RECOLLECT_PREDICT_TOKEN": frozenset({"predict"}),
    "RECOLLECT_WRITE_TOKEN": frozenset({"write"}),
    "RECOLLECT_PAYLOADS_TOKEN": frozenset({"payloads"}),
}
"""Each may hold several tokens, separated by spaces; a token may stand in several, and then has all their scopes."""

LEAST_TOKEN = 16


class Tokens:
    """Who may do what. Of tokens only digests are held."""

    def __init__(self, scopes: Mapping[str, frozenset[Scope]]) -> None:
        self._scopes = {_digest(token): allowed for token, allowed in scopes.items()}

    def __bool__(self) -> bool:
        return bool(self._scopes)

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> "Tokens":
        scopes: dict[str, frozenset[Scope]] = {}
        for variable, allowed in VARIABLES.items():
            for token in environment.get(variable, "").split():
                if len(token) < LEAST_TOKEN or not token.isascii():
                    raise SettingError(
                        f"{variable} has a token that is too short or not ASCII: use {LEAST_TOKEN} characters or more, "
                        "such as openssl rand -hex 32 makes"
                    )
                scopes[token] = scopes.get(token, frozenset()) | allowed
        return Tokens(scopes)

    def scopes(self, authorization: str | None) -> frozenset[Scope] | None:
        """What the sender of this header may do; None for nobody we know. Takes the same time for any wrong token."""
        if not self._scopes:
            return EVERYTHING
        kind, _, token = (authorization or "").partition(" ")
        asked = _digest(token.strip())
        found: frozenset[Scope] | None = None
        for digest, allowed in self._scopes.items():  # to the end, whichever it is
            if hmac.compare_digest(digest, asked):
                found = allowed
        return found if kind.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


@dataclass(frozen=True)
class Limits:
    """How much is taken on at once; what is beyond is refused with a reason."""

    body_bytes: int = 4 << 20
    bodies: int = 16
    """So many of the largest bodies may be in memory at a time."""
    batch: int = 256
    text: int = 20_000
    queue: int = 1024
    request_seconds: float = 30.0
    body_seconds: float = 10.0
    idle_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise SettingError(f"the limit {name} is {value}: it must be a number above 0")


@dataclass(frozen=True)
class Settings:
    """`state` is a directory of the service's own: inputs it kept, and what it computed that can be used again. If it
    doesn't `stores`, it only reads there."""

    model: Path
    history: str
    state: Path
    host: str = "127.0.0.1"
    port: int = 8000
    read_only: bool = False
    keep_seconds: float = 90 * 86_400.0
    stores: bool = True
    limits: Limits = field(default_factory=Limits)
    tokens: Tokens = field(default_factory=lambda: Tokens({}))

    def __post_init__(self) -> None:
        if not 0 <= self.keep_seconds < math.inf:
            raise SettingError(f"inputs can't be kept for {self.keep_seconds} s: give 0 or more")
        if not self.tokens and not is_loopback(self.host):
            raise SettingError(
                f"{self.host} can be reached by others: set RECOLLECT_TOKEN to a secret of {LEAST_TOKEN} characters or "
                "more, or bind to 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def state_of(history: str) -> Path:
    """Beside a local history; one that lies elsewhere says nothing of where there is room here."""
    if "://" in history:
        raise SettingError(f"{history} is not on this machine: say with --state where the service may keep its files")
    return Path(history.rstrip("/") + ".service")
