"""The SQL of jobs. Every change of a running job compares its token inside the one UPDATE.

Where rows are named by their ids the state is written `state || ''`: PostgreSQL, which knows
little of a queue that grows and shrinks, would else read a whole partial index to find them.
"""

from __future__ import annotations

from towline.core.dispatch import SLOW
from towline.ports.jobs import OWN_QUEUE, Claimed, EndedState, JobRecord, NewJob
from towline.store.sql import Statement

_NUMBERS = {
    "priority", "delay_us", "max_attempts", "token", "slot", "lease_us",
}  # fmt: skip
_RECORD = ", ".join(f"r.{column}" for column in JobRecord._fields)
_CLAIMED = ", ".join(f"towline_jobs.{column}" for column in Claimed._fields)


def _columns(*names: str) -> dict[str, str]:
    return {name: "bigint" if name in _NUMBERS else "text" for name in names}


ENQUEUE = Statement(
    "enqueue",
    _columns(*NewJob._fields),
    """
    INSERT INTO towline_jobs
      (id, queue, kind, params, repo, subject, priority, state, held, passengers, run_at_us,
       created_us, updated_us, attempts, max_attempts, token, published_us, trace)
    SELECT b.id, b.queue, b.kind, b.params, b.repo, b.subject, b.priority, 'queued', 0, 1,
       {now} + b.delay_us, {now}, {now}, 0, b.max_attempts, 0,
       CASE WHEN b.delay_us > 0 THEN 0 ELSE {now} END, b.trace
    FROM b WHERE true ON CONFLICT (id) DO NOTHING
    RETURNING id
    """,
)

ENQUEUE_SILENTLY = Statement(
    "enqueue silently",
    ENQUEUE.columns,
    ENQUEUE.text.replace("RETURNING id", ""),
    silent=True,
)

# Who picks jobs of a repository looks for its slots when others who did are done: two who took
# the same ones at once would meet in their index, and wait for each other there.
DUE = Statement(
    "due",
    {"queue": "text", "most": "bigint"},
    """
    , due AS (
      SELECT r.id, r.repo, r.kind FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {now}
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {skip_locked}
    ) SELECT due.id, due.repo, due.kind FROM due {in_turn}
    """,
)

_OURS_AND_DUE = f"""
    FROM towline_jobs r
    WHERE r.id IN (SELECT id FROM b) AND r.state || '' = 'queued' AND r.queue || '' = '{OWN_QUEUE}'
      AND r.run_at_us <= {{now}}
    """

DUE_ONE = Statement(
    "due one",
    {"id": "text"},
    f"""
    , due AS (SELECT r.id, r.repo, r.kind {_OURS_AND_DUE} {{skip_locked}})
    SELECT due.id, due.repo, due.kind FROM due {{in_turn}}
    """,
)

# Among those that the statement above did not give: whose row somebody has in hand just now.
BUSY = Statement("busy", {"id": "text"}, f"SELECT r.id {_OURS_AND_DUE}", writes=False)

# A job of no repository needs no slot, and so no other look than this one.
BEGIN_FREE = Statement(
    "begin free",
    _columns("id", "owner", "lease_us"),
    f"""
    UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
      held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us, updated_us = {{now}}
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
      AND towline_jobs.id IN (SELECT r.id {_OURS_AND_DUE} AND r.repo IS NULL {{skip_locked}})
    RETURNING {_CLAIMED}
    """,
)

TAKEN_SLOTS = Statement(
    "taken slots",
    {"repo": "text"},
    """
    SELECT r.repo, r.slot FROM b JOIN towline_jobs r ON r.repo = b.repo
    WHERE r.state = 'running' AND r.slot IS NOT NULL
    """,
)

BEGIN = Statement(
    "begin",
    _columns("id", "slot", "owner", "lease_us"),
    f"""
    UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
      slot = b.slot, held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us,
      updated_us = {{now}}
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
    RETURNING {_CLAIMED}
    """,
)

# Both of the above for jobs that need no slot. If one of those that are due has a repository, none
# is begun: they come back without their columns.
BEGIN_DUE = Statement(
    "begin due",
    {"queue": "text", "most": "bigint", "owner": "text", "lease_us": "bigint"},
    f"""
    , due AS (
      SELECT r.id, r.repo, r.priority, r.run_at_us FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {{now}}
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {{skip_locked}}
    ), begun AS (
      UPDATE towline_jobs SET state = 'running', attempts = attempts + 1, token = {{epoch}},
        slot = NULL, held = 0, owner = b.owner, lease_expires_us = {{now}} + b.lease_us,
        updated_us = {{now}}
      FROM b, due WHERE towline_jobs.id = due.id AND towline_jobs.state || '' = 'queued'
        AND NOT EXISTS (SELECT 1 FROM due AS d WHERE d.repo IS NOT NULL)
      RETURNING {_CLAIMED}
    )
    SELECT begun.* FROM due LEFT JOIN begun ON begun.id = due.id
    ORDER BY due.priority DESC, due.run_at_us, due.id
    """,
)

# Put aside for a while, lest they be looked at again and again; a slot that becomes free calls
# the oldest one back to its place, and the time limit is for a call that was lost.
HOLD = Statement(
    "hold",
    {"id": "text"},
    """
    UPDATE towline_jobs SET held = 1, run_at_us = {now} + 5000000
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' = 'queued'
    RETURNING towline_jobs.id
    """,
)

_SLOW = ", ".join(f"'{kind}'" for kind in sorted(SLOW))
CALL_BACK = Statement(
    "call back",
    {"repo": "text", "slow": "bigint"},
    f"""
    UPDATE towline_jobs SET held = 0, run_at_us = created_us
    WHERE id IN (
      SELECT (SELECT r.id FROM towline_jobs r
              WHERE r.repo = b.repo AND r.state = 'queued' AND r.held = 1
                AND (r.kind IN ({_SLOW})) = (b.slow = 1)
              ORDER BY r.priority DESC, r.id LIMIT 1 {{skip_locked}})
      FROM b)
    AND state || '' = 'queued'
    RETURNING id, queue
    """,
)

SETTLE = Statement(
    "settle job",
    _columns("id", "token", "state", "result", "error", "reason", "delay_us", "sha256", "hmac"),
    """
    UPDATE towline_jobs SET state = b.state, result = b.result, error = b.error,
      reason = b.reason, sha256 = b.sha256, hmac = b.hmac, slot = NULL, owner = NULL,
      lease_expires_us = NULL, run_at_us = {now} + b.delay_us, updated_us = {now},
      published_us = 0,
      finished_us = CASE WHEN b.state = 'queued' THEN NULL ELSE {now} END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.token
    """,
)

SETTLE_COUNTED = Statement(
    "settle jobs, counted",
    SETTLE.columns,
    SETTLE.text.replace("RETURNING towline_jobs.id, towline_jobs.token", ""),
    counts=True,
)

OUTCOMES = Statement(
    "outcomes",
    _columns("id", "token"),
    """
    SELECT r.id, r.token, r.state, r.result, r.error FROM b
    JOIN towline_jobs r ON r.id = b.id AND r.token = b.token
    """,
    writes=False,
)

HEARTBEAT = Statement(
    "heartbeat",
    _columns("id", "token", "lease_us"),
    """
    UPDATE towline_jobs SET lease_expires_us = {now} + b.lease_us
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.lease_expires_us
    """,
)

RELEASE = Statement(
    "release",
    _columns("id", "token"),
    """
    UPDATE towline_jobs SET state = 'queued', attempts = attempts - 1, slot = NULL, owner = NULL,
      lease_expires_us = NULL, run_at_us = {now}, updated_us = {now}, published_us = 0
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running'
    RETURNING towline_jobs.id, towline_jobs.repo, towline_jobs.kind
    """,
)

EXPIRED = Statement(
    "expired",
    {"most": "bigint"},
    """
    SELECT r.id, r.token, r.attempts, r.max_attempts FROM towline_jobs r
    WHERE r.state = 'running' AND r.lease_expires_us <= {now}
    ORDER BY r.lease_expires_us LIMIT (SELECT most FROM b) {skip_locked}
    """,
)

REAP = Statement(
    "reap",
    _columns("id", "token", "state", "reason"),
    """
    UPDATE towline_jobs SET state = b.state, reason = b.reason, slot = NULL, owner = NULL,
      error = CASE WHEN b.state = 'dead' THEN 'its workers died or were cut off' ELSE error END,
      lease_expires_us = NULL, run_at_us = {now}, updated_us = {now}, published_us = 0,
      finished_us = CASE WHEN b.state = 'dead' THEN {now} ELSE NULL END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.token = b.token
      AND towline_jobs.state || '' = 'running' AND towline_jobs.lease_expires_us <= {now}
    RETURNING towline_jobs.id, towline_jobs.kind, towline_jobs.state, towline_jobs.repo
    """,
)

NEXT_DUE = Statement(
    "next due",
    {"queue": "text"},
    """
    SELECT min(r.run_at_us) - {now} FROM b JOIN towline_jobs r ON r.queue = b.queue
    WHERE r.state = 'queued'
    """,
    writes=False,
)

DEPTH = Statement(
    "depth",
    {"prefix": "text"},
    """
    SELECT
      (SELECT count(*) FROM towline_jobs r WHERE r.state = 'queued'
         AND r.queue >= b.prefix AND r.queue < b.prefix || '~'),
      (SELECT count(*) FROM towline_jobs r WHERE r.state = 'running'
         AND r.queue >= b.prefix AND r.queue < b.prefix || '~')
    FROM b
    """,
    writes=False,
)

READ = Statement(
    "read job",
    {"id": "text"},
    f"SELECT {_RECORD} FROM b JOIN towline_jobs r ON r.id = b.id",
    writes=False,
)

LISTING = Statement(
    "list jobs",
    {"state": "text", "before": "text", "most": "bigint"},
    f"""
    SELECT {_RECORD} FROM b JOIN towline_jobs r
    ON (b.state IS NULL OR r.state = b.state) AND (b.before = '' OR r.id < b.before)
    ORDER BY r.id DESC LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

REDELIVER = Statement(
    "redeliver job",
    {"id": "text", "not_before_us": "bigint"},
    """
    UPDATE towline_jobs SET state = 'queued', attempts = 0, error = NULL, reason = NULL,
      result = NULL, sha256 = NULL, hmac = NULL, updated_us = {now}, finished_us = NULL,
      held = 0, published_us = 0,
      run_at_us = CASE WHEN finished_us + b.not_before_us > {now}
                       THEN finished_us + b.not_before_us ELSE {now} END
    FROM b WHERE towline_jobs.id = b.id AND towline_jobs.state || '' IN ('done', 'dead')
    RETURNING towline_jobs.id
    """,
)

UNPUBLISHED = Statement(
    "unpublished",
    {"queue": "text", "most": "bigint", "lost_after_us": "bigint"},
    """
    UPDATE towline_jobs SET published_us = {now} WHERE id IN (
      SELECT r.id FROM towline_jobs r
      WHERE r.queue = (SELECT queue FROM b) AND r.state = 'queued' AND r.run_at_us <= {now}
        AND r.published_us <= {now} - (SELECT lost_after_us FROM b)
      ORDER BY r.priority DESC, r.run_at_us, r.id LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING id
    """,
)


def _prune(state: EndedState) -> Statement:
    """Each from an index of its own: dead jobs, kept for longer, would stand before the done."""
    return Statement(
        f"prune {state} jobs",
        {"most": "bigint", "keep_us": "bigint", "after_us": "bigint"},
        f"""
        DELETE FROM towline_jobs WHERE id IN (
          SELECT r.id FROM towline_jobs r
          WHERE r.state = '{state}' AND r.finished_us >= (SELECT after_us FROM b)
            AND r.finished_us <= {{now}} - (SELECT keep_us FROM b)
          ORDER BY r.finished_us LIMIT (SELECT most FROM b) {{skip_locked}})
        RETURNING finished_us, {{now}}
        """,
    )


PRUNE: dict[EndedState, Statement] = {"done": _prune("done"), "dead": _prune("dead")}
