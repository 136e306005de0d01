"""Where a Redis is and how we log in there, read from its URL.

redis-py reads the URL. Before that, we refuse what it would silently ignore or replace by a
default. Secrets never reach a message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from towline_once.errors import MissingExtra, Rejected

try:
    from redis.asyncio import connection as redis_py
except ModuleNotFoundError as missing:
    raise MissingExtra("redis:// needs redis-py: pip install 'towline[redis]'") from missing

_FORM = (
    "redis://[user:password@]host[:port][/database][?allow_eviction=1], or rediss:// for TLS, or "
    "unix:///file for a socket"
)
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}
_TLS_OPTIONS = {
    "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname", "ssl_min_version",
    "ssl_ciphers",
}  # fmt: skip
"""Those that every version of redis-py has. A server without a valid certificate is never taken."""


@dataclass(frozen=True, slots=True)
class Address:
    """`options` are what redis-py makes a connection of, without user and password."""

    kind: type[redis_py.AbstractConnection]
    options: dict[str, Any] = field(repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    allow_eviction: bool = False

    def __str__(self) -> str:
        return str(self.options.get("path") or f"{self.options['host']}:{self.options['port']}")

    @property
    def database(self) -> int:
        return int(self.options["db"])

    @property
    def tls(self) -> bool:
        return issubclass(self.kind, redis_py.SSLConnection)

    def connection(self, user: str | None, password: str | None) -> redis_py.AbstractConnection:
        """A connection that is not connected yet. It has no deadlines: those are ours."""
        return self.kind(
            **self.options,
            username=user,
            password=password,
            protocol=3,
            client_name="towline",
            socket_timeout=None,
            socket_connect_timeout=None,
            decode_responses=True,
            encoding_errors="surrogateescape",
        )


def parse_url(url: str) -> Address:
    try:
        parts = urlsplit(url)
        allowed = _check(parts)
        given: dict[str, Any] = {**redis_py.parse_url(url)}
        if "ssl_min_version" in given:  # a text in older versions of redis-py
            given["ssl_min_version"] = int(given["ssl_min_version"])
    except ValueError:
        # The text of the error may quote a piece of the password.
        raise Rejected(f"the Redis URL cannot be read; its form is {_FORM}") from None
    given.pop("allow_eviction", None)
    given.setdefault("db", 0)
    kind = given.pop("connection_class", redis_py.Connection)
    if parts.scheme != "unix":
        given.setdefault("port", 6379)
        given["socket_keepalive"] = True
    return Address(kind, given, given.pop("username", None), given.pop("password", None), allowed)


def _check(parts: SplitResult) -> bool:
    """Refuse what redis-py would overlook; whether the server may drop data."""
    unix = parts.scheme == "unix"
    place = parts.path if unix else parts.hostname
    stray = parts.fragment or (unix and parts.hostname)
    if parts.scheme not in ("redis", "rediss", "unix") or not place or stray:
        raise Rejected(f"a Redis URL has the form {_FORM}; escape #, /, ? and @ in the password")
    known = {"allow_eviction"} | ({"db"} if unix else set())
    if parts.scheme == "rediss":
        known |= _TLS_OPTIONS
    options = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in options:
        if name not in known or not value:
            raise Rejected(
                f"a Redis URL knows the options {', '.join(sorted(known))}, "
                f"not {name[:50]!r} as given"
            )
    given = dict(options)
    database = given.get("db", "0") if unix else parts.path.strip("/")
    if database and not (database.isascii() and database.isdigit() and len(database) < 10):
        raise Rejected(f"the database of a Redis URL is a number; its form is {_FORM}")
    switch = given.get("allow_eviction", "0")
    if switch not in _SWITCHES:
        raise Rejected(f"allow_eviction in a Redis URL is 1 or 0, not {switch[:50]!r}")
    return _SWITCHES[switch]
