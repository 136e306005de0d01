"""The fix pipeline: one run for each failure event, with every stage that ended."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

_TABLES = """
CREATE TABLE towline_runs (
    run_key            {name} PRIMARY KEY,
    event_id           {name} NOT NULL,
    run_id             {name} NOT NULL,
    subject            {name} NOT NULL,
    repo               {name} NOT NULL,
    errand             TEXT NOT NULL,
    state              {name} NOT NULL,
    attempt_count      BIGINT NOT NULL,
    blocked_reason     TEXT,
    branch             TEXT NOT NULL,
    last_pr_url        TEXT,
    last_pr_number     BIGINT,
    last_pr_created_us BIGINT,
    last_attempt_us    BIGINT,
    last_job           TEXT,
    unblocked_by       TEXT,
    created_us         BIGINT NOT NULL,
    updated_us         BIGINT NOT NULL,
    token              BIGINT NOT NULL
);
CREATE UNIQUE INDEX towline_runs_event ON towline_runs (event_id);
CREATE UNIQUE INDEX towline_runs_newest ON towline_runs (run_id);
CREATE INDEX towline_runs_of_repo ON towline_runs (repo, run_id);
CREATE INDEX towline_runs_by_state ON towline_runs (state, run_id);
CREATE INDEX towline_runs_about ON towline_runs (subject, last_pr_created_us)
    WHERE last_pr_created_us IS NOT NULL;
CREATE INDEX towline_runs_ended ON towline_runs (updated_us)
    WHERE state IN ('blocked', 'done');
CREATE INDEX towline_runs_live ON towline_runs (updated_us)
    WHERE state IN ('waiting', 'running');
CREATE TABLE towline_run_stages (
    run_key      {name} NOT NULL,
    stage        {name} NOT NULL,
    attempt      BIGINT NOT NULL,
    outcome      TEXT NOT NULL,
    input_digest TEXT NOT NULL,
    reason       TEXT NOT NULL,
    output       TEXT NOT NULL,
    log          TEXT NOT NULL,
    started_us   BIGINT NOT NULL,
    took_us      BIGINT NOT NULL,
    PRIMARY KEY (run_key, stage, attempt)
)
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _TABLES.format(name=name).split(";"):
        if statement.strip():
            op.execute(statement)
