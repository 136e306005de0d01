"""What must be true of fix runs after each commit, and of their waiting for a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from towline_once.coordination.rate_limit import Rate
from towline_sim.proof.harness import Stage

# ----------------------------------------------------------------------
# Fix runs that wait for their turns: each has one, keeps it, and none is early or shared.


class StartWatch:
    """Places of runs, and the deliveries that took them, after each commit."""

    tables = frozenset({"towline_starts", "towline_deliveries", "towline_jobs"})

    def __init__(self, stage: Stage, rate: Rate) -> None:
        self._stage = stage
        self._rate = rate
        self._starts: dict[str, int] = {}
        self._late: set[str] = set()

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute("SELECT run_key, starts_us FROM towline_starts").fetchall()
        for run_key, starts_us in rows:
            before = self._starts.setdefault(run_key, starts_us)
            self._stage.expect(before == starts_us, f"the turn of {run_key} has moved")
        gone = self._starts.keys() - {row[0] for row in rows}
        self._stage.expect(not gone, f"turns have vanished: {sorted(gone)}")
        if not self._stage.jumped:
            self._in_turn(db)
            self._at_once(db)

    def _in_turn(self, db: Any) -> None:
        """The k-th in excess starts k intervals after the burst."""
        repo_of = dict(db.execute("SELECT delivery_id, repo FROM towline_deliveries").fetchall())
        now_us = self._stage.server.clock.now_us()
        self._late |= {key for key, starts_us in self._starts.items() if starts_us > now_us}
        interval_us, burst_us = self._rate
        for repo in set(repo_of.values()):
            turns = sorted((at, key) for key, at in self._starts.items() if repo_of[key] == repo)
            for last in range(len(turns)):
                for first in range(last):
                    least_us = (last - first + 1) * interval_us - burst_us
                    early = turns[last][0] - turns[first][0] < least_us
                    self._stage.expect(not early, f"{turns[last][1]} starts before its turn")
                both_late = last and {turns[last][1], turns[last - 1][1]} <= self._late
                gap_us = turns[last][0] - turns[last - 1][0]
                late = both_late and gap_us != interval_us
                self._stage.expect(not late, f"{turns[last][1]} waits for more than its turn")

    def _at_once(self, db: Any) -> None:
        """No delivery waits, whatever run it asks for."""
        rows = db.execute(
            "SELECT id FROM towline_jobs WHERE kind = 'delivery' AND attempts = 0"
            " AND state = 'queued' AND held = 0 AND run_at_us > created_us"
        ).fetchall()
        self._stage.expect(not rows, f"deliveries are put off: {[row[0][-6:] for row in rows]}")

    def time_passed(self) -> None:
        return None


# ----------------------------------------------------------------------
# Fix runs after each commit: one for each failure, within its attempts, and blocked for good.

_AT_ONCE_US: Final = 20_000_000
"""So much may lie between the look at what others did and the begin, where calls are slow."""
_NOT_ISOLATED: Final = "nothing isolates here"


class _Run(NamedTuple):
    event_id: str
    subject: str
    state: str
    attempts: int
    token: int
    branch: str
    url: str | None
    last_job: str | None
    last_attempt_us: int | None
    reason: str | None
    proposed_us: int | None


class RunWatch:
    def __init__(self, stage: Stage, max_attempts: int, cooldown_us: int) -> None:
        self._stage = stage
        self._most = max_attempts
        self._cooldown_us = cooldown_us
        self.runs: dict[str, _Run] = {}
        self.newest_since: dict[str, float] = {}
        """When each run was given the token that it has."""
        self.passed: dict[tuple[str, str], str] = {}
        """The digest with which each stage passed last."""
        self.refused: set[str] = set()

    def committed(self, db: Any, names: Sequence[str]) -> None:
        rows = db.execute(
            "SELECT run_key, event_id, subject, state, attempt_count, token, branch, last_pr_url,"
            " last_job, last_attempt_us, blocked_reason, last_pr_created_us FROM towline_runs"
        ).fetchall()
        for run_key, *fields in rows:
            run, before = _Run(*fields), self.runs.get(run_key)
            if before is None:
                self.newest_since[run_key] = self._stage.loop.time()
            elif before != run:
                self._changed(run_key, before, run, names)
            self.runs[run_key] = run
        gone = self.runs.keys() - {row[0] for row in rows}
        self._stage.expect(not gone, f"runs have vanished: {sorted(gone)}")
        self._read_stages(db)
        self._within_cooldown(db)

    def _changed(self, run_key: str, before: _Run, after: _Run, names: Sequence[str]) -> None:
        expect, name = self._stage.expect, f"run {run_key[:6]}"
        expect(after.token >= before.token, f"the token of {name} went back to {after.token}")
        expect(after.attempts <= self._most, f"{name} has {after.attempts} attempts")
        expect(before.branch == after.branch, f"{name} has another branch")
        refused = after.state == "blocked" and (after.reason or "").startswith(_NOT_ISOLATED)
        if refused and before.state == "running":
            free = after.attempts == before.attempts - 1
            expect(free, f"{name} has spent an attempt where nothing could be run")
        elif after.attempts < before.attempts:
            expect("unblock run" in names, f"{name} was given an attempt back")
        if before.url is not None:
            expect(after.url == before.url, f"{name} had {before.url} and has {after.url}")
        if before.state == "done":
            expect(after.state == "done", f"{name} was done and is {after.state}")
        if before.state == "blocked":
            freed = "unblock run" in names and after.state == "waiting"
            expect(freed or after.state == "blocked", f"{name} was blocked and is {after.state}")
        if after.state == "blocked" and before.state != "blocked":
            own = (after.reason or "").startswith("PR: GitHub does not open")
            expect(not own, f"{name} is blocked by its own pull request")
        if after.token != before.token:
            self.newest_since[run_key] = self._stage.loop.time()
            if "begin attempt" in names and after.state == "running":
                self._begun(name, before, after)

    def _begun(self, name: str, before: _Run, after: _Run) -> None:
        counted = after.attempts == before.attempts + 1
        self._stage.expect(counted, f"an attempt of {name} was not counted")
        now_us, weather = self._stage.server.clock.now_us(), self._stage.weather.counts
        if self._stage.jumped:
            return
        if before.last_attempt_us is not None and before.last_job != after.last_job:
            early = now_us - before.last_attempt_us < self._cooldown_us
            self._stage.expect(not early, f"{name} was begun again within its cooldown")
        if any(kind.startswith("pause") for kind in weather):
            return
        for other in self.runs.values():
            if other.subject == after.subject and other.branch != after.branch:
                age_us = now_us - (other.proposed_us or 0)
                early = _AT_ONCE_US <= age_us < self._cooldown_us
                self._stage.expect(not early, f"{name} was begun though {other.url} is new")

    def _within_cooldown(self, db: Any) -> None:
        """By the store's clock: a machine whose own is behind waits no longer than others."""
        latest_us = self._stage.server.clock.now_us() + self._cooldown_us
        late = db.execute(
            "SELECT id FROM towline_jobs WHERE kind = 'fix' AND state = 'queued' AND run_at_us > ?",
            (latest_us,),
        ).fetchall()
        names = [row[0][-6:] for row in late]
        self._stage.expect(not late, f"jobs of runs wait for longer than a cooldown: {names}")

    def _read_stages(self, db: Any) -> None:
        newest: dict[tuple[str, str], tuple[str, str]] = {}
        for run_key, stage, outcome, digest in db.execute(
            "SELECT run_key, stage, outcome, input_digest FROM towline_run_stages ORDER BY attempt"
        ):
            newest[run_key, stage] = (outcome, digest)
        self.passed = {place: end[1] for place, end in newest.items() if end[0] == "passed"}
        self.refused = {place[0] for place, end in newest.items() if end[0] == "refused"}
