"""The circuit breaker's arithmetic.

    closed ──failures pass the threshold within the window──▸ open
    open ──cooldown over: one probe is admitted──▸ half open
    half open ──probe succeeded──▸ closed     ──probe failed──▸ open

Outcomes are counted in buckets of a thirtieth of the window, so the state stays small. The probe
is a lease: if its holder never reports, the next caller may probe when the lease has run out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

State = Literal["closed", "open", "half_open"]

_BUCKETS = 30


class Limits(NamedTuple):
    window_us: int
    threshold: float
    minimum: int
    cooldown_us: int


@dataclass(frozen=True, slots=True)
class Circuit:
    """All that is known of a breaker. `opened_us` is zero while it is closed."""

    opened_us: int = 0
    trips: int = 0
    epoch: int = 0
    probe: str = ""
    probe_until_us: int = 0
    buckets: tuple[tuple[int, int, int], ...] = ()
    """(bucket number, successes, failures), oldest first."""
    opening_us: int = 0
    """When it left closed; probes that failed since are further trips of that one opening."""
    rate: float = 0.0
    """The share of failures that opened it."""


def state_of(circuit: Circuit, now: int, limits: Limits) -> State:
    if not circuit.opened_us:
        return "closed"
    if circuit.probe or now >= circuit.opened_us + limits.cooldown_us:
        return "half_open"
    return "open"


def admits(circuit: Circuit, now: int, limits: Limits) -> bool:
    """Whether a caller may go ahead; for a half-open breaker, whether it may probe."""
    state = state_of(circuit, now, limits)
    if state == "closed":
        return True
    return state == "half_open" and (not circuit.probe or circuit.probe_until_us <= now)


def with_probe(circuit: Circuit, holder: str, until_us: int) -> Circuit:
    return replace(circuit, probe=holder, probe_until_us=until_us)


def without_probe(circuit: Circuit, holder: str) -> Circuit:
    """The probe came to nothing: give it back, so that the next caller may probe."""
    if circuit.probe != holder:
        return circuit
    return replace(circuit, probe="", probe_until_us=0)


def counts(circuit: Circuit, now: int, limits: Limits) -> tuple[int, int]:
    """Successes and failures within the window."""
    live = _live(circuit, now, limits)
    return sum(b[1] for b in live), sum(b[2] for b in live)


def record(
    circuit: Circuit, now: int, limits: Limits, epoch: int, successes: int, failures: int
) -> Circuit:
    """Count outcomes of calls that were admitted in `epoch`; open if there are too many failures.

    Outcomes of calls from before the last opening or closing say nothing about now.
    """
    if circuit.opened_us or epoch != circuit.epoch:
        return circuit
    circuit = replace(circuit, buckets=_added(circuit, now, limits, successes, failures))
    good, bad = counts(circuit, now, limits)
    total = good + bad
    if total >= limits.minimum and (bad > limits.threshold * total or bad == total):
        return replace(_opened(circuit, now), opening_us=now, rate=bad / total)
    return circuit


def probed(circuit: Circuit, now: int, holder: str, succeeded: bool) -> Circuit:
    """The probe's verdict; that of a probe whose lease went to another is ignored."""
    if circuit.probe != holder:
        return circuit
    if succeeded:
        return closed(circuit)
    return replace(_opened(circuit, now), opening_us=circuit.opening_us, rate=circuit.rate)


def closed(circuit: Circuit) -> Circuit:
    return Circuit(trips=circuit.trips, epoch=circuit.epoch + 1)


def _opened(circuit: Circuit, now: int) -> Circuit:
    return Circuit(opened_us=now, trips=circuit.trips + 1, epoch=circuit.epoch + 1)


def _live(circuit: Circuit, now: int, limits: Limits) -> tuple[tuple[int, int, int], ...]:
    width = max(1, limits.window_us // _BUCKETS)
    oldest = (now - limits.window_us) // width
    return tuple(b for b in circuit.buckets if b[0] > oldest)


def _added(
    circuit: Circuit, now: int, limits: Limits, successes: int, failures: int
) -> tuple[tuple[int, int, int], ...]:
    number = now // max(1, limits.window_us // _BUCKETS)
    live = _live(circuit, now, limits)
    if live and live[-1][0] == number:
        _, good, bad = live[-1]
        return (*live[:-1], (number, good + successes, bad + failures))
    return (*live, (number, successes, failures))
