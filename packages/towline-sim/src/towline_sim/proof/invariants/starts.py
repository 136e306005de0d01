"""Fix runs that wait for their turns: each has one, keeps it, and none is early or shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towline_once.coordination.rate_limit import Rate
from towline_sim.proof.harness import Stage


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
