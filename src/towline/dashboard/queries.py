"""What the dashboard asks of SQL: read-only, each over an index and cut off at a number of rows.

A page must stay fast with 100,000 pull requests, so no query here counts or sorts a whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import orjson

from towline.inbox.model import Stored
from towline.jobs.model import JobRecord, JobState
from towline.pulls.lifecycle import STATES, TERMINAL, State
from towline.pulls.model import PullRecord
from towline.pulls.sql import COLUMNS, record_of
from towline.pulls.staleness import Thresholds
from towline.pulls.statistics import PAST, TELLING, Step, What
from towline_once.db.statement import Database, Row, Statement, containing

# ------------------------------------------------------------------ counts
# What the dashboard reads besides the stores of others: each answer is bounded and indexed.


class Ended(NamedTuple):
    """How many ended within a part of the time looked at; `state` is MERGED or CLOSED."""

    state: State
    from_us: int
    times: int


class Past(NamedTuple):
    """What was counted of those that are forgotten; `place` is the part of the time looked at."""

    what: What
    bucket: int
    place: int
    times: int


class Life(NamedTuple):
    """From when a pull request was taken under tow to its merge."""

    created_us: int
    merged_us: int


class Reason(NamedTuple):
    """Why one stands still, as the reconciler diagnosed it; None where it did not yet."""

    state: State
    diagnosis: Mapping[str, object] | None


class Backlog(NamedTuple):
    oldest_due_us: int | None
    """When the job that waits longest was due."""
    given_up: int
    """Of the jobs that ended last."""


class Sought(NamedTuple):
    """All that is given must hold. A state that has no time of its own is never stale."""

    repo: str | None = None
    state: State | None = None
    rule: str | None = None
    """That of the diagnosis, be it of the state or of one before."""
    search: str | None = None
    stale_since_us: Mapping[State, int] | None = None
    """Only those that are in their state since before that."""
    in_time_since_us: Mapping[State, int] | None = None
    """Only those that are in their state since then or later, or have ended."""


class Place(NamedTuple):
    """Where a page ended: the state's place in the order, its time, negative if it has ended."""

    rank: int
    key: int
    repo: str
    number: int


class Deliveries(NamedTuple):
    """A page of them. `last` is the time and key of what was looked at last; None at the end."""

    rows: list[Stored]
    last: tuple[int, str] | None


class Jobs(NamedTuple):
    """A page of them. `last` is the id of what was looked at last; None at the end."""

    rows: list[JobRecord]
    last: str | None


# ------------------------------------------------------------------ the fleet, filtered
# The fleet filtered: what needs a person first, then by state, the longest in it first.
#
# A filter by state and age alone is a range of the index on both. Any other looks through an index
# that holds what filters ask for, and reads only the records of the page. Those that ended are
# wanted newest first.

_ALL_FOUND = ", ".join(f"p.{column}" for column in COLUMNS)
_EARLIEST, _LATEST = -(2**62), 2**62
_LIVE = tuple(state for state in STATES if state not in TERMINAL)
_TERMINAL_SQL = "'MERGED', 'CLOSED'"


@cache
def _in_state(ended: bool) -> Statement:
    way, beyond = ("DESC", "<") if ended else ("ASC", ">")
    return Statement(
        "pull requests in a state",
        {
            "state": "text", "from_us": "bigint", "to_us": "bigint", "after_us": "bigint",
            "after_repo": "text", "after_number": "bigint", "most": "bigint",
        },
        f"""
        , s AS (SELECT r.repo, r.number, r.since_us FROM towline_prs r
          WHERE r.state = (SELECT state FROM b) AND r.since_us >= (SELECT from_us FROM b)
            AND r.since_us < (SELECT to_us FROM b)
            AND (r.since_us, r.repo, r.number) {beyond}
              ((SELECT after_us FROM b), (SELECT after_repo FROM b), (SELECT after_number FROM b))
          ORDER BY r.since_us {way}, r.repo {way}, r.number {way} LIMIT (SELECT most FROM b))
        SELECT {_ALL_FOUND} FROM s CROSS JOIN towline_prs p
        WHERE p.repo = s.repo AND p.number = s.number
        ORDER BY s.since_us {way}, s.repo {way}, s.number {way}
        """,
        writes=False,
    )  # fmt: skip


# As the index of SQLite has them: only then does it answer for them.
_TEXT = """lower(substr(r.title, 1, 300) || ' ' || substr(coalesce(r.head_ref, ''), 1, 300) || ' '
    || r.repo || '#' || r.number)"""
_RULE = {
    "sqlite": f"""CASE WHEN json_valid(r.diagnosis) AND r.state NOT IN ({_TERMINAL_SQL})
        THEN json_extract(r.diagnosis, '$.rule') END""",
    "postgresql": """substring(r.diagnosis from '"rule": ?"([^"]*)"')""",
}
_FILTERS = {
    "repo": "r.repo = (SELECT repo FROM b)",
    "state": "r.state || '' = (SELECT state FROM b)",
    "rule": "{rule} = (SELECT rule FROM b)",
    "search": f"{_TEXT} LIKE (SELECT search FROM b) ESCAPE '!'",
}


def _each_live(bound: str) -> str:
    """The bound of a row's state, as the batch has it; those that ended have none."""
    cases = " ".join(f"WHEN '{one}' THEN (SELECT {bound}_{one.lower()} FROM b)" for one in _LIVE)
    return f"CASE r.state {cases} END"


@cache
def statement_for(dialect: str, filters: frozenset[str], order: tuple[State, ...]) -> Statement:
    """Only with what is asked for, so that the planner sees what it can use."""
    wanted = [
        clause.replace("{rule}", _RULE[dialect])
        for name, clause in _FILTERS.items()
        if name in filters
    ]
    if "to" in filters:
        wanted.append(f"r.since_us < {_each_live('to')}")
    if "from" in filters:
        wanted.append(f"(r.state IN ({_TERMINAL_SQL}) OR r.since_us >= {_each_live('from')})")
    rank = " ".join(f"WHEN '{state}' THEN {place}" for place, state in enumerate(order))
    return Statement(
        "pull requests that are sought",
        {
            **dict.fromkeys(_FILTERS, "text"),
            **{f"{bound}_{one.lower()}": "bigint" for bound in ("from", "to") for one in _LIVE},
            "after_rank": "bigint", "after_key": "bigint", "after_repo": "text",
            "after_number": "bigint", "most": "bigint",
        },
        f"""
        , f AS (SELECT CASE r.state {rank} END AS rank,
            CASE WHEN r.state IN ({_TERMINAL_SQL}) THEN -r.since_us ELSE r.since_us END AS age,
            r.repo, r.number FROM towline_prs r WHERE {" AND ".join(wanted)}),
        s AS (SELECT * FROM f WHERE (f.rank, f.age, f.repo, f.number) > (
            (SELECT after_rank FROM b), (SELECT after_key FROM b), (SELECT after_repo FROM b),
            (SELECT after_number FROM b))
          ORDER BY f.rank, f.age, f.repo, f.number LIMIT (SELECT most FROM b))
        SELECT {_ALL_FOUND} FROM s CROSS JOIN towline_prs p
        WHERE p.repo = s.repo AND p.number = s.number ORDER BY s.rank, s.age, s.repo, s.number
        """,
        writes=False,
    )  # fmt: skip


async def find(
    database: Database,
    sought: Sought,
    order: tuple[State, ...],
    after: Place | None,
    most: int,
) -> list[PullRecord]:
    if sought.repo is None and sought.rule is None and sought.search is None:
        return await _by_state(database, sought, order, after, most)
    filters = {name for name in _FILTERS if getattr(sought, name) is not None}
    filters |= {"to"} if sought.stale_since_us is not None else set()
    filters |= {"from"} if sought.in_time_since_us is not None else set()
    statement = statement_for(database.dialect, frozenset(filters), order)
    rows = await database.run(statement, [row_for(sought, after or Place(-1, 0, "", 0), most)])
    return [record_of(row) for row in rows]


def row_for(sought: Sought, after: Place, most: int) -> Row:
    search = None if sought.search is None else containing(sought.search)
    from_us, to_us = sought.in_time_since_us or {}, sought.stale_since_us or {}
    return (
        sought.repo, sought.state, sought.rule, search,
        *(found.get(state, _EARLIEST) for found in (from_us, to_us) for state in _LIVE),
        *after, most,
    )  # fmt: skip


async def _by_state(
    database: Database,
    sought: Sought,
    order: tuple[State, ...],
    after: Place | None,
    most: int,
) -> list[PullRecord]:
    """State after state, until there are enough."""
    found: list[PullRecord] = []
    for place, state in _states(sought, order, after):
        ended = state in TERMINAL
        begin = (_LATEST, "\U0010ffff", _LATEST) if ended else (_EARLIEST, "", 0)
        if place is not None:
            begin = (-place.key if ended else place.key, *place[2:])
        row = (state, *_ages(sought, state), *begin, most - len(found))
        rows = await database.run(_in_state(ended), [row])
        found += [record_of(one) for one in rows]
        if len(found) >= most:
            break
    return found


def _states(
    sought: Sought, order: tuple[State, ...], after: Place | None
) -> Iterator[tuple[Place | None, State]]:
    """Those that are looked at; the first from where the page before ended."""
    for rank, state in enumerate(order):
        if sought.state not in (None, state) or (after is not None and rank < after.rank):
            continue
        if sought.stale_since_us is not None and state not in sought.stale_since_us:
            continue
        yield (after if after is not None and rank == after.rank else None), state


def _ages(sought: Sought, state: State) -> tuple[int, int]:
    from_us, to_us = _EARLIEST, _LATEST
    if sought.stale_since_us is not None:
        to_us = sought.stale_since_us[state]
    if sought.in_time_since_us is not None and state not in TERMINAL:
        from_us = sought.in_time_since_us.get(state, _EARLIEST)
    return from_us, to_us


# ------------------------------------------------------------------ deliveries and jobs
# Deliveries and jobs, newest first. A filter looks through so many of them, and then goes on.

_LATEST_LISTED: Final = 2**62
_LAST_TEXT: Final = "\U0010ffff"
"""No key and no id comes after it."""
_DELIVERY = ", ".join(f"d.{name}" for name in Stored._fields).replace("d.body,", "NULL,")
_JOB = ", ".join(
    "NULL" if name in ("params", "result") else f"r.{name}" for name in JobRecord._fields
)

END_OF_DELIVERIES = Statement(
    "where a look at deliveries ends",
    {"before_us": "bigint", "most": "bigint"},
    """
    SELECT d.received_us FROM towline_deliveries d
    WHERE d.received_us <= (SELECT before_us FROM b)
    ORDER BY d.received_us DESC LIMIT 1 OFFSET (SELECT most FROM b)
    """,
    writes=False,
)


@cache
def _deliveries(filters: frozenset[str]) -> Statement:
    return Statement(
        "page of deliveries",
        {
            "before_us": "bigint", "before_key": "text", "from_us": "bigint", "source": "text",
            "repo": "text", "event_name": "text", "most": "bigint",
        },
        f"""
        SELECT {_DELIVERY} FROM towline_deliveries d
        WHERE d.received_us <= (SELECT before_us FROM b)
          AND d.received_us >= (SELECT from_us FROM b)
          AND (d.received_us < (SELECT before_us FROM b) OR d.key > (SELECT before_key FROM b))
          {"".join(_contains(f"d.{name}", name) for name in sorted(filters))}
        ORDER BY d.received_us DESC, d.key LIMIT (SELECT most FROM b)
        """,
        writes=False,
    )  # fmt: skip


@cache
def _end_of_jobs(state: JobState | None) -> Statement:
    return Statement(
        "where a look at jobs ends",
        {"before": "text", "most": "bigint"},
        f"""
        SELECT r.id FROM towline_jobs r WHERE {_id(state)} < (SELECT before FROM b)
          {_listed_in_state(state)}
        ORDER BY {_id(state)} DESC LIMIT 1 OFFSET (SELECT most FROM b)
        """,
        writes=False,
    )


@cache
def _jobs(state: JobState | None, filters: frozenset[str]) -> Statement:
    contains = "".join(_contains(f"r.{name}", name) for name in sorted(filters))
    return Statement(
        "page of jobs",
        {"before": "text", "from_id": "text", "kind": "text", "repo": "text", "most": "bigint"},
        f"""
        , s AS (SELECT r.id FROM towline_jobs r
          WHERE {_id(state)} < (SELECT before FROM b) AND {_id(state)} >= (SELECT from_id FROM b)
            {_listed_in_state(state)} {contains}
          ORDER BY {_id(state)} DESC LIMIT (SELECT most FROM b))
        SELECT {_JOB} FROM s CROSS JOIN towline_jobs r WHERE r.id = s.id ORDER BY s.id DESC
        """,
        writes=False,
    )


def _listed_in_state(state: JobState | None) -> str:
    """In so many words, for the indexes that cover one state."""
    return "" if state is None else f"AND r.state = '{state}'"


def _id(state: JobState | None) -> str:
    """Those that have not ended are few: their own index finds them, and not the order of ids."""
    return "r.id || ''" if state in ("queued", "running") else "r.id"


def _contains(column: str, name: str) -> str:
    return f" AND lower({column}) LIKE (SELECT {name} FROM b) ESCAPE '!'"


async def deliveries(
    database: Database,
    wanted: Mapping[str, str],
    before: tuple[int, str] | None,
    most: int,
    looked_at: int,
) -> Deliveries:
    before_us, before_key = before or (_LATEST_LISTED, "")
    from_us: int | None = None
    if wanted:
        end = await database.run(END_OF_DELIVERIES, [(before_us, looked_at)])
        from_us = end[0][0] if end else None
    patterns = [_pattern(wanted, name) for name in ("source", "repo", "event_name")]
    row: Row = (before_us, before_key, from_us or 0, *patterns, most + 1)
    rows = await database.run(_deliveries(frozenset(wanted)), [row])
    found = [Stored._make(one) for one in rows]
    if len(found) > most:
        return Deliveries(found[:most], (found[most - 1].received_us, found[most - 1].key))
    return Deliveries(found, None if from_us is None else (from_us, _LAST_TEXT))


async def jobs(
    database: Database,
    state: JobState | None,
    wanted: Mapping[str, str],
    before: str,
    most: int,
    looked_at: int,
) -> Jobs:
    last = before or _LAST_TEXT
    from_id: str | None = None
    if wanted:
        end = await database.run(_end_of_jobs(state), [(last, looked_at)])
        from_id = end[0][0] if end else None
    patterns = [_pattern(wanted, name) for name in ("kind", "repo")]
    row: Row = (last, from_id or "", *patterns, most + 1)
    rows = await database.run(_jobs(state, frozenset(wanted)), [row])
    found = [JobRecord._make(one) for one in rows]
    if len(found) > most:
        return Jobs(found[:most], found[most - 1].id)
    return Jobs(found, from_id)


def _pattern(wanted: Mapping[str, str], name: str) -> str | None:
    return containing(wanted[name]) if name in wanted else None


# ------------------------------------------------------------------ the queries

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
        return await deliveries(self._database, wanted, before, most, self._looked_at)

    async def jobs(
        self, state: JobState | None, wanted: Mapping[str, str], before: str, most: int
    ) -> Jobs:
        """The newest first, after the one with the id `before`; no parameters, no results.

        `wanted` is what `kind` and `repo` contain. So many are looked at, at most.
        """
        return await jobs(self._database, state, wanted, before, most, self._looked_at)
