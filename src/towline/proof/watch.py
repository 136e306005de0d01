"""What must be true of the tables after each commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from towline.proof.bodies import Bodies
from towline.proof.stage import Stage

_SETTLED = ("completed", "parked")


class _Record(NamedTuple):
    status: str
    token: int
    attempts: int
    response: str | None
    expires_us: int


class RecordWatch:
    """Idempotency records: tokens only grow, what is completed stays, attempts are bounded."""

    def __init__(self, stage: Stage, max_attempts: int) -> None:
        self._stage = stage
        self._most = max_attempts
        self._known: dict[str, _Record] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute(
            "SELECT key, status, token, attempts, response, expires_us FROM towline_records"
        ).fetchall()
        for key, *fields in rows:
            record = _Record(*fields)
            before = self._known.get(key)
            if before is not None and record != before:
                self._changed(key, before, record)
            self._known[key] = record

    def response_of(self, key: str) -> str | None:
        record = self._known.get(key)
        return record.response if record is not None else None

    def _changed(self, key: str, before: _Record, after: _Record) -> None:
        expect = self._stage.expect
        expect(after.token >= before.token, f"the token of {key} went back to {after.token}")
        expect(after.attempts <= self._most, f"{key} has {after.attempts} attempts")
        now = self._stage.server.clock.now_us()
        if before.status in _SETTLED and before.expires_us > now:
            same = (after.status, after.token, after.response) == (
                before.status, before.token, before.response,
            )  # fmt: skip
            expect(same, f"{key} was {before.status} and is {after.status}: {after.response}")


class LeaseWatch:
    """Leases: a token that was granted is never granted again."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._known: dict[str, tuple[int, str]] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        for name, token, holder in db.execute("SELECT name, token, holder FROM towline_leases"):
            before, held_by = self._known.get(name, (0, ""))
            self._stage.expect(token >= before, f"the token of {name} went back to {token}")
            if token == before and holder and held_by:
                self._stage.expect(holder == held_by, f"{name}: two holders of token {token}")
            self._known[name] = (token, holder or held_by)


class SlotWatch:
    """Slots: never more live holders than there may be."""

    def __init__(self, stage: Stage, limit: int) -> None:
        self._stage = stage
        self._limit = limit

    def committed(self, db: Any, names: Sequence[str]) -> None:
        now = self._stage.server.clock.now_us()
        live = db.execute(
            "SELECT name, count(*) FROM towline_slots WHERE expires_us > ? GROUP BY name", (now,)
        )
        for name, count in live:
            self._stage.expect(count <= self._limit, f"{count} hold slots of {name}")


class _Job(NamedTuple):
    state: str
    token: int
    attempts: int
    repo: str | None


class JobWatch:
    """Jobs: what has ended stays, tokens only grow, attempts and slots are bounded."""

    def __init__(
        self, stage: Stage, max_attempts: int, repo_limit: int, bodies: Bodies | None = None
    ) -> None:
        """`bodies` tells who is at work on a job, by the end of its id."""
        self._stage = stage
        self._most = max_attempts
        self._limit = repo_limit
        self._bodies = bodies
        self.known: dict[str, _Job] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        running: Counter[str] = Counter()
        rows = db.execute("SELECT id, state, token, attempts, repo FROM towline_jobs").fetchall()
        for job_id, *fields in rows:
            job = _Job(*fields)
            if job.state == "running" and job.repo is not None:
                running[job.repo] += 1
            before = self.known.get(job_id)
            if before is not None and job != before:
                self._changed(job_id, before, job)
            self.known[job_id] = job
        for repo, count in running.items():
            self._stage.expect(count <= self._limit, f"{count} jobs of {repo} run at once")
        gone = self.known.keys() - {row[0] for row in rows}
        self._stage.expect(not gone, f"jobs have vanished: {sorted(gone)}")

    def _changed(self, job_id: str, before: _Job, after: _Job) -> None:
        expect, name = self._stage.expect, f"job {job_id[-6:]}"
        expect(after.token >= before.token, f"the token of {name} went back to {after.token}")
        expect(after.attempts <= self._most, f"{name} has {after.attempts} attempts")
        ended = before.state in ("done", "dead")
        expect(not ended, f"{name} was {before.state} and is {after.state}")
        if after.state == "running" and before.state == "running":
            expect(after.token == before.token, f"{name} was begun while it ran")
        if after.state in ("done", "dead"):
            expect(before.state == "running", f"{name} was {before.state} and is {after.state}")
            expect(after.token == before.token, f"{name} was settled by another token")
            self._nobody_works_on(job_id, after.state)

    def _nobody_works_on(self, job_id: str, state: str) -> None:
        if self._bodies is not None and not self._stage.jumped:
            busy = self._bodies.at_work_on(job_id[-6:])
            self._stage.expect(not busy, f"job {job_id[-6:]} is {state} while it is worked on")


class DeliveryWatch:
    """Deliveries: none is lost, and none changes the job that it was given."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.job_of: dict[str, str] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute("SELECT key, job_id FROM towline_deliveries").fetchall()
        found = dict(rows)
        for key, job_id in self.job_of.items():
            same = found.get(key) == job_id
            self._stage.expect(same, f"{key} had job {job_id} and has {found.get(key)}")
        self._stage.expect(len(found) == len(rows), "a key was stored twice")
        self.job_of = found
