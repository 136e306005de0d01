"""Events that came before their pull request was recorded, or before its head moved to them."""

from __future__ import annotations

from alembic import op

revision = "0011"
down_revision = "0010"

# `number` is 0 and `repo` is empty where the event does not say.
_STATEMENTS = """
CREATE TABLE towline_parked (
    delivery_key {name} NOT NULL,
    place        BIGINT NOT NULL,
    number       BIGINT NOT NULL,
    repo         {name} NOT NULL,
    head_sha     {name},
    delivery_id  {name} NOT NULL,
    source       {name} NOT NULL,
    kind         {name} NOT NULL,
    event        TEXT   NOT NULL,
    at_us        BIGINT NOT NULL,
    received_us  BIGINT NOT NULL,
    parked_us    BIGINT NOT NULL,
    PRIMARY KEY (delivery_key, place, number)
);
CREATE INDEX towline_parked_by_pull ON towline_parked (repo, number);
CREATE INDEX towline_parked_by_head ON towline_parked (head_sha);
CREATE INDEX towline_parked_by_time ON towline_parked (parked_us)
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _STATEMENTS.format(name=name).split(";"):
        op.execute(statement)
    if postgres:
        op.execute("ALTER TABLE towline_parked SET (autovacuum_vacuum_scale_factor = 0.02)")
