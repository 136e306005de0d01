"""The face: an index that the fleet is searched by, and what became of those that ended.

On SQLite the index holds all that a filter asks for, so that a search reads no record that it does
not show; the expressions are those of `store/dashboard_find.py`. An entry of PostgreSQL's has no
room for a long title. `towline_ended` counts pull requests that are forgotten, by the hour in which
they ended.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"

_SQLITE = """
CREATE INDEX towline_prs_sought ON towline_prs (repo, state, since_us, number,
    (CASE WHEN json_valid(diagnosis) AND state NOT IN ('MERGED', 'CLOSED')
          THEN json_extract(diagnosis, '$.rule') END),
    (lower(substr(title, 1, 300) || ' ' || substr(coalesce(head_ref, ''), 1, 300) || ' '
          || repo || '#' || number)))
"""

_POSTGRES = "CREATE INDEX towline_prs_sought ON towline_prs (repo, state, since_us, number)"

_BOTH = """
CREATE INDEX towline_jobs_dead ON towline_jobs (id) WHERE state = 'dead';
CREATE TABLE towline_ended (
    hour_us BIGINT NOT NULL,
    what    {name} NOT NULL,
    bucket  BIGINT NOT NULL,
    times   BIGINT NOT NULL,
    PRIMARY KEY (hour_us, what, bucket)
)
"""


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    name = 'TEXT COLLATE "C"' if postgres else "TEXT"
    text = f"{_POSTGRES if postgres else _SQLITE};{_BOTH.format(name=name)}"
    for statement in text.split(";"):
        if statement.strip():
            op.execute(statement)
