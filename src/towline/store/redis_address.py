"""Where a Redis is and who we are to it, read from its URL. Secrets never reach a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from towline.errors import Rejected

_FORM = "redis://[user:password@]host[:port][/database][?allow_eviction=1], or rediss:// for TLS"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}

Renewed = Callable[[str, str], None]


class CredentialSource(Protocol):
    """Gives the user name and the password or token of the moment."""

    async def get(self) -> tuple[str, str]: ...

    def on_renewal(self, renewed: Renewed) -> None:
        """Have `renewed(user, token)` called, in the loop, whenever the token was renewed."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    user: str
    password: str = field(repr=False)

    async def get(self) -> tuple[str, str]:
        return self.user, self.password

    def on_renewal(self, renewed: Renewed) -> None:
        """A password of a URL is never renewed."""

    async def aclose(self) -> None:
        return None


class Address(NamedTuple):
    host: str
    port: int
    database: int
    tls: bool
    allow_eviction: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_url(url: str) -> tuple[Address, FixedCredentials | None]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The text of the error may quote a piece of the password.
        raise Rejected(f"the Redis URL cannot be read; its form is {_FORM}") from None
    if parts.scheme not in ("redis", "rediss") or not host or parts.fragment:
        raise Rejected(f"a Redis URL has the form {_FORM}; escape #, /, ? and @ in the password")
    address = Address(
        host, port or 6379, _database(parts.path), parts.scheme == "rediss", _evicting(parts.query)
    )
    if parts.password is None:
        return address, None
    return address, FixedCredentials(unquote(parts.username or "default"), unquote(parts.password))


def _database(path: str) -> int:
    name = path.strip("/")
    if not name:
        return 0
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        raise Rejected(f"the path of a Redis URL is the number of a database; its form is {_FORM}")
    return int(name)


def _evicting(query: str) -> bool:
    allowed = False
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "allow_eviction" or value not in _SWITCHES:
            raise Rejected(f"a Redis URL knows one option, allow_eviction=1, not {name[:50]!r}")
        allowed = _SWITCHES[value]
    return allowed
