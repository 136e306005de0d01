"""Wrong API keys are slowed: so many a minute from one address, and at one key.

A guess is counted for its address, and for its address and the beginning of the key together.
Where the second count is full, nothing from there is compared with that key: this is what slows
a search for its secret. Where only the first is full, wrong keys get 429 and right ones pass, so
that a guesser behind the same address locks no other user out; from other addresses nothing
changes.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from towline_once.ports import Clock

MOST_WRONG: Final = 10
SECONDS: Final = 60.0
_MOST_ADDRESSES: Final = 4096
_FORWARDED_FOR: Final = b"x-forwarded-for"
_MOST_HOPS: Final = 32
_SITE_BITS: Final = 64

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Counts:
    """The latest failures of each, for so many of them; the one that failed longest ago goes."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._failed: dict[Hashable, deque[float]] = {}

    def __bool__(self) -> bool:
        return bool(self._failed)

    def wait(self, of: Hashable) -> float:
        """Seconds until there may be another failure; zero if there may be one now."""
        failed = self._failed.get(of)
        now = self._clock.monotonic()
        while failed and failed[0] <= now - self._seconds:
            failed.popleft()
        if not failed or len(failed) < self._most:
            return 0.0
        return failed[0] + self._seconds - now

    def count(self, of: Hashable) -> None:
        failed = self._failed.pop(of, None) or deque(maxlen=self._most)
        failed.append(self._clock.monotonic())
        while len(self._failed) >= _MOST_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed[of] = failed


class Attempts:
    def __init__(self, clock: Clock, most: int = MOST_WRONG, seconds: float = SECONDS) -> None:
        self._by_address = _Counts(clock, most, seconds)
        self._by_key = _Counts(clock, most, seconds)

    def wait(self, address: str, key: bytes) -> float:
        """Seconds until a key that begins so may be tried from there; zero if it may now."""
        if not self._by_key:
            return 0.0
        return self._by_key.wait((_site(address), key))

    def failed(self, address: str, key: bytes) -> float:
        """Count a wrong key; seconds to wait if there were too many from this address before."""
        site = _site(address)
        self._by_key.count((site, key))
        wait = self._by_address.wait(site)
        if not wait:
            self._by_address.count(site)
        return wait


def _site(address: str) -> str:
    """A customer has the 2^64 addresses of an IPv6 network at once."""
    found = _parsed(address)
    if not isinstance(found, ipaddress.IPv6Address):
        return address
    return str(ipaddress.ip_network((found, _SITE_BITS), strict=False))


class Proxies:
    """The proxies in front, whose X-Forwarded-For is believed."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._networks: list[IpNetwork] = [ipaddress.ip_network(text) for text in networks]

    def client_of(self, headers: Iterable[tuple[bytes, bytes]], peer: str | None) -> str:
        """The client's address: from the nearest hop on, the first that is no proxy of ours."""
        nearest = _parsed(peer or "")
        if nearest is None:
            return peer or ""
        lines = [value for name, value in headers if name == _FORWARDED_FOR]
        hops = b",".join(lines).decode("latin-1").rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]
        for hop in reversed(hops):
            further = _parsed(_without_port(hop.strip()))
            if further is None or not self._trusts(nearest):
                break
            nearest = further
        return str(nearest)

    def _trusts(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)


@lru_cache(4096)
def _parsed(text: str) -> IpAddress | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _without_port(text: str) -> str:
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


NO_PROXIES: Final = Proxies(())
