"""The front door: deliveries, jobs, requests of the submit API, schedules, API keys."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"

_TABLES = """
CREATE TABLE towline_jobs (
    id               {name} PRIMARY KEY,
    queue            {name} NOT NULL,
    kind             TEXT NOT NULL,
    repo             {name},
    subject          {name},
    priority         BIGINT NOT NULL,
    state            TEXT NOT NULL,
    slot             BIGINT,
    held             BIGINT NOT NULL,
    passengers       BIGINT NOT NULL,
    run_at_us        BIGINT NOT NULL,
    created_us       BIGINT NOT NULL,
    updated_us       BIGINT NOT NULL,
    finished_us      BIGINT,
    attempts         BIGINT NOT NULL,
    max_attempts     BIGINT NOT NULL,
    owner            TEXT,
    token            BIGINT NOT NULL,
    lease_expires_us BIGINT,
    published_us     BIGINT NOT NULL,
    trace            TEXT,
    params           TEXT,
    result           TEXT,
    error            TEXT,
    reason           TEXT,
    sha256           TEXT,
    hmac             TEXT
);
CREATE INDEX towline_jobs_due ON towline_jobs (queue, priority DESC, run_at_us, id)
    WHERE state = 'queued';
CREATE INDEX towline_jobs_subject ON towline_jobs (subject)
    WHERE state = 'queued' AND attempts = 0 AND subject IS NOT NULL;
CREATE INDEX towline_jobs_held ON towline_jobs (repo, priority DESC, id)
    WHERE state = 'queued' AND held = 1;
CREATE UNIQUE INDEX towline_jobs_slots ON towline_jobs (repo, slot)
    WHERE state = 'running' AND slot IS NOT NULL;
CREATE INDEX towline_jobs_leases ON towline_jobs (lease_expires_us) WHERE state = 'running';
CREATE INDEX towline_jobs_finished ON towline_jobs (finished_us) WHERE finished_us IS NOT NULL;
CREATE TABLE towline_deliveries (
    delivery_id  {name} NOT NULL,
    key          {name} NOT NULL,
    source       TEXT NOT NULL,
    event_name   TEXT NOT NULL,
    repo         TEXT,
    body         {bytes} NOT NULL,
    job_id       {name} NOT NULL,
    throttled    BIGINT NOT NULL,
    copies       BIGINT NOT NULL,
    received_us  BIGINT NOT NULL,
    last_seen_us BIGINT NOT NULL,
    PRIMARY KEY (delivery_id, key)
);
CREATE INDEX towline_deliveries_job ON towline_deliveries (job_id);
CREATE INDEX towline_deliveries_received ON towline_deliveries (received_us);
CREATE TABLE towline_requests (
    request_id   {name} PRIMARY KEY,
    client       {name} NOT NULL,
    key          {name},
    payload_hash TEXT NOT NULL,
    job_id       {name} NOT NULL,
    created_us   BIGINT NOT NULL,
    last_seen_us BIGINT NOT NULL
);
CREATE UNIQUE INDEX towline_requests_key ON towline_requests (client, key) WHERE key IS NOT NULL;
CREATE INDEX towline_requests_job ON towline_requests (job_id);
CREATE TABLE towline_schedules (
    name        {name} PRIMARY KEY,
    cron        TEXT NOT NULL,
    next_run_us BIGINT NOT NULL
);
CREATE TABLE towline_api_keys (
    prefix     {name} PRIMARY KEY,
    digest     TEXT NOT NULL,
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    revoked_us BIGINT
);
CREATE TABLE towline_hook_hours (
    hook      {name} NOT NULL,
    hour_us   BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    received  BIGINT NOT NULL,
    recovered BIGINT NOT NULL,
    PRIMARY KEY (hook, hour_us)
);
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _TABLES.format(name=name, bytes="BYTEA" if postgres else "BLOB").split(";"):
        if statement.strip():
            op.execute(statement)
    if postgres:
        # Bodies are compressed before they come here.
        op.execute("ALTER TABLE towline_deliveries ALTER COLUMN body SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE towline_jobs SET (autovacuum_vacuum_scale_factor = 0.02)")
