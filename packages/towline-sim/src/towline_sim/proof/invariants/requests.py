"""What must be true of submitted requests and their jobs after each commit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from towline.submit.rules import Keep
from towline_once.canonical_json import canonical
from towline_sim.proof.harness import Stage

_COUNTED_SECONDS: Final = 2.0
"""How long a count may be out of date: a second, and the calls."""
_LATE_SECONDS: Final = 30.0
"""The same where calls are slow or late."""
_SLOW: Final = ("slow", "late", "request lost", "reply lost", "outage")


class Bounds(NamedTuple):
    max_queued: int
    max_inflight: int
    max_items: int
    max_attempts: int


class _Job(NamedTuple):
    state: str
    token: int
    attempts: int
    params: str
    result: str | None
    sha256: str | None
    finished_us: int | None
    lease_us: int | None


class _Request(NamedTuple):
    client: str
    key: str | None
    job_id: str


class RequestWatch:
    """One job for a key in its time, one end for a job, and no more of them than there may be."""

    tables = frozenset({"towline_requests", "towline_jobs"})

    def __init__(self, stage: Stage, keep: Keep, bounds: Bounds) -> None:
        self._stage = stage
        self._keep = keep
        self._bounds = bounds
        self.jobs: dict[str, _Job] = {}
        self.job_of: dict[str, str] = {}
        """Of each request that there ever was."""
        self.newest_since: dict[str, float] = {}
        """When each job was given the token that it has."""
        self._since: dict[str, float] = {}
        self._requests: dict[str, _Request] = {}
        self._let_go: set[str] = set()

    def committed(self, db: Any, names: Sequence[str]) -> None:
        requests = {
            row[0]: _Request(*row[1:])
            for row in db.execute("SELECT request_id, client, key, job_id FROM towline_requests")
        }
        jobs = db.execute(
            "SELECT id, state, token, attempts, params, result, sha256, finished_us,"
            " lease_expires_us FROM towline_jobs WHERE queue LIKE 'mesh:%'"
        ).fetchall()
        for job_id, *fields in jobs:
            job, before = _Job(*fields), self.jobs.get(job_id)
            if before is None:
                self._born(job_id, job, requests)
            elif job != before:
                self._changed(job_id, before, job, names)
            self.jobs[job_id] = job
        self._compare(requests, names)
        self._requests = requests

    # ------------------------------------------------------------------ jobs

    def _born(self, job_id: str, job: _Job, requests: dict[str, _Request]) -> None:
        expect, now = self._stage.expect, self._stage.loop.time()
        owner = orjson.loads(job.params)["owner"]
        for other_id, other in self.jobs.items():
            if owner and orjson.loads(other.params)["owner"] == owner:
                over = self._expired(other) or (other_id in self._let_go)
                expect(over, f"{owner} has job {job_id[-6:]} beside {other_id[-6:]}")
        asked = any(one.job_id == job_id for one in requests.values())
        expect(asked, f"job {job_id[-6:]} belongs to no request")
        waiting = self._for_long("queued")
        if not self._slept():
            most = self._bounds.max_queued
            expect(waiting < most, f"a job was taken in though {waiting} waited for long")
        self._since[job_id] = self.newest_since[job_id] = now

    def _changed(self, job_id: str, before: _Job, after: _Job, names: Sequence[str]) -> None:
        expect, name = self._stage.expect, f"job {job_id[-6:]}"
        expect(before.finished_us is None, f"{name} was {before.state} and is changed")
        expect(after.token >= before.token, f"the token of {name} went back to {after.token}")
        most = self._bounds.max_attempts
        expect(after.attempts <= most, f"{name} has {after.attempts} attempts")
        if "reap" in names and before.state == "running" and after.state != "running":
            over = (before.lease_us or 0) <= self._stage.server.clock.now_us()
            expect(over, f"{name} was taken from a worker whose lease had not ended")
        if after.state in ("done", "dead"):
            expect(before.state == "running", f"{name} was {before.state} and is {after.state}")
            expect(after.token == before.token, f"{name} was settled by another token")
        if after.state == "done":
            self._result(name, after)
        if after.token != before.token:
            self._begun(job_id, name, before, after)
        if after.state != before.state:
            self._since[job_id] = self._stage.loop.time()

    def _begun(self, job_id: str, name: str, before: _Job, after: _Job) -> None:
        self._stage.expect(before.state == "queued", f"{name} was begun while {before.state}")
        counted = after.attempts == before.attempts + 1
        self._stage.expect(counted, f"an attempt of {name} was not counted")
        running = self._for_long("running")
        if not self._slept():
            most = self._bounds.max_inflight
            self._stage.expect(running < most, f"{name} was begun though {running} ran for long")
        self.newest_since[job_id] = self._stage.loop.time()

    def _result(self, name: str, job: _Job) -> None:
        result = orjson.loads(job.result or "null")
        by = result.get("token")
        self._stage.expect(by == job.token, f"{name} has the result of token {by}")
        digest = hashlib.sha256(canonical(result)).hexdigest()
        self._stage.expect(job.sha256 == digest, f"{name} is sealed with another digest")

    def _for_long(self, state: str) -> int:
        """Those about which no count can be out of date."""
        slow = any(kind in self._stage.weather.counts for kind in _SLOW)
        then = self._stage.loop.time() - (_LATE_SECONDS if slow else _COUNTED_SECONDS)
        return sum(job.state == state and self._since[i] < then for i, job in self.jobs.items())

    def _slept(self) -> bool:
        """Who sleeps between its look and its write goes by a count of any age."""
        return any(kind.startswith("pause") for kind in self._stage.weather.counts)

    # ------------------------------------------------------------------ requests

    def _compare(self, requests: dict[str, _Request], names: Sequence[str]) -> None:
        for request_id, request in requests.items():
            if self.job_of.setdefault(request_id, request.job_id) != request.job_id:
                self._stage.violation(f"{request_id} has another job")
            if request.job_id not in self.jobs:
                self._stage.violation(f"{request_id} has no job")
        for request_id in self._requests.keys() - requests.keys():
            self._gone(self._requests[request_id], names)
        places = [(one.client, one.key) for one in requests.values() if one.key is not None]
        self._stage.expect(len(places) == len(set(places)), "a key has two requests")
        slack = 2 + sum(one.node.life for one in self._stage.actors.values())
        most = self._bounds.max_items + slack
        self._stage.expect(len(requests) <= most, f"{len(requests)} requests are stored")

    def _gone(self, request: _Request, names: Sequence[str]) -> None:
        job, name = self.jobs[request.job_id], f"the request of job {request.job_id[-6:]}"
        if job.finished_us is None:
            self._stage.violation(f"{name} is gone, and the job has not ended")
        elif "evict requests" in names:
            self._let_go.add(request.job_id)
        else:
            self._stage.expect(self._expired(job), f"{name} is gone before its time")

    def _expired(self, job: _Job) -> bool:
        if job.finished_us is None:
            return False
        ttl = self._keep.completed_us if job.state == "done" else self._keep.failed_us
        return job.finished_us + ttl <= self._stage.server.clock.now_us()
