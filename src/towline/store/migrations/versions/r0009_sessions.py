"""Sessions of the dashboard are rows, and the secret that signs them is no longer here."""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"

_TABLE = """
CREATE TABLE towline_sessions (
    id         {name} NOT NULL PRIMARY KEY,
    digest     TEXT NOT NULL,
    principal  {name} NOT NULL,
    binding    TEXT NOT NULL,
    address    TEXT NOT NULL,
    agent      TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    seen_us    BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    ended_us   BIGINT
);
CREATE INDEX towline_sessions_of ON towline_sessions (principal, created_us);
CREATE INDEX towline_sessions_expiry ON towline_sessions (expires_us);
DELETE FROM towline_documents WHERE name = 'dashboard secret'
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    for statement in _TABLE.format(name=name).split(";"):
        op.execute(statement)
