-- {key} is text that is looked up. PostgreSQL compares it byte by byte; without that it would
-- consult the locale at each comparison. {bytes} is binary data.

-- A completed record keeps its place in the index of expiry if it ends just before that, and
-- `early_us` says by how much: PostgreSQL then writes no entry in any index.
CREATE TABLE once_records (
    tenant          {key} NOT NULL,
    key             {key} NOT NULL,
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
    early_us        BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, key)
);
CREATE INDEX once_records_expiry ON once_records (expires_us);

CREATE TABLE once_leases (
    name       {key} PRIMARY KEY,
    holder     TEXT NOT NULL,
    address    TEXT NOT NULL,
    token      BIGINT NOT NULL,
    ticket     BIGINT NOT NULL,
    expires_us BIGINT NOT NULL
);

CREATE TABLE once_waiters (
    name       {key} NOT NULL,
    ticket     BIGINT NOT NULL,
    holder     TEXT NOT NULL,
    address    TEXT NOT NULL,
    ttl_us     BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    PRIMARY KEY (name, ticket)
);

CREATE TABLE once_slots (
    name       {key} NOT NULL,
    slot       BIGINT NOT NULL,
    holder     TEXT NOT NULL,
    token      BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    PRIMARY KEY (name, slot)
);

CREATE TABLE once_seen (
    key        {key} PRIMARY KEY,
    holder     TEXT NOT NULL,
    expires_us BIGINT NOT NULL
);
CREATE INDEX once_seen_expiry ON once_seen (expires_us);

CREATE TABLE once_rates (
    key         {key} PRIMARY KEY,
    arrival_us  BIGINT NOT NULL,
    allowed     BIGINT NOT NULL,
    hits        BIGINT NOT NULL,
    interval_us BIGINT NOT NULL,
    burst_us    BIGINT NOT NULL
);

CREATE TABLE once_documents (
    name    {key} PRIMARY KEY,
    version BIGINT NOT NULL,
    body    TEXT NOT NULL
);
