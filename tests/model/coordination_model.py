"""Leases with their queues, slots, marks and rates, each as a dictionary and a few rules."""

from __future__ import annotations

from dataclasses import dataclass, field

GRACE = 5


@dataclass
class Waiter:
    ticket: int
    holder: str
    address: str
    ttl: int
    patient_until: int


@dataclass
class Lease:
    holder: str = ""
    token: int = 0
    expires: int = 0
    queue: list[Waiter] = field(default_factory=list)


@dataclass(frozen=True)
class Shown:
    """A lease as others see it: who has it, under which token, and whether it still runs."""

    holder: str
    token: int
    live: bool


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.leases: dict[str, Lease] = {}
        self.slots: dict[str, dict[str, tuple[int, int]]] = {}
        self.marks: dict[str, int] = {}
        self.arrivals: dict[str, int] = {}
        self._numbers = 0

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # ------------------------------------------------------------------ leases

    def lease(self, name: str) -> Lease:
        return self.leases.setdefault(name, Lease())

    def show(self, name: str) -> Shown:
        lease = self.lease(name)
        return Shown(lease.holder, lease.token, lease.expires > self.now)

    def _waiting(self, lease: Lease) -> list[Waiter]:
        lease.queue = [waiter for waiter in lease.queue if waiter.patient_until > self.now]
        return lease.queue

    def take(self, name: str, holder: str, ttl: int) -> Shown | None:
        lease = self.lease(name)
        if lease.expires > self.now:
            return self.show(name) if lease.holder == holder else None
        if self._waiting(lease):
            return None
        lease.holder, lease.token, lease.expires = holder, self._number(), self.now + ttl
        return self.show(name)

    def enqueue(self, name: str, holder: str, address: str, ttl: int, patience: int) -> int:
        lease = self.lease(name)
        for waiter in lease.queue:
            if waiter.holder == holder:
                return waiter.ticket
        ticket = self._number()
        lease.queue.append(Waiter(ticket, holder, address, ttl, self.now + patience))
        return ticket

    def pass_on(self, name: str, token: int, address: str) -> Shown | None:
        lease = self.lease(name)
        if lease.token != token and lease.expires > self.now:
            return None
        waiting = self._waiting(lease)
        if not waiting:
            lease.holder, lease.expires = "", 0
            return self.show(name)
        head = waiting.pop(0)
        ttl = head.ttl if head.address == address else min(head.ttl, GRACE)
        lease.holder, lease.token, lease.expires = head.holder, self._number(), self.now + ttl
        return self.show(name)

    def extend(self, name: str, token: int, ttl: int) -> bool:
        lease = self.lease(name)
        if lease.token != token or not lease.holder:
            return False
        lease.expires = self.now + ttl
        return True

    def withdraw(self, name: str, ticket: int) -> None:
        lease = self.lease(name)
        lease.queue = [waiter for waiter in lease.queue if waiter.ticket != ticket]

    # ------------------------------------------------------------------ slots

    def live_slots(self, name: str) -> dict[str, tuple[int, int]]:
        held = self.slots.get(name, {})
        self.slots[name] = {h: slot for h, slot in held.items() if slot[1] > self.now}
        return self.slots[name]

    def take_slot(self, name: str, limit: int, holder: str, ttl: int) -> int | None:
        held = self.live_slots(name)
        if holder in held:
            return held[holder][0]
        if len(held) >= limit:
            return None
        held[holder] = (self._number(), self.now + ttl)
        return held[holder][0]

    # ------------------------------------------------------------------ marks and rates

    def is_seen(self, key: str) -> bool:
        return self.marks.get(key, 0) > self.now

    def first_time(self, key: str, ttl: int) -> bool:
        if self.is_seen(key):
            return False
        self.marks[key] = self.now + ttl
        return True

    def hit(self, key: str, limit: int, per: int) -> tuple[bool, int]:
        """Whether it passes, and how many more would."""
        interval = per // limit
        arrival = max(self.arrivals.get(key, 0), self.now)
        room = (self.now + per - arrival) // interval
        if room < 1:
            return False, 0
        self.arrivals[key] = arrival + interval
        return True, room - 1
