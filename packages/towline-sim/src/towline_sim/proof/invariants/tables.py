"""What must be true of the tables after each commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from towline.jobs.model import SLOW
from towline_sim.proof.bodies import Bodies
from towline_sim.proof.harness import Stage

_SETTLED = ("completed", "parked")


class _Record(NamedTuple):
    status: str
    token: int
    attempts: int
    response: str | None
    expires_us: int
    holder: str


class RecordWatch:
    """Idempotency records: tokens only grow, what is completed stays, attempts are bounded."""

    tables = frozenset({"once_records"})

    def __init__(self, stage: Stage, max_attempts: int) -> None:
        self._stage = stage
        self._most = max_attempts
        self._known: dict[str, _Record] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute(
            "SELECT key, status, token, attempts, response, expires_us - early_us, holder"
            " FROM once_records"
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

    def status_of(self, key: str) -> str | None:
        record = self._known.get(key)
        return record.status if record is not None else None

    def is_held_by(self, key: str, process_id: str) -> bool:
        record = self._known.get(key)
        held = record is not None and record.status == "processing"
        return held and record is not None and record.holder.startswith(f"{process_id}:")

    def _changed(self, key: str, before: _Record, after: _Record) -> None:
        expect = self._stage.expect
        given_back = after.status == "failed" and after.attempts < before.attempts - 1
        expect(not given_back, f"{key} had {before.attempts} attempts, and has {after.attempts}")
        expect(after.token >= before.token, f"the token of {key} went back to {after.token}")
        expect(after.attempts <= self._most, f"{key} has {after.attempts} attempts")
        now = self._stage.server.clock.now_us()
        if before.status in _SETTLED and before.expires_us > now:
            same = (after.status, after.token, after.response) == (
                before.status, before.token, before.response,
            )  # fmt: skip
            expect(same, f"{key} was {before.status} and is {after.status}: {after.response}")


class _Job(NamedTuple):
    state: str
    token: int
    attempts: int
    repo: str | None
    lease_us: int | None


class JobWatch:
    """Jobs: what has ended stays, tokens only grow, attempts and slots are bounded."""

    tables = frozenset({"towline_jobs"})

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
        rows = db.execute(
            "SELECT id, state, token, attempts, repo, lease_expires_us, kind FROM towline_jobs"
        ).fetchall()
        for job_id, *fields, kind in rows:
            job = _Job(*fields)
            if job.state == "running" and job.repo is not None:
                running[f"{job.repo}{' slow' * (kind in SLOW)}"] += 1
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

    def time_passed(self) -> None:
        """Work ends before its lease does, also if no reaper has taken the job back yet."""
        now = self._stage.server.clock.now_us()
        for job_id, job in self.known.items():
            if job.state == "running" and (job.lease_us or now) < now:
                self._nobody_works_on(job_id, "past its lease")

    def _nobody_works_on(self, job_id: str, state: str) -> None:
        if self._bodies is not None and not self._stage.jumped:
            busy = self._bodies.at_work_on(job_id[-6:])
            self._stage.expect(not busy, f"job {job_id[-6:]} is {state} while it is worked on")


class DeliveryWatch:
    """Deliveries: none is lost, and none changes the job that it was given."""

    tables = frozenset({"towline_deliveries"})

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.job_of: dict[str, str] = {}

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute("SELECT key, job_id FROM towline_deliveries").fetchall()
        found = dict(rows)
        for key, job_id in self.job_of.items():
            if found.get(key) != job_id:
                self._stage.violation(f"{key} had job {job_id} and has {found.get(key)}")
        self._stage.expect(len(found) == len(rows), "a key was stored twice")
        self.job_of = found


class ScheduleWatch:
    """Schedules: the next run moves on only when a tick that was due is stored.

    A leader that stored one and died before it moved on leaves it to the next leader, for whom a
    later one may be due: so there may be more, but each is one of the schedule's.
    """

    tables = frozenset({"towline_schedules"})

    def __init__(self, stage: Stage, name: str, every_us: int) -> None:
        self._stage = stage
        self._every_us = every_us
        self._prefix = f"scheduler:{name}:"
        self._name = name
        self._next_us: int | None = None

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if not {"plan schedule", "add schedule"} & set(names):
            return
        query = "SELECT next_run_us FROM towline_schedules WHERE name = ?"
        for (next_us,) in db.execute(query, (self._name,)).fetchall():
            before_us, self._next_us = self._next_us, next_us
            if before_us is not None and next_us != before_us:
                self._moved(db, before_us, next_us)

    def _moved(self, db: Any, before_us: int, next_us: int) -> None:
        query = "SELECT key FROM towline_deliveries WHERE key LIKE ?"
        stored = [row[0] for row in db.execute(query, (f"{self._prefix}%",))]
        ticks = [_time_us(key.removeprefix(self._prefix)) for key in stored]
        due = [at_us for at_us in ticks if before_us <= at_us < next_us]
        self._stage.expect(bool(due), "no tick is stored for one that was due")
        odd = [at_us for at_us in due if at_us % self._every_us]
        self._stage.expect(not odd, f"a tick is stored for {odd}, which is none of the schedule's")


def _time_us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000
