"""Idempotency as one dictionary and a few rules: what every backend must agree with.

Written from the contract, not from the code under test. Times are seconds on the model's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

LOCK, FAILED_TTL, COMPLETED_TTL = 300, 3600, 86_400
MAX_ATTEMPTS = 3
FOREVER = 10**12
CRASHED = "the holder stopped without a result"

Place = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    status: str
    token: int
    attempts: int
    payload: Any
    on_crash: str
    lock_until: int
    expires: int
    response: Any = None
    run_id: str | None = None
    error: str | None = None
    definitive: bool = False


@dataclass(frozen=True)
class Answer:
    """What a claim comes to."""

    status: str
    attempts: int
    token: int = 0
    response: Any = None
    run_id: str | None = None
    error: str | None = None
    definitive: bool = False
    exhausted: bool = False
    parked: bool = False
    recovered: bool = False


class Model:
    def __init__(self) -> None:
        self.now = 0
        self.entries: dict[Place, Entry] = {}
        self._tokens = 0

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    # ------------------------------------------------------------------ claiming

    def claim(self, place: Place, payload: Any, on_crash: str) -> Answer:
        entry = self.entries.get(place)
        if entry is None or entry.attempts == 0 or self._over(entry):
            return self._grant(place, payload, on_crash, None)
        if entry.payload != payload:
            return Answer("collision", entry.attempts)
        if entry.status == "processing":
            return self._claim_busy(place, entry, payload, on_crash)
        if entry.status == "failed" and not entry.definitive:
            if entry.attempts < MAX_ATTEMPTS:
                return self._grant(place, payload, on_crash, entry)
            return self._replay(entry, exhausted=True)
        return self._replay(entry)

    def _over(self, entry: Entry) -> bool:
        return entry.status != "processing" and entry.expires <= self.now

    def _claim_busy(self, place: Place, entry: Entry, payload: Any, on_crash: str) -> Answer:
        if entry.lock_until > self.now:
            return Answer("processing", entry.attempts)
        if entry.on_crash == "retry" and entry.attempts < MAX_ATTEMPTS:
            return replace(self._grant(place, payload, on_crash, entry), recovered=True)
        parked = entry.on_crash == "park"
        ended = replace(
            entry,
            status="parked" if parked else "failed",
            token=self._token(),
            definitive=entry.on_crash != "retry",
            error=CRASHED,
            expires=self.now + (FOREVER if parked else FAILED_TTL),
        )
        self.entries[place] = ended
        return self._replay(ended, exhausted=entry.on_crash == "retry")

    def _grant(self, place: Place, payload: Any, on_crash: str, before: Entry | None) -> Answer:
        entry = Entry(
            "processing",
            self._token(),
            before.attempts + 1 if before else 1,
            payload,
            on_crash,
            self.now + LOCK,
            self.now + self._keep(on_crash),
            run_id=before.run_id if before else None,
            error=before.error if before else None,
        )
        self.entries[place] = entry
        return Answer("new", entry.attempts, entry.token)

    @staticmethod
    def _keep(on_crash: str) -> int:
        return LOCK + COMPLETED_TTL if on_crash == "retry" else FOREVER

    @staticmethod
    def _replay(entry: Entry, exhausted: bool = False) -> Answer:
        return Answer(
            "duplicate",
            entry.attempts,
            response=entry.response,
            run_id=entry.run_id,
            error=entry.error,
            definitive=entry.definitive,
            exhausted=exhausted,
            parked=entry.status == "parked",
        )

    # ------------------------------------------------------------------ settling

    def _held(self, place: Place, token: int) -> Entry | None:
        """The entry, if this token is still the one that works on it."""
        entry = self.entries.get(place)
        if entry is None or (entry.token, entry.status) != (token, "processing"):
            return None
        return entry

    def complete(self, place: Place, token: int, response: Any, run_id: str | None) -> bool:
        entry = self._held(place, token)
        if entry is None:
            done = self.entries.get(place)
            said = None if done is None else (done.token, done.status, done.response)
            return said == (token, "completed", response)
        self.entries[place] = replace(
            entry,
            status="completed",
            response=response,
            run_id=run_id or entry.run_id,
            error=None,
            expires=self.now + COMPLETED_TTL,
        )
        return True

    def fail(self, place: Place, token: int, error: str, definitive: bool) -> bool:
        entry = self._held(place, token)
        if entry is None:
            done = self.entries.get(place)
            return done is not None and (done.token, done.status, done.error) == (
                token,
                "failed",
                error,
            )
        self.entries[place] = replace(
            entry,
            status="failed",
            error=error,
            definitive=definitive,
            expires=self.now + (COMPLETED_TTL if definitive else FAILED_TTL),
        )
        return True

    def extend(self, place: Place, token: int) -> bool:
        entry = self._held(place, token)
        if entry is None:
            return False
        keep = self._keep(entry.on_crash)
        self.entries[place] = replace(entry, lock_until=self.now + LOCK, expires=self.now + keep)
        return True

    def release(self, place: Place, token: int, attempts: int) -> bool:
        entry = self._held(place, token)
        if entry is None:
            done = self.entries.get(place)
            return done is not None and (done.token, done.status, done.attempts) == (
                token,
                "failed",
                attempts - 1,
            )
        self.entries[place] = replace(
            entry, status="failed", attempts=entry.attempts - 1, expires=self.now + FAILED_TTL
        )
        return True

    # ------------------------------------------------------------------ people and upkeep

    def redeliver(self, place: Place) -> Entry | str | None:
        entry = self.entries.get(place)
        if entry is None:
            return None
        if entry.status == "processing" and entry.lock_until > self.now:
            return "in flight"
        if entry.status != "completed":
            entry = self.entries[place] = replace(
                entry,
                status="failed",
                token=self._token(),
                attempts=0,
                response=None,
                definitive=False,
                expires=self.now + FAILED_TTL,
            )
        return entry

    def get(self, place: Place) -> Entry | None:
        entry = self.entries.get(place)
        if entry is None or entry.attempts == 0 or self._over(entry):
            return None
        return entry

    def cleanup(self) -> int:
        gone = [
            place
            for place, entry in self.entries.items()
            if entry.expires <= self.now
            and entry.status != "parked"
            and not (entry.status == "processing" and entry.lock_until > self.now)
        ]
        for place in gone:
            del self.entries[place]
        return len(gone)
