"""Deliveries stand in their index in the order of time, where their ids hold one.

The expression is that of `store/delivery_order.py`. SQLite cannot take a primary key away, so there
the table is written anew.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"

_INDEX = """
CREATE UNIQUE INDEX towline_deliveries_known ON towline_deliveries ((CASE
    WHEN length(delivery_id) = 36 AND substr(delivery_id, 15, 1) = '1'
    THEN substr(delivery_id, 15, 4) || substr(delivery_id, 10, 4) || substr(delivery_id, 1, 9)
         || substr(delivery_id, 20) ELSE delivery_id END), key)
"""
_SQLITE = """
CREATE TABLE towline_deliveries_ordered (
    delivery_id  TEXT NOT NULL,
    key          TEXT NOT NULL,
    source       TEXT NOT NULL,
    event_name   TEXT NOT NULL,
    repo         TEXT,
    body         BLOB NOT NULL,
    job_id       TEXT NOT NULL,
    throttled    BIGINT NOT NULL,
    copies       BIGINT NOT NULL,
    received_us  BIGINT NOT NULL,
    last_seen_us BIGINT NOT NULL
);
INSERT INTO towline_deliveries_ordered
SELECT delivery_id, key, source, event_name, repo, body, job_id, throttled, copies, received_us,
    last_seen_us FROM towline_deliveries;
DROP TABLE towline_deliveries;
ALTER TABLE towline_deliveries_ordered RENAME TO towline_deliveries;
CREATE INDEX towline_deliveries_job ON towline_deliveries (job_id);
CREATE INDEX towline_deliveries_received ON towline_deliveries (received_us)
"""
_POSTGRES = "ALTER TABLE towline_deliveries DROP CONSTRAINT towline_deliveries_pkey"


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    for statement in f"{_POSTGRES if postgres else _SQLITE};{_INDEX}".split(";"):
        op.execute(statement)
