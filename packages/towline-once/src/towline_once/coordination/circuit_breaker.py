"""A circuit breaker shared by processes: one small document, changed by compare-and-swap."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import orjson

from towline_once.errors import Transient
from towline_once.loop_guard import LoopGuard
from towline_once.metrics import BREAKER_TRIPS, Audit
from towline_once.ports import Clock, DocumentStore

# ------------------------------------------------------------------ arithmetic
# The circuit breaker's arithmetic.
#
#     closed ──failures pass the threshold within the window──▸ open
#     open ──cooldown over: one probe is admitted──▸ half open
#     half open ──probe succeeded──▸ closed     ──probe failed──▸ open
#
# Outcomes are counted in buckets of a thirtieth of the window, so the state stays small. The
# probe
# is a lease: if its holder never reports, the next caller may probe when the lease has run out.

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


# ------------------------------------------------------------------ the service

_CONTENTION_ROUNDS = 32
_REMEMBERED_WRITES = 16
_COUNTED = ("opened_us", "trips", "epoch", "probe_until_us", "opening_us")
_MOST = 2**62
_log = logging.getLogger("towline.coordination")


class Report(NamedTuple):
    """A breaker as it stands; `opening_us` and `failure_rate` tell when and why it opened."""

    name: str
    state: State
    trips: int
    opening_us: int
    failure_rate: float
    opened_us: int
    successes: int
    failures: int


class Permit:
    """Gives leave to make one call. Report the outcome once; a second report does nothing.

    ```python
    async with towline_once.Breaker.open("memory://", "bank") as breaker:
        permit = await breaker.admit()
        assert not permit.is_probe
        await permit.ignored()
    ```
    """

    def __init__(self, breaker: BreakerService, epoch: int, probe: str) -> None:
        self._breaker = breaker
        self._epoch = epoch
        self._probe = probe
        self._spoken = False

    @property
    def is_probe(self) -> bool:
        return bool(self._probe)

    async def succeeded(self) -> None:
        """Report that the call succeeded. A probe that succeeds closes the breaker.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            await (await breaker.admit()).succeeded()
        ```
        """
        await self._say(True)

    async def failed(self) -> None:
        """Report that the call failed. A probe that fails opens the breaker again.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            await (await breaker.admit()).failed()
        ```
        """
        await self._say(False)

    async def ignored(self) -> None:
        """Report that the call showed nothing of the other side's health; a probe is given back.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            await (await breaker.admit()).ignored()
        ```
        """
        self._breaker._guard.check("Breaker")
        if not self._spoken and self._probe:
            await self._breaker._give_back(self._probe)
        self._spoken = True

    async def _say(self, succeeded: bool) -> None:
        self._breaker._guard.check("Breaker")
        if not self._spoken:
            self._spoken = True
            await self._breaker._outcome(self._epoch, self._probe, succeeded)


class BreakerService:
    """Stops calls to what keeps failing, and tries again with care. See `Breaker.open`."""

    def __init__(
        self,
        documents: DocumentStore,
        clock: Clock,
        name: str,
        limits: Limits,
        probe_us: int,
        audit: Audit,
        guard: LoopGuard | None = None,
    ) -> None:
        self.name = name
        self._guard = guard or LoopGuard()
        self._documents = documents
        self._clock = clock
        self._limits = limits
        self._probe_us = probe_us
        self._audit = audit
        self._process_id = secrets.token_hex(6)
        self._serial = itertools.count(1)
        self._known = Circuit()
        self._known_us = 0
        self._known_at = clock.monotonic()

    @property
    def state(self) -> State:
        """`closed`, `open` or `half_open`, as last heard from the store; `refresh` asks it."""
        elapsed = int((self._clock.monotonic() - self._known_at) * 1e6)
        return state_of(self._known, self._known_us + elapsed, self._limits)

    async def refresh(self) -> State:
        """Read the breaker from the store, and return its state.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            assert await breaker.refresh() == "closed"
        ```
        """
        self._guard.check("Breaker")
        await self._read()
        return self.state

    async def report(self) -> Report:
        """Return the breaker as it stands: its state, and the outcomes that led to it.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            assert (await breaker.report()).trips == 0
        ```
        """
        self._guard.check("Breaker")
        circuit, now, _, _ = await self._read()
        good, bad = counts(circuit, now, self._limits)
        state = state_of(circuit, now, self._limits)
        opened = (circuit.trips, circuit.opening_us, circuit.rate, circuit.opened_us)
        return Report(self.name, state, *opened, good, bad)

    async def admit(self) -> Permit | None:
        """Ask for leave to make one call.

        Returns: a `Permit`; None while the breaker is open, or half open with a probe under way.
        Report the outcome to the permit.

        Raises: `Unavailable` if the store does not answer.

        ```python
        async with towline_once.Breaker.open("memory://", "bank") as breaker:
            permit = await breaker.admit()
            assert permit is not None
            await permit.succeeded()
        ```
        """
        self._guard.check("Breaker")
        holder = self._new_id()
        for _ in range(_CONTENTION_ROUNDS):
            asked_at = self._clock.monotonic()
            circuit, now, version, signed_by = await self._read()
            if circuit.probe == holder:
                return self._probing(circuit, now, asked_at)
            if not admits(circuit, now, self._limits):
                return None
            if not circuit.opened_us:
                return Permit(self, circuit.epoch, "")
            probing = with_probe(circuit, holder, now + self._probe_us)
            if await self._write(version, probing, (holder, *signed_by)):
                return self._probing(probing, now, asked_at)
        return None

    def _probing(self, circuit: Circuit, now: int, asked_at: float) -> Permit | None:
        """The probe, unless it was slept through: by then another may have it."""
        elapsed = int((self._clock.monotonic() - asked_at) * 1e6)
        is_over = circuit.probe_until_us <= now + elapsed
        return None if is_over else Permit(self, circuit.epoch, circuit.probe)

    async def reset(self, by: str) -> None:
        """Close the breaker by hand.

        Parameters:
            by: the person or program that closes it, for the audit log.

        Raises: `Unavailable` if the store does not answer.

        Guarantees: outcomes of calls that were admitted before do not count any more.

        ```python
        async with towline_once.Breaker.open("memory://", "bank", minimum=1) as breaker:
            await (await breaker.admit()).failed()
            await breaker.reset(by="ops")
            assert breaker.state == "closed"
        ```
        """
        self._guard.check("Breaker")
        await self._change(lambda circuit, now: closed(circuit))
        self._audit("BREAKER_RESET", name=self.name, by=by)

    async def _outcome(self, epoch: int, probe: str, succeeded: bool) -> None:
        def apply(circuit: Circuit, now: int) -> Circuit:
            if probe:
                return probed(circuit, now, probe, succeeded)
            return record(circuit, now, self._limits, epoch, int(succeeded), int(not succeeded))

        before, after = await self._change(apply)
        if after.trips > before.trips:
            BREAKER_TRIPS.labels(self.name).inc()
            self._audit("BREAKER_OPENED", name=self.name, probe=bool(probe))

    def _new_id(self) -> str:
        return f"{self._process_id}:{next(self._serial)}"

    async def _give_back(self, probe: str) -> None:
        await self._change(lambda circuit, now: without_probe(circuit, probe))

    async def _change(self, apply: Callable[[Circuit, int], Circuit]) -> tuple[Circuit, Circuit]:
        """The circuit before and after.

        A write is signed, and the last few signatures are kept: its answer lost, it counts once,
        also if others have written since."""
        signature = self._new_id()
        before = changed = Circuit()
        for _ in range(_CONTENTION_ROUNDS):
            circuit, now, version, signed_by = await self._read()
            if signature in signed_by:
                return before, changed
            before, changed = circuit, apply(circuit, now)
            signatures = (signature, *signed_by)
            if changed == before or await self._write(version, changed, signatures):
                return before, changed
        raise Transient(f"breaker {self.name!r} is changed by too many at once; try again")

    async def _read(self) -> tuple[Circuit, int, int, Sequence[str]]:
        document = await self._documents.read(f"breaker {self.name}")
        circuit, signed_by = _decode(document.body)
        self._remember(circuit, document.now)
        return circuit, document.now, document.version, signed_by

    async def _write(self, version: int, circuit: Circuit, signatures: Sequence[str]) -> bool:
        signed_by = " ".join(signatures[:_REMEMBERED_WRITES])
        body = orjson.dumps({**asdict(circuit), "signed_by": signed_by}).decode()
        document = await self._documents.swap(f"breaker {self.name}", version, body)
        if document is None:
            return False
        self._remember(circuit, document.now)
        return True

    def _remember(self, circuit: Circuit, now: int) -> None:
        self._known, self._known_us = circuit, now
        self._known_at = self._clock.monotonic()

    async def aclose(self) -> None:
        return None


def _decode(body: str) -> tuple[Circuit, Sequence[str]]:
    """The circuit, and who wrote it, the last one first.

    What cannot be read counts as lost: a closed circuit, which the next change writes. What a
    newer version knows besides is left out.
    """
    if not body:
        return Circuit(), ()
    try:
        fields = orjson.loads(body)
        return _circuit(fields), str(fields.get("signed_by", "")).split()
    except (ValueError, TypeError, LookupError, AttributeError):
        _log.warning("breaker_unreadable")
        return Circuit(), ()


def _circuit(fields: dict[str, Any]) -> Circuit:
    counted = {name: _count(fields.get(name, 0)) for name in _COUNTED}
    buckets = [(_count(at), _count(good), _count(bad)) for at, good, bad in fields["buckets"]]
    probe, rate = fields.get("probe", ""), fields.get("rate", 0.0)
    if not isinstance(probe, str) or not isinstance(rate, int | float):
        raise TypeError("a probe is a text, and a rate a number")
    return Circuit(**counted, probe=probe, buckets=tuple(buckets), rate=float(rate))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("times and counts are whole numbers")
    return value
