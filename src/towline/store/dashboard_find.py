"""The fleet filtered: what needs a person first, then by state, the longest in it first.

A filter by state and age alone is a range of the index on both. Any other looks through an index
that holds what filters ask for, and reads only the records of the page. Those that ended are
wanted newest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from towline.core.lifecycle import STATES, TERMINAL, State
from towline.core.pulls import PullRecord
from towline.ports.dashboard import Place, Sought
from towline.store.like import containing
from towline.store.pull_rows import COLUMNS, record_of
from towline.store.sql import Database, Row, Statement

_ALL = ", ".join(f"p.{column}" for column in COLUMNS)
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
        SELECT {_ALL} FROM s CROSS JOIN towline_prs p
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
        SELECT {_ALL} FROM s CROSS JOIN towline_prs p
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
