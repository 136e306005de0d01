"""Bodies as they are kept: compressed. Webhooks shrink to a quarter."""

from __future__ import annotations

import threading
from typing import NamedTuple

import zstandard

from towline.ports.inbox import Arrival

_LARGEST = 64 * 1024 * 1024


class _Tools(threading.local):
    """Each thread has its own: they must not be used by two at once."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=1).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_tools = _Tools()


def packed(body: bytes) -> bytes:
    return _tools.compress(body)


def unpacked(kept: bytes | None) -> bytes | None:
    """None as well for what cannot be read any more."""
    if kept is None:
        return None
    try:
        if zstandard.frame_content_size(kept) > _LARGEST:  # room is made for what it says
            return None
        return _tools.decompress(kept, max_output_size=_LARGEST)
    except zstandard.ZstdError:
        return None


class Parcel(NamedTuple):
    """An arrival, and its body as it is kept.

    It is packed by the thread that serves, while another flight is under way. Packing gives the
    interpreter's lock away, for each of which a writer's thread would fight the one that serves.
    """

    key: str
    arrival: Arrival
    body: bytes


def parcel(arrival: Arrival) -> Parcel:
    return Parcel(arrival.key, arrival, packed(arrival.body))


def subject_of_parcel(parcel: Parcel) -> str | None:
    return parcel.arrival.job.subject
