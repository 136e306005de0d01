"""Checks that come before their pull request, or before the push that they are about.

A delivery of a pull request's check that was dealt with has left its mark: a record has that
head, or had it, or the event waits for one. At the end nothing waits for a record that has long
been there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from towline_sim.proof.harness import Stage

_ENDS_JOBS: Final = frozenset({"settle job", "settle jobs, counted"})
_ENDED: Final = ("MERGED", "CLOSED")


class _Check(NamedTuple):
    repo: str
    head_sha: str
    numbers: tuple[int, ...]


class EarlyWatch:
    tables = frozenset({"towline_jobs"})

    def __init__(self, stage: Stage, heads: Callable[[], Iterable[Sequence[str]]]) -> None:
        """`heads` are those that each pull request of the world had so far."""
        self._stage = stage
        self._heads = heads
        self._checks: dict[str, _Check] = {}
        """Those that were delivered and not seen to be dealt with, by the delivery's id."""

    def delivered(self, delivery_id: str, name: str, body: bytes) -> None:
        if name not in ("check_run", "check_suite", "status"):
            return
        payload = orjson.loads(body)
        about = payload if name == "status" else payload[name]
        listed = about.get("pull_requests") or ()
        self._checks[delivery_id] = _Check(
            repo=payload["repository"]["full_name"],
            head_sha=about["sha" if name == "status" else "head_sha"],
            numbers=tuple(one["number"] for one in listed),
        )

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if _ENDS_JOBS.isdisjoint(names):
            return
        ended = db.execute(
            "SELECT d.delivery_id, d.key FROM towline_jobs j"
            " JOIN towline_deliveries d ON d.job_id = j.id"
            " WHERE j.kind = 'delivery' AND j.state = 'done'"
        ).fetchall()
        for delivery_id, key in ended:
            check = self._checks.pop(delivery_id, None)
            if check is not None and any(check.head_sha in one for one in self._heads()):
                kept = self._is_recorded(db, check) or _is_parked(db, key)
                text = f"{delivery_id} came before its pull request and is lost: {check}"
                self._stage.expect(kept, text)

    def _is_recorded(self, db: Any, check: _Check) -> bool:
        rows = db.execute(
            "SELECT number, state, head_sha, facts FROM towline_prs WHERE repo = ?", (check.repo,)
        )
        for number, state, head_sha, facts in rows:
            if head_sha == check.head_sha or (number in check.numbers and state in _ENDED):
                return True
            if check.head_sha in orjson.loads(facts).get("former_heads", ()):
                return True
        return False

    def nothing_waits_in_vain(self, db: Any) -> None:
        """Beside what a look at the forge has brought: it shows the checks as well.

        A job that used up its attempts in the storm has left its events to such a look.
        """
        dead = "SELECT 1 FROM towline_jobs WHERE kind = 'delivery' AND state = 'dead'"
        if db.execute(dead).fetchone() is not None:
            return
        waiting = db.execute(
            "SELECT p.repo, p.number, k.delivery_key FROM towline_parked k"
            " JOIN towline_prs p ON p.repo = k.repo AND p.head_sha = k.head_sha"
            " WHERE NOT EXISTS (SELECT 1 FROM towline_pr_events e"
            "   WHERE e.repo = p.repo AND e.number = p.number"
            "   AND (e.event_type = 'STATE_DRIFT_CORRECTED' OR e.source = 'reconciler'"
            "        AND e.event_type IN ('PR_OPENED', 'BRANCH_UPDATED')))"
        ).fetchall()
        for repo, number, key in waiting:
            self._stage.violation(f"{key} still waits for {repo}#{number}, which is recorded")


def _is_parked(db: Any, key: str) -> bool:
    found = db.execute("SELECT 1 FROM towline_parked WHERE delivery_key = ?", (key,)).fetchone()
    return found is not None
