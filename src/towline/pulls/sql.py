"""Pull requests as rows. What has a shape of its own is JSON, and is read whatever its age."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import orjson

from towline.forges.snapshot import PullRef
from towline.pulls.budgets import STRATEGIES
from towline.pulls.facts import CheckFact, Facts, ReviewFact, Said
from towline.pulls.lifecycle import STATES, TERMINAL
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline_once.db.statement import Row, Statement

COLUMNS = {
    "repo": "text", "number": "bigint", "forge": "text", "url": "text", "title": "text",
    "author": "text", "head_ref": "text", "base_ref": "text", "head_sha": "text",
    "vulnerability_id": "text", "state": "text", "substatus": "text", "since_us": "bigint",
    "created_us": "bigint", "updated_us": "bigint", "counts": "text", "lifetime": "text",
    "path": "text", "facts": "text", "intent": "text", "verify_by_us": "bigint",
    "last_remediation_us": "bigint", "remediation_action": "text", "diagnosis": "text",
    "replaces": "bigint", "replaced_by": "bigint", "expires_us": "bigint", "version": "bigint",
    "last_event": "bigint",
}  # fmt: skip
"""Of `towline_prs`, in the order of a row."""

_NAMES: dict[type[Any], frozenset[str]] = {
    kind: frozenset(one.name for one in fields(kind))
    for kind in (Facts, CheckFact, ReviewFact, Said)
}
T = TypeVar("T")


def row_of(record: PullRecord, version: int, last_event: int) -> Row:
    intent = record.intent
    return (
        record.ref.repo,
        record.ref.number,
        record.ref.forge,
        *record[1:8],
        *record[8:13],
        _text(record.counts),
        _text(record.lifetime),
        _text(record.path),
        _text(record.facts),
        None if intent is None else _text(intent._asdict()),
        None if intent is None else intent.verify_by_us,
        record.last_remediation_us,
        record.remediation_action,
        None if record.diagnosis is None else _text(record.diagnosis),
        record.replaces,
        record.replaced_by,
        record.expires_us,
        version,
        last_event,
    )


def record_of(row: Row) -> PullRecord:
    """Of a row with the columns in their order."""
    found = dict(zip(COLUMNS, row, strict=False))
    ref = PullRef(found.pop("forge"), found.pop("repo"), found.pop("number"))
    del found["verify_by_us"], found["last_event"]
    return PullRecord(
        **found
        | {
            "ref": ref,
            "counts": _counts(found["counts"]),
            "lifetime": _counts(found["lifetime"]),
            "path": tuple(orjson.loads(found["path"])),
            "facts": _facts(orjson.loads(found["facts"])),
            "intent": _intent(found["intent"]),
            "diagnosis": found["diagnosis"] and orjson.loads(found["diagnosis"]),
        }
    )


def event_row(record: PullRecord, event: PullEvent, number: int) -> Row:
    payload = _text(event.payload)
    ref = record.ref
    return (
        *(ref.repo, ref.number, number, event.key),
        *(event.event_type, event.source, event.at_us, payload),
    )


def event_of(row: Row) -> PullEvent:
    """Of id, key, event_type, source, at_us and payload."""
    number, key, event_type, source, at_us, payload = row
    return PullEvent(event_type, source, at_us, orjson.loads(payload), key, number)


def _text(value: object) -> str:
    """Mappings that are no dicts, sets and the like are written as what they hold."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)


def _counts(text: str) -> dict[Any, int]:
    stored = orjson.loads(text)
    return {strategy: stored.get(strategy, 0) for strategy in STRATEGIES}


def _intent(text: str | None) -> Intent | None:
    if text is None:
        return None
    stored = orjson.loads(text)
    return Intent(**{name: stored[name] for name in Intent._fields if name in stored})


def _facts(stored: dict[str, Any]) -> Facts:
    known = _only_known(Facts, stored)
    for name in ("checks", "suites", "policy_checks"):
        known[name] = _each(CheckFact, known.get(name))
    known["reviews"] = _each(ReviewFact, known.get("reviews"))
    known["said"] = _each(Said, known.get("said"))
    for name in ("approved_by", "labels", "former_heads"):
        known[name] = tuple(known.get(name) or ())
    return Facts(**known)


def _each(kind: type[T], stored: Mapping[str, dict[str, Any]] | None) -> dict[str, T]:
    return {name: kind(**_only_known(kind, value)) for name, value in (stored or {}).items()}


def _only_known(kind: type[Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in stored.items() if name in names}


# ------------------------------------------------------------------ SQL
# The SQL of pull requests. A record is changed only in the version that was read.
#
# The second writer waits for the row, finds another version, and reads again.

_ALL = ", ".join(f"p.{column}" for column in COLUMNS)
_KEY = {"repo": "text", "number": "bigint"}

READ = Statement(
    "read pull request",
    _KEY,
    f"""
    SELECT {{now}}, {_ALL} FROM b
    LEFT JOIN towline_prs p ON p.repo = b.repo AND p.number = b.number
    """,
    writes=False,
)

CREATE = Statement(
    "create pull request",
    COLUMNS,
    f"""
    INSERT INTO towline_prs ({", ".join(COLUMNS)})
    SELECT {", ".join(f"b.{column}" for column in COLUMNS)} FROM b WHERE true
    ON CONFLICT (repo, number) DO NOTHING RETURNING number
    """,
)

_SET = ", ".join(f"{column} = b.{column}" for column in COLUMNS if column not in _KEY)

UPDATE = Statement(
    "update pull request",
    {**COLUMNS, "expected": "bigint"},
    f"""
    UPDATE towline_prs SET {_SET} FROM b
    WHERE towline_prs.repo = b.repo AND towline_prs.number = b.number
      AND towline_prs.version = b.expected
    RETURNING towline_prs.number
    """,
)

NOTE_REPO = Statement(
    "note repository",
    {"repo": "text", "name": "text", "forge": "text"},
    """
    INSERT INTO towline_repos (repo, name, forge)
    SELECT b.repo, b.name, b.forge FROM b WHERE true ON CONFLICT (repo) DO NOTHING RETURNING repo
    """,
)

KNOWN_EVENT = Statement(
    "known event",
    {**_KEY, "key": "text"},
    """
    SELECT e.id FROM b JOIN towline_pr_events e
      ON e.repo = b.repo AND e.number = b.number AND e.key = b.key
    """,
    writes=False,
)

APPEND = Statement(
    "append events",
    {
        **_KEY, "id": "bigint", "key": "text", "event_type": "text", "source": "text",
        "at_us": "bigint", "payload": "text",
    },
    """
    INSERT INTO towline_pr_events (repo, number, id, key, event_type, source, at_us, payload)
    SELECT b.repo, b.number, b.id, b.key, b.event_type, b.source, b.at_us, b.payload
    FROM b WHERE true ON CONFLICT DO NOTHING RETURNING id
    """,
)  # fmt: skip

EVENTS = Statement(
    "events of a pull request",
    {**_KEY, "after_id": "bigint", "most": "bigint"},
    """
    SELECT e.id, e.key, e.event_type, e.source, e.at_us, e.payload FROM towline_pr_events e
    WHERE e.repo = (SELECT repo FROM b) AND e.number = (SELECT number FROM b)
      AND e.id > (SELECT after_id FROM b)
    ORDER BY e.id LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

# Along the primary key, so that a page costs what it holds, however long the log is.
LOG = Statement(
    "events of all pull requests",
    {**_KEY, "after_id": "bigint", "until_repo": "text", "most": "bigint"},
    """
    SELECT e.repo, e.number, e.id, e.key, e.event_type, e.source, e.at_us, e.payload
    FROM towline_pr_events e
    WHERE (e.repo, e.number, e.id)
        > ((SELECT repo FROM b), (SELECT number FROM b), (SELECT after_id FROM b))
      AND ((SELECT until_repo FROM b) IS NULL OR e.repo <= (SELECT until_repo FROM b))
    ORDER BY e.repo, e.number, e.id LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

_LIVE = [state for state in STATES if state not in TERMINAL]


def _stale_ranges(columns: str) -> str:
    """One range for each state over the index on state and time, each cut off where the whole is.

    The time that a range ends at is `before`, how long its state may last is `allowed`.
    """
    return " UNION ALL ".join(
        f"""
        SELECT * FROM (
          SELECT {columns.format(before=_before(state), allowed=_allowed(state))} FROM towline_prs r
          WHERE r.state = '{state}' AND r.since_us < {_before(state)}
          ORDER BY r.since_us LIMIT (SELECT max(most) FROM b)) AS of_{state.lower()}
        """
        for state in _LIVE
    )


def _before(state: str) -> str:
    return f"(SELECT before_us FROM l WHERE l.state = '{state}')"


def _allowed(state: str) -> str:
    return f"(SELECT threshold_us FROM b WHERE b.state = '{state}')"


_STALE_INPUT = {"state": "text", "threshold_us": "bigint", "now_us": "bigint", "most": "bigint"}
_LIMITS = """
    , l AS (SELECT b.state AS state, coalesce(b.now_us, {now}) - b.threshold_us AS before_us
            FROM b)
    """

STALE = Statement(
    "stale pull requests",
    _STALE_INPUT,
    f"""
    {_LIMITS},
    s AS ({_stale_ranges("r.repo, r.number, r.since_us - {before} AS late")}
          ORDER BY 3, 1, 2 LIMIT (SELECT max(most) FROM b))
    SELECT {_ALL} FROM s CROSS JOIN towline_prs p
    WHERE p.repo = s.repo AND p.number = s.number ORDER BY s.late, s.repo, s.number
    """,
    writes=False,
)

_STALE_KEY = "r.since_us + {allowed} AS due_us, r.repo, r.number, r.state, r.since_us"
# Of these the caller makes one order: that is cheaper than to sort here.
STALE_KEYS = Statement(
    "keys of stale pull requests",
    _STALE_INPUT,
    f"{_LIMITS} {_stale_ranges(_STALE_KEY)}",
    writes=False,
)

READ_ALL = Statement(
    "read pull requests",
    _KEY,
    f"SELECT {_ALL} FROM b JOIN towline_prs p ON p.repo = b.repo AND p.number = b.number",
    writes=False,
)

OF_COMMIT = Statement(
    "pull requests of a commit",
    {"repo": "text", "head_sha": "text"},
    f"""
    SELECT {_ALL} FROM b JOIN towline_prs p ON p.head_sha = b.head_sha
    WHERE b.repo IS NULL OR p.repo = b.repo ORDER BY p.repo, p.number
    """,
    writes=False,
)

ALIVE_FOR = Statement(
    "alive for a vulnerability",
    {"vulnerability_id": "text"},
    f"""
    SELECT {_ALL} FROM b JOIN towline_prs p ON p.vulnerability_id = b.vulnerability_id
    WHERE p.expires_us IS NULL AND p.vulnerability_id IS NOT NULL ORDER BY p.repo, p.number
    """,
    writes=False,
)

UNVERIFIED = Statement(
    "unverified intents",
    {"most": "bigint"},
    f"""
    SELECT {_ALL} FROM towline_prs p
    WHERE p.verify_by_us IS NOT NULL AND p.verify_by_us <= {{now}}
    ORDER BY p.verify_by_us LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

COUNT_REOPENED = Statement(
    "count a reopening",
    {"vulnerability_id": "text", "key": "text"},
    """
    INSERT INTO towline_reopened (vulnerability_id, key, at_us)
    SELECT b.vulnerability_id, b.key, {now} FROM b WHERE true
    ON CONFLICT (vulnerability_id, key) DO NOTHING RETURNING key
    """,
)

REOPENED = Statement(
    "reopened",
    {"vulnerability_id": "text"},
    """
    SELECT count(*) FROM b JOIN towline_reopened r ON r.vulnerability_id = b.vulnerability_id
    """,
    writes=False,
)

# What was closed and opened anew a year ago bounds nothing, unless one of them is still alive.
FORGET_REOPENED = Statement(
    "forget reopenings",
    {"most": "bigint", "keep_us": "bigint"},
    """
    DELETE FROM towline_reopened WHERE (vulnerability_id, key) IN (
      SELECT r.vulnerability_id, r.key FROM towline_reopened r
      WHERE r.at_us <= {now} - (SELECT keep_us FROM b)
        AND NOT EXISTS (SELECT 1 FROM towline_prs p WHERE p.vulnerability_id = r.vulnerability_id
                        AND p.vulnerability_id IS NOT NULL AND p.expires_us IS NULL)
      LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING 1
    """,
)

NAMED = Statement(
    "repositories by bare name",
    {"name": "text"},
    """
    SELECT r.repo FROM b JOIN towline_repos r ON r.name = b.name
    WHERE EXISTS (SELECT 1 FROM towline_prs p WHERE p.repo = r.repo) ORDER BY r.repo
    """,
    writes=False,
)

REPOS = Statement(
    "repositories under tow",
    {"forge": "text"},
    """
    SELECT r.repo FROM b JOIN towline_repos r ON r.forge = b.forge
    WHERE EXISTS (SELECT 1 FROM towline_prs p WHERE p.repo = r.repo) ORDER BY r.repo
    """,
    writes=False,
)

CENSUS = Statement(
    "census",
    {"unused": "bigint"},
    "SELECT p.state, count(*) FROM towline_prs p GROUP BY p.state",
    writes=False,
)

# As many as have so many lines together, but one at least.
FORGET = Statement(
    "forget pull requests",
    {"most": "bigint", "lines": "bigint"},
    """
    DELETE FROM towline_prs WHERE (repo, number) IN (
      SELECT c.repo, c.number FROM (
        SELECT old.repo, old.number,
          sum(old.last_event) OVER (ORDER BY old.expires_us, old.repo, old.number)
            - old.last_event AS before
        FROM (
          SELECT r.repo, r.number, r.expires_us, r.last_event FROM towline_prs r
          WHERE r.expires_us IS NOT NULL AND r.expires_us <= {now}
          ORDER BY r.expires_us LIMIT (SELECT most FROM b) {skip_locked}) AS old) AS c
      WHERE c.before < (SELECT lines FROM b))
    RETURNING repo, number, state, since_us, created_us, last_remediation_us, expires_us, {now}
    """,
)

FORGET_EVENTS = Statement(
    "forget events",
    _KEY,
    """
    DELETE FROM towline_pr_events
    WHERE (repo, number) IN (SELECT b.repo, b.number FROM b) RETURNING id
    """,
)

FILTERS = {
    "repo": "p.repo = (SELECT repo FROM b)",
    "state": "p.state = (SELECT state FROM b)",
    "vulnerability_id": "p.vulnerability_id = (SELECT vulnerability_id FROM b)",
    "search": """(lower(p.title) LIKE (SELECT search FROM b) ESCAPE '!'
      OR lower(p.head_ref) LIKE (SELECT search FROM b) ESCAPE '!'
      OR lower(p.repo) LIKE (SELECT search FROM b) ESCAPE '!')""",
}


@cache
def listing(filters: frozenset[str]) -> Statement:
    """Only with what is asked for, so that the planner sees what it can use."""
    wanted = "".join(f" AND {FILTERS[name]}" for name in sorted(filters))
    return Statement(
        "list pull requests",
        {
            **dict.fromkeys(FILTERS, "text"),
            "after_repo": "text",
            "after_number": "bigint",
            "most": "bigint",
        },
        f"""
        SELECT {_ALL} FROM towline_prs p
        WHERE (p.repo, p.number) > ((SELECT after_repo FROM b), (SELECT after_number FROM b))
          {wanted}
        ORDER BY p.repo, p.number LIMIT (SELECT most FROM b)
        """,
        writes=False,
    )
