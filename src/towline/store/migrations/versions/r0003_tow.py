"""The tow: pull requests with the log of what happened to them, and how often one was replaced."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"

_TABLES = """
CREATE TABLE towline_prs (
    repo                {name} NOT NULL,
    number              BIGINT NOT NULL,
    forge               TEXT NOT NULL,
    url                 TEXT,
    title               TEXT NOT NULL,
    author              TEXT,
    head_ref            {name},
    base_ref            TEXT,
    head_sha            {name},
    vulnerability_id    {name},
    state               {name} NOT NULL,
    substatus           TEXT,
    since_us            BIGINT NOT NULL,
    created_us          BIGINT NOT NULL,
    updated_us          BIGINT NOT NULL,
    counts              TEXT NOT NULL,
    lifetime            TEXT NOT NULL,
    path                TEXT NOT NULL,
    facts               TEXT NOT NULL,
    intent              TEXT,
    verify_by_us        BIGINT,
    last_remediation_us BIGINT,
    remediation_action  TEXT,
    diagnosis           TEXT,
    replaces            BIGINT,
    replaced_by         BIGINT,
    expires_us          BIGINT,
    version             BIGINT NOT NULL,
    last_event          BIGINT NOT NULL,
    PRIMARY KEY (repo, number)
);
CREATE INDEX towline_prs_stale ON towline_prs (state, since_us, repo, number);
CREATE INDEX towline_prs_head ON towline_prs (head_sha) WHERE head_sha IS NOT NULL;
CREATE INDEX towline_prs_branch ON towline_prs (repo, head_ref) WHERE expires_us IS NULL;
CREATE INDEX towline_prs_alive_for ON towline_prs (vulnerability_id)
    WHERE vulnerability_id IS NOT NULL AND expires_us IS NULL;
CREATE INDEX towline_prs_unverified ON towline_prs (verify_by_us) WHERE verify_by_us IS NOT NULL;
CREATE INDEX towline_prs_expired ON towline_prs (expires_us) WHERE expires_us IS NOT NULL;
CREATE TABLE towline_pr_events (
    repo       {name} NOT NULL,
    number     BIGINT NOT NULL,
    id         BIGINT NOT NULL,
    key        {name} NOT NULL,
    event_type TEXT NOT NULL,
    source     TEXT NOT NULL,
    at_us      BIGINT NOT NULL,
    payload    TEXT NOT NULL,
    PRIMARY KEY (repo, number, id)
);
CREATE UNIQUE INDEX towline_pr_events_key ON towline_pr_events (repo, number, key);
CREATE TABLE towline_reopened (
    vulnerability_id {name} NOT NULL,
    key              {name} NOT NULL,
    at_us            BIGINT NOT NULL,
    PRIMARY KEY (vulnerability_id, key)
);
CREATE TABLE towline_repos (
    repo  {name} PRIMARY KEY,
    name  {name} NOT NULL,
    forge TEXT NOT NULL
);
CREATE INDEX towline_repos_name ON towline_repos (name);
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _TABLES.format(name=name).split(";"):
        if statement.strip():
            op.execute(statement)
    if postgres:
        op.execute("ALTER TABLE towline_prs SET (autovacuum_vacuum_scale_factor = 0.02)")
