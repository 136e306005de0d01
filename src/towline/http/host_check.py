"""Checks the `Host` of a request, against DNS rebinding.

A browser that visits a hostile page can be made to send requests to an address of the operator's
own network: the page's name first resolves to the attacker, then to that address. Such a request
carries the page's name in `Host`. So a server answers only to names that it knows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final

from towline_once.asgi.messages import Problem

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
WEBHOOKS: Final = b"/webhooks/"
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
_LONGEST: Final = 300
_SHOWN: Final = 80


class Hosts:
    """The names that a server answers to.

    Beside `allowed` these always pass: the names of loopback, the names in `listening` (the
    addresses that the operator chose to listen on), and the very address at which the connection
    was accepted. Webhooks of the sources in `signed` pass under any name: their signature is
    checked, so that a browser gains nothing by sending them, and tunnels keep their own name.
    """

    def __init__(
        self,
        allowed: Iterable[str] = (),
        listening: Iterable[str] = (),
        signed: Collection[str] = (),
    ) -> None:
        names = set(allowed)
        self._any = "*" in names
        self._endings = tuple(name[1:] for name in names if name.startswith("*."))
        own = {_plain(name) for name in listening} - _WILDCARDS
        self._names = LOOPBACK | own | {_plain(name) for name in names}
        self._signed = frozenset(name.encode() for name in signed)
        self._allows = lru_cache(maxsize=256)(self._judge)

    def check(self, host: bytes, address: str | None, url: bytes) -> None:
        """Raise a `Problem` unless a request for this `url` may come under this name."""
        if self._any or (len(host) <= _LONGEST and self._allows(host, address)):
            return
        if url.startswith(WEBHOOKS):
            source = url[len(WEBHOOKS) :].partition(b"?")[0].partition(b"/")[0]
            if source in self._signed:
                return
        shown = host[:_SHOWN].decode("ascii", "backslashreplace")
        raise Problem(
            421,
            "host_not_allowed",
            f"this server does not answer to the Host {shown!r}: add the name to "
            "serve.allowed_hosts (TOWLINE_SERVE__ALLOWED_HOSTS) if it is yours",
        )

    def _judge(self, host: bytes, address: str | None) -> bool:
        found = _HOST.fullmatch(host.decode("latin-1"))
        if found is None:
            return False
        name = _plain(found[1] or found[2])
        if name in self._names or name.endswith(self._endings):
            return True
        return address is not None and name == _plain(address)


def _plain(name: str) -> str:
    """In lower case, without the dot at the end; an address in its shortest form."""
    name = name.lower().removesuffix(".").strip("[]")
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
