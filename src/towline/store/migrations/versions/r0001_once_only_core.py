"""The once-only core: idempotency records, leases and their waiters, marks, rates, documents."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

# Names are compared byte by byte; PostgreSQL would otherwise consult the locale at each probe.
_TABLES = """
CREATE TABLE towline_records (
    tenant          {name} NOT NULL,
    key             {name} NOT NULL,
    source          TEXT NOT NULL,
    status          TEXT NOT NULL,
    token           BIGINT NOT NULL,
    holder          TEXT NOT NULL,
    attempts        BIGINT NOT NULL,
    payload_hash    TEXT NOT NULL,
    field_digests   TEXT NOT NULL,
    response        TEXT,
    tombstone       BIGINT NOT NULL,
    run_id          TEXT,
    error           TEXT,
    definitive      BIGINT NOT NULL,
    on_crash        TEXT NOT NULL,
    created_us      BIGINT NOT NULL,
    updated_us      BIGINT NOT NULL,
    lock_expires_us BIGINT NOT NULL,
    expires_us      BIGINT NOT NULL,
    awaited         TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX towline_records_expiry ON towline_records (expires_us);
CREATE TABLE towline_leases (
    name       {name} PRIMARY KEY,
    holder     TEXT NOT NULL,
    address    TEXT NOT NULL,
    token      BIGINT NOT NULL,
    ticket     BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);
CREATE TABLE towline_waiters (
    name       {name} NOT NULL,
    ticket     BIGINT NOT NULL,
    holder     TEXT NOT NULL,
    address    TEXT NOT NULL,
    ttl_us     BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    PRIMARY KEY (name, ticket)
);
CREATE TABLE towline_slots (
    name       {name} NOT NULL,
    slot       BIGINT NOT NULL,
    holder     TEXT NOT NULL,
    token      BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    PRIMARY KEY (name, slot)
);
CREATE TABLE towline_seen (
    key        {name} PRIMARY KEY,
    holder     TEXT NOT NULL,
    expires_us BIGINT NOT NULL
);
CREATE TABLE towline_rates (
    key         {name} PRIMARY KEY,
    arrival_us  BIGINT NOT NULL,
    allowed     BIGINT NOT NULL,
    hits        BIGINT NOT NULL,
    interval_us BIGINT NOT NULL,
    burst_us    BIGINT NOT NULL
);
CREATE TABLE towline_documents (
    name    {name} PRIMARY KEY,
    version BIGINT NOT NULL,
    body    TEXT NOT NULL
);
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _TABLES.format(name=name).split(";"):
        if statement.strip():
            op.execute(statement)
    if postgres:
        op.execute("CREATE SEQUENCE towline_epoch")
    else:
        op.execute("CREATE TABLE towline_epoch (value BIGINT NOT NULL)")
        op.execute("INSERT INTO towline_epoch VALUES (0)")
