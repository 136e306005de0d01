"""Fix runs that wait for their turn: the places that they have taken, and when each starts."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"

_STATEMENTS = """
CREATE TABLE towline_starts (
    run_key   {name} PRIMARY KEY,
    starts_us BIGINT NOT NULL
);
CREATE INDEX towline_starts_by_time ON towline_starts (starts_us);
ALTER TABLE towline_runs ADD COLUMN starts_us BIGINT
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _STATEMENTS.format(name=name).split(";"):
        op.execute(statement)
