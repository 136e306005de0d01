"""What the dashboard asks of SQL: read-only, each over an index and cut off at a number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from towline.core.ended import Step
from towline.core.lifecycle import STATES, TERMINAL, State
from towline.core.pulls import PullRecord
from towline.core.staleness import Thresholds
from towline.ports.dashboard import (
    Backlog,
    Deliveries,
    Ended,
    Jobs,
    Life,
    Past,
    Place,
    Reason,
    Sought,
)
from towline.ports.jobs import JobState
from towline.store import dashboard_lists as lists
from towline.store.dashboard_find import find
from towline.store.ended import PAST, TELLING
from towline.store.pull_rows import COLUMNS, record_of
from towline.store.sql import Database, Statement

_LATELY = 5_000
_LATELY_MERGED = 2_000
_STUCK: tuple[State, ...] = ("CHECKS_FAILED", "POLICY_FAILED", "NEEDS_INTERVENTION")
_ALL = ", ".join(f"p.{column}" for column in COLUMNS)


def _of_each(states: tuple[State, ...], columns: str) -> str:
    """A range of the index on state and time for each; those that ended are wanted newest first."""
    return " UNION ALL ".join(
        f"""
        SELECT * FROM (SELECT {columns} FROM towline_prs r WHERE r.state = '{state}'
          ORDER BY r.since_us {"DESC" if state in TERMINAL else "ASC"}
          LIMIT (SELECT most FROM b)) AS of_{state.lower()}
        """
        for state in states
    )


COLUMNS_OF_THE_BOARD = Statement(
    "columns of the board",
    {"most": "bigint"},
    f"""
    , s AS ({_of_each(STATES, "r.repo, r.number")})
    SELECT {_ALL} FROM s CROSS JOIN towline_prs p
    WHERE p.repo = s.repo AND p.number = s.number
    """,
    writes=False,
)

OVERDUE = Statement(
    "count overdue",
    {"state": "text", "threshold_us": "bigint", "most": "bigint"},
    """
    SELECT b.state, (SELECT count(*) FROM (
      SELECT 1 FROM towline_prs r WHERE r.state = b.state AND r.since_us < {now} - b.threshold_us
      LIMIT (SELECT max(most) FROM b)) AS late) FROM b
    """,
    writes=False,
)

REPOS = Statement(
    "repositories, for a list",
    {"most": "bigint"},
    "SELECT r.repo FROM towline_repos r ORDER BY r.repo LIMIT (SELECT most FROM b)",
    writes=False,
)

ENDED = Statement(
    "ended in parts of a time",
    {"state": "text", "from_us": "bigint", "to_us": "bigint"},
    """
    SELECT b.state, b.from_us, (SELECT count(*) FROM towline_prs p WHERE p.state = b.state
      AND p.since_us >= b.from_us AND p.since_us < b.to_us) FROM b
    """,
    writes=False,
)

LIVES = Statement(
    "lives of merged pull requests",
    {"since_us": "bigint", "most": "bigint"},
    """
    SELECT p.created_us, p.since_us FROM towline_prs p
    WHERE p.state = 'MERGED' AND p.since_us >= (SELECT since_us FROM b)
    ORDER BY p.since_us DESC LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

HEALED = Statement(
    "logs of the healed",
    {"since_us": "bigint", "most": "bigint"},
    f"""
    , m AS (SELECT r.repo, r.number, r.since_us, r.last_remediation_us FROM towline_prs r
            WHERE r.state = 'MERGED' AND r.since_us >= (SELECT since_us FROM b)
            ORDER BY r.since_us DESC LIMIT {_LATELY_MERGED}),
    s AS (SELECT m.repo, m.number FROM m WHERE m.last_remediation_us IS NOT NULL
          ORDER BY m.since_us DESC LIMIT (SELECT most FROM b))
    SELECT e.repo, e.number, e.event_type, e.source, e.at_us
    FROM s CROSS JOIN towline_pr_events e
    WHERE e.repo = s.repo AND e.number = s.number AND {TELLING}
    ORDER BY e.repo, e.number, e.id
    """,
    writes=False,
)

REASONS = Statement(
    "why they stand still",
    {"most": "bigint"},
    _of_each(_STUCK, "r.state, r.diagnosis"),
    writes=False,
)

BACKLOG = Statement(
    "backlog",
    {"lately": "bigint"},
    """
    SELECT (SELECT min(j.run_at_us) FROM towline_jobs j
            WHERE j.state = 'queued' AND j.run_at_us <= {now}),
      (SELECT count(*) FROM (
         SELECT * FROM (SELECT f.finished_us, 1 AS died FROM towline_jobs f WHERE f.state = 'dead'
           ORDER BY f.finished_us DESC LIMIT (SELECT lately FROM b)) AS dead
         UNION ALL
         SELECT * FROM (SELECT f.finished_us, 0 AS died FROM towline_jobs f WHERE f.state = 'done'
           ORDER BY f.finished_us DESC LIMIT (SELECT lately FROM b)) AS done
         ORDER BY 1 DESC LIMIT (SELECT lately FROM b)) AS ended
       WHERE ended.died = 1)
    """,
    writes=False,
)


class SqlInsights:
    def __init__(self, database: Database, most_looked_at: int = 5_000) -> None:
        """A filter of deliveries and jobs looks through so many of them for a page."""
        self._database = database
        self._looked_at = most_looked_at

    async def columns(self, most: int) -> Mapping[State, list[PullRecord]]:
        """Of each state those that are in it longest; of MERGED and CLOSED the newest."""
        found: dict[State, list[PullRecord]] = {state: [] for state in STATES}
        for row in await self._database.run(COLUMNS_OF_THE_BOARD, [(most,)]):
            record = record_of(row)
            found[record.state].append(record)
        for state, records in found.items():
            records.sort(key=lambda one: (one.since_us, one.ref), reverse=state in TERMINAL)
        return found

    async def overdue(self, thresholds: Thresholds, most: int) -> Mapping[State, int]:
        """How many are in their state for longer than this; counted up to `most` a state."""
        rows = [(state, round(seconds * 1e6), most) for state, seconds in thresholds.items()]
        counted = await self._database.run(OVERDUE, rows) if rows else []
        return {row[0]: row[1] for row in counted}

    async def repos(self, most: int) -> list[str]:
        return [row[0] for row in await self._database.run(REPOS, [(most,)])]

    async def ended(self, starts_us: Sequence[int], bin_us: int) -> list[Ended]:
        """Of those that are still known, for each part of the time; none where there are none."""
        rows = [(state, at, at + bin_us) for at in starts_us for state in sorted(TERMINAL)]
        counted = await self._database.run(ENDED, rows)
        return [Ended._make(row) for row in counted if row[2]]

    async def past(self, since_us: int, bin_us: int) -> list[Past]:
        """Of those that are forgotten."""
        rows = await self._database.run(PAST, [(since_us, bin_us)])
        return [Past(what, bucket, int(place), int(times)) for what, bucket, place, times in rows]

    async def lives(self, since_us: int, most: int) -> list[Life]:
        """Of those that were merged since, the newest first."""
        rows = await self._database.run(LIVES, [(since_us, most)])
        return [Life._make(row) for row in rows]

    async def healed(self, most: int, since_us: int = 0) -> list[Step]:
        """The logs of those that were merged last after a remedy, what tells of healing in them."""
        return [Step._make(row) for row in await self._database.run(HEALED, [(since_us, most)])]

    async def reasons(self, most: int) -> list[Reason]:
        """Of those that failed or wait for a person, the newest of each state."""
        rows = await self._database.run(REASONS, [(most,)])
        return [Reason(state, orjson.loads(text) if text else None) for state, text in rows]

    async def backlog(self) -> Backlog:
        return Backlog._make((await self._database.run(BACKLOG, [(_LATELY,)]))[0])

    async def find(
        self, sought: Sought, order: tuple[State, ...], after: Place | None, most: int
    ) -> list[PullRecord]:
        """By state in this order, in each the longest first; of those that ended, the newest."""
        return await find(self._database, sought, order, after, most)

    async def deliveries(
        self, wanted: Mapping[str, str], before: tuple[int, str] | None, most: int
    ) -> Deliveries:
        """The newest first, after the one that `before` names by time and key; no bodies.

        `wanted` is what `source`, `repo` and `event_name` contain. So many are looked at, at most.
        """
        return await lists.deliveries(self._database, wanted, before, most, self._looked_at)

    async def jobs(
        self, state: JobState | None, wanted: Mapping[str, str], before: str, most: int
    ) -> Jobs:
        """The newest first, after the one with the id `before`; no parameters, no results.

        `wanted` is what `kind` and `repo` contain. So many are looked at, at most.
        """
        return await lists.jobs(self._database, state, wanted, before, most, self._looked_at)
