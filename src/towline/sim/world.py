"""The simulated forge: pure and deterministic, moved by its agenda alone.

It has no clock, no threads and no I/O, and its dice come from a seed: the same calls make the
same world. HTTP and the in-process forge are skins over it. A repository is named `owner/name`
everywhere, and `by` is the login of who acts. What the forge refuses is a `WorldRefusal`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from towline.sim.entities import Emitted
from towline.sim.world_merging import WorldMerging
from towline.sim.world_talk import WorldTalk


class World(WorldMerging, WorldTalk):
    """All of it; each part is in the file of its noun."""


def trace_hash(told: Iterable[Emitted]) -> str:
    """Of everything that was told: equal for two runs of the same seed."""
    digest = hashlib.sha256()
    for emitted in told:
        digest.update(repr(emitted).encode())
    return digest.hexdigest()
