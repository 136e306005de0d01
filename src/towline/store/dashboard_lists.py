"""Deliveries and jobs, newest first. A filter looks through so many of them, and then goes on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from towline.ports.dashboard import Deliveries, Jobs
from towline.ports.inbox import Stored
from towline.ports.jobs import JobRecord, JobState
from towline.store.like import containing
from towline.store.sql import Database, Row, Statement

_LATEST: Final = 2**62
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
          {_in_state(state)}
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
            {_in_state(state)} {contains}
          ORDER BY {_id(state)} DESC LIMIT (SELECT most FROM b))
        SELECT {_JOB} FROM s CROSS JOIN towline_jobs r WHERE r.id = s.id ORDER BY s.id DESC
        """,
        writes=False,
    )


def _in_state(state: JobState | None) -> str:
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
    before_us, before_key = before or (_LATEST, "")
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
