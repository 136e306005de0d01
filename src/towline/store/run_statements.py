"""The SQL of fix runs. Whatever an attempt writes compares its token inside the one UPDATE."""

from __future__ import annotations

from functools import cache
from typing import Final

from towline.core.fixrun import RunRecord, RunState
from towline.store.sql import Statement

NEW: Final = {
    "run_key": "text", "event_id": "text", "run_id": "text", "subject": "text", "repo": "text",
    "errand": "text", "branch": "text",
}  # fmt: skip
RECORD: Final = tuple(name for name in RunRecord._fields if name != "stages")
# A run is stored as `waiting` from the first; by the clock it becomes so when its turn has come.
_STATE = """CASE WHEN r.state = 'waiting' AND r.starts_us > {now} THEN 'scheduled'
      ELSE r.state END"""
_ALL = ", ".join({"state": _STATE}.get(column, f"r.{column}") for column in RECORD)
_CHANGED = ", ".join(f"towline_runs.{column}" for column in RECORD)
_OURS = "towline_runs.run_key = b.run_key AND towline_runs.token = b.token"
_LIVE = "towline_runs.state IN ('waiting', 'running')"
_HELD = {"run_key": "text", "token": "bigint"}
_SEEN = "(b.seen IS NULL OR towline_runs.token = b.seen)"
_TO_BE_OPENED = "s.stage = 'PR' AND s.output <> '{{}}'"

CREATE = Statement(
    "create run",
    NEW,
    f"""
    INSERT INTO towline_runs
      ({", ".join(NEW)}, state, attempt_count, created_us, updated_us, token, starts_us)
    SELECT {", ".join(f"b.{name}" for name in NEW)}, 'waiting', 0, {{now}}, {{now}}, 0,
      (SELECT s.starts_us FROM towline_starts s WHERE s.run_key = b.run_key
       AND s.starts_us > {{now}})
    FROM b WHERE true ON CONFLICT DO NOTHING RETURNING run_key, starts_us - {{now}}
    """,
)
"""Also gives how long it waits for its turn, in microseconds; NULL if it does not."""

FIND = Statement(
    "find run",
    {"run_key": "text", "event_id": "text"},
    f"""
    SELECT {_ALL} FROM b JOIN towline_runs r ON r.run_key = b.run_key OR r.event_id = b.event_id
    ORDER BY CASE WHEN r.run_key = b.run_key THEN 0 ELSE 1 END LIMIT 1
    """,
    writes=False,
)

FILL_IN = Statement(
    "fill in errand",
    {"run_key": "text", "errand": "text", "known": "text"},
    """
    UPDATE towline_runs SET errand = b.errand FROM b
    WHERE towline_runs.run_key = b.run_key AND towline_runs.errand = b.known
      AND towline_runs.state = 'waiting' AND towline_runs.attempt_count = 0
    RETURNING towline_runs.run_key
    """,
)

READ = Statement(
    "read run",
    {"run_key": "text"},
    f"SELECT {_ALL} FROM b JOIN towline_runs r ON r.run_key = b.run_key",
    writes=False,
)

_STAGE: Final = {
    "stage": "text", "attempt": "bigint", "outcome": "text", "input_digest": "text",
    "reason": "text", "output": "text", "log": "text", "started_us": "bigint",
    "took_us": "bigint",
}  # fmt: skip


def _stages(name: str, columns: str, which: str = "true") -> Statement:
    return Statement(
        name,
        {"run_key": "text"},
        f"""
        SELECT s.run_key, {columns} FROM b JOIN towline_run_stages s ON s.run_key = b.run_key
        WHERE {which}
        ORDER BY s.run_key, s.attempt
        """,
        writes=False,
    )


STAGES = _stages("stages of a run", ", ".join(f"s.{name}" for name in _STAGE))
OPENINGS = _stages(
    "what runs were to open", ", ".join(f"s.{name}" for name in _STAGE), _TO_BE_OPENED
)
STAGES_IN_SHORT = _stages(
    "stages in short",
    ", ".join(
        {"output": "'{{}}'", "log": "''"}.get(name, f"s.{name}") for name in _STAGE
    ),
)  # fmt: skip

BEGIN = Statement(
    "begin attempt",
    {"run_key": "text", "most": "bigint", "job": "text", "seen": "bigint"},
    f"""
    UPDATE towline_runs SET state = 'running', attempt_count = attempt_count + 1,
      token = {{epoch}}, last_attempt_us = {{now}}, last_job = b.job, updated_us = {{now}}
    FROM b WHERE towline_runs.run_key = b.run_key AND {_LIVE} AND {_SEEN}
      AND towline_runs.attempt_count < b.most
    RETURNING {_CHANGED}
    """,
)

USE_UP = Statement(
    "use up attempts",
    {"run_key": "text", "most": "bigint", "seen": "bigint"},
    f"""
    UPDATE towline_runs SET state = 'blocked', blocked_reason = 'max_attempts',
      token = {{epoch}}, updated_us = {{now}}
    FROM b WHERE towline_runs.run_key = b.run_key AND {_LIVE} AND {_SEEN}
      AND towline_runs.attempt_count >= b.most
    RETURNING towline_runs.run_key
    """,
)

TOUCH = Statement(
    "touch run",
    _HELD,
    f"""
    UPDATE towline_runs SET updated_us = {{now}} FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

HOLD_SUBJECT = Statement(
    "hold subject",
    {"repo": "text", "subject": "text"},
    """
    UPDATE towline_runs SET updated_us = towline_runs.updated_us FROM b
    WHERE towline_runs.run_id = (
      SELECT min(r.run_id) FROM towline_runs r WHERE r.repo = b.repo AND r.subject = b.subject)
    RETURNING towline_runs.run_key
    """,
)
"""Its oldest run stands for it: who looks at all of them and writes then does so alone."""

WRITE_STAGE = Statement(
    "write stage",
    {"run_key": "text", **_STAGE},
    f"""
    INSERT INTO towline_run_stages (run_key, {", ".join(_STAGE)})
    SELECT b.run_key, {", ".join(f"b.{name}" for name in _STAGE)} FROM b WHERE true
    ON CONFLICT (run_key, stage, attempt) DO UPDATE SET
      {", ".join(f"{name} = excluded.{name}" for name in list(_STAGE)[2:])}
    RETURNING run_key
    """,
)

FINISH = Statement(
    "finish attempt",
    {**_HELD, "state": "text", "blocked_reason": "text", "uncounted": "bigint"},
    f"""
    UPDATE towline_runs SET state = b.state, blocked_reason = b.blocked_reason,
      attempt_count = attempt_count - b.uncounted, updated_us = {{now}} FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

OPENED = Statement(
    "note pull request",
    {**_HELD, "number": "bigint", "url": "text"},
    f"""
    UPDATE towline_runs SET
      last_pr_number = CASE WHEN last_pr_url IS NULL THEN b.number ELSE last_pr_number END,
      last_pr_created_us = coalesce(last_pr_created_us, {{now}}),
      last_pr_url = coalesce(last_pr_url, b.url), updated_us = {{now}}
    FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

UNBLOCK = Statement(
    "unblock run",
    {"run_key": "text", "by": "text"},
    """
    UPDATE towline_runs SET state = 'waiting', attempt_count = 0, blocked_reason = NULL,
      last_attempt_us = NULL, last_job = NULL, unblocked_by = b.by, token = {epoch},
      starts_us = NULL,
      updated_us = {now}
    FROM b WHERE towline_runs.run_key = b.run_key AND towline_runs.state = 'blocked'
    RETURNING towline_runs.run_key
    """,
)

FORGET_STAGES = Statement(
    "forget stages",
    {"run_key": "text"},
    "DELETE FROM towline_run_stages WHERE run_key IN (SELECT b.run_key FROM b) RETURNING stage",
)

BESIDE = Statement(
    "runs beside",
    {"repo": "text", "subject": "text", "but": "text", "most": "bigint"},
    f"""
    SELECT {{now}}, {_ALL} FROM b LEFT JOIN towline_runs r
      ON r.repo = b.repo AND r.subject = b.subject AND r.run_key <> b.but
      AND (r.last_pr_created_us IS NOT NULL OR EXISTS (
        SELECT 1 FROM towline_run_stages s WHERE s.run_key = r.run_key AND {_TO_BE_OPENED}))
    ORDER BY coalesce(r.last_pr_created_us, r.updated_us) DESC LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

STRANDED = Statement(
    "stranded runs",
    {"most": "bigint", "idle_us": "bigint", "dead_us": "bigint"},
    f"""
    SELECT {_ALL} FROM towline_runs r
    WHERE r.state IN ('waiting', 'running') AND r.updated_us <= {{now}} - (SELECT dead_us FROM b)
      AND ((r.updated_us <= {{now}} - (SELECT idle_us FROM b)
            AND coalesce(r.starts_us, 0) <= {{now}} - (SELECT idle_us FROM b)) OR EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.last_job AND j.state || '' = 'dead'))
    ORDER BY r.updated_us LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

FORGET = Statement(
    "forget runs",
    {"most": "bigint", "keep_us": "bigint"},
    """
    DELETE FROM towline_runs WHERE run_key IN (
      SELECT r.run_key FROM towline_runs r
      WHERE r.state IN ('blocked', 'done') AND r.updated_us <= {now} - (SELECT keep_us FROM b)
      ORDER BY r.updated_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING run_key, {now} - updated_us
    """,
)


_IN_STATE: Final = {
    "scheduled": " AND r.state = 'waiting' AND r.starts_us > {now}",
    "waiting": " AND r.state = 'waiting' AND coalesce(r.starts_us, 0) <= {now}",
}


@cache
def listing(repo: bool, state: RunState | None) -> Statement:
    wanted = " AND r.repo = (SELECT repo FROM b)" if repo else ""
    if state is not None:
        wanted += _IN_STATE.get(state, f" AND r.state = '{state}'")
    return Statement(
        "list runs",
        {"repo": "text", "before": "text", "most": "bigint"},
        f"""
        SELECT {_ALL} FROM towline_runs r WHERE r.run_id < (SELECT before FROM b) {wanted}
        ORDER BY r.run_id DESC LIMIT (SELECT most FROM b)
        """,
        writes=False,
    )
