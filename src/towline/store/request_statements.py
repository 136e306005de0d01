"""The SQL of submitted requests. Their status is that of their job."""

from __future__ import annotations

from typing import Final

from towline.core.submission import QUEUE_PREFIX
from towline.ports.requests import RequestRecord
from towline.store.sql import Statement

_SUBMITTED: Final = f"r.queue >= '{QUEUE_PREFIX}' AND r.queue < '{QUEUE_PREFIX}~'"

ENTER = Statement(
    "enter request",
    {
        "client": "text", "key": "text", "request_id": "text", "payload_hash": "text",
        "job_id": "text",
    },
    """
    INSERT INTO towline_requests
      (request_id, client, key, payload_hash, job_id, created_us, last_seen_us)
    SELECT b.request_id, b.client, b.key, b.payload_hash, b.job_id, {now}, {now}
    FROM b WHERE true ON CONFLICT DO NOTHING
    RETURNING request_id
    """,
)  # fmt: skip

REPLACE = Statement(
    "replace request",
    {
        "client": "text", "key": "text", "request_id": "text", "payload_hash": "text",
        "job_id": "text", "expired": "text",
    },
    """
    UPDATE towline_requests SET request_id = b.request_id, payload_hash = b.payload_hash,
      job_id = b.job_id, created_us = {now}, last_seen_us = {now}
    FROM b WHERE towline_requests.client = b.client AND towline_requests.key = b.key
      AND towline_requests.key IS NOT NULL AND towline_requests.request_id = b.expired
    RETURNING towline_requests.request_id
    """,
)  # fmt: skip

TOUCH = Statement(
    "touch request",
    {"client": "text", "key": "text"},
    """
    UPDATE towline_requests SET last_seen_us = {now}
    FROM b WHERE towline_requests.client = b.client AND towline_requests.key = b.key
      AND towline_requests.key IS NOT NULL
    RETURNING towline_requests.request_id
    """,
)


def _look_up(octets: str) -> Statement:
    """Bytes of a text are counted differently; a result that is too large is not fetched."""
    return Statement(
        "look up requests",
        {"client": "text", "key": "text", "most_bytes": "bigint"},
        f"""
        SELECT r.client, r.key, {{now}}, r.request_id, r.payload_hash, r.job_id,
          j.state, COALESCE(j.attempts, 0), j.finished_us,
          CASE WHEN {octets} <= b.most_bytes THEN j.result END, {octets},
          j.error, j.sha256, j.hmac
        FROM b JOIN towline_requests r
          ON r.client = b.client AND r.key = b.key AND r.key IS NOT NULL
        LEFT JOIN towline_jobs j ON j.id = r.job_id
        """,
    )


LOOK_UP: Final = {
    "sqlite": _look_up("length(CAST(j.result AS BLOB))"),
    "postgresql": _look_up("octet_length(j.result)"),
}

_OF_REQUEST: Final = (
    "request_id",
    "client",
    "payload_hash",
    "job_id",
    "created_us",
    "last_seen_us",
)
_RECORD: Final = ", ".join(
    f"{'r' if column in _OF_REQUEST else 'j'}.{column}" for column in RequestRecord._fields
)

READ = Statement(
    "read request",
    {"request_id": "text", "client": "text"},
    f"""
    SELECT {_RECORD} FROM b
    JOIN towline_requests r ON r.request_id = b.request_id AND r.client = b.client
    LEFT JOIN towline_jobs j ON j.id = r.job_id
    """,
    writes=False,
)

ATTEMPT = Statement(
    "read attempt",
    {"id": "text"},
    f"""
    SELECT r.token, r.state, r.attempts, r.max_attempts FROM b
    JOIN towline_jobs r ON r.id = b.id AND {_SUBMITTED}
    """,
    writes=False,
)

# A submitted job is touched by nothing else while it runs, so between `updated_us` and the end of
# its lease lies the time that its worker asked for.
RENEW = Statement(
    "renew lease",
    {"id": "text", "token": "bigint", "lease_us": "bigint"},
    f"""
    UPDATE towline_jobs AS r SET updated_us = {{now}}, lease_expires_us =
      {{now}} + COALESCE(b.lease_us, r.lease_expires_us - r.updated_us)
    FROM b WHERE r.id = b.id AND r.token = b.token AND r.state = 'running' AND {_SUBMITTED}
    RETURNING lease_expires_us
    """,
)

LOAD = Statement(
    "load",
    {"most_queued": "bigint", "most_running": "bigint"},
    f"""
    SELECT
      (SELECT count(*) FROM (SELECT 1 FROM towline_jobs r WHERE r.state = 'queued'
        AND {_SUBMITTED} LIMIT (SELECT most_queued FROM b)) AS waiting),
      (SELECT count(*) FROM (SELECT 1 FROM towline_jobs r WHERE r.state = 'running'
        AND {_SUBMITTED} LIMIT (SELECT most_running FROM b)) AS underway)
    """,
    writes=False,
)

SIZE = Statement(
    "count requests", {"unused": "bigint"}, "SELECT count(*) FROM towline_requests", writes=False
)

# Ids grow with time, so their order is that of age. When one expires its job tells, not its place:
# all have to be looked at, a stretch at a time.
STRETCH = Statement(
    "stretch of requests",
    {"after": "text", "most": "bigint"},
    """
    SELECT max(s.request_id), count(*) FROM (
      SELECT r.request_id FROM towline_requests r WHERE r.request_id > (SELECT after FROM b)
      ORDER BY r.request_id LIMIT (SELECT most FROM b)) AS s
    """,
    writes=False,
)

SWEEP = Statement(
    "sweep requests",
    {"after": "text", "until": "text", "completed_us": "bigint", "failed_us": "bigint"},
    """
    DELETE FROM towline_requests WHERE request_id IN (
      SELECT r.request_id FROM towline_requests r
      WHERE r.request_id > (SELECT after FROM b) AND r.request_id <= (SELECT until FROM b)
        AND NOT EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.job_id
        AND (j.finished_us IS NULL OR j.finished_us > {now} -
             CASE j.state WHEN 'done' THEN (SELECT completed_us FROM b)
                          ELSE (SELECT failed_us FROM b) END))
      {skip_locked})
    RETURNING request_id
    """,
)

EVICT = Statement(
    "evict requests",
    {"most": "bigint"},
    """
    DELETE FROM towline_requests WHERE request_id IN (
      SELECT r.request_id FROM towline_requests r
      WHERE NOT EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.job_id AND j.finished_us IS NULL)
      ORDER BY r.request_id LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING request_id
    """,
)
