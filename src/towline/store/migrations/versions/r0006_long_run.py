"""The long run: what deletes old rows finds them at once, and PostgreSQL clears up in time.

Dead jobs are kept for longer than done ones. In one index of both they stood before all that is
to be deleted, so each kind has its own, and the dead are listed by their ids as before. Marks of
what was told are found by their end.

By its defaults PostgreSQL vacuums when a fifth of a table is dead: of a week at ten million events
a day that is more than a day's worth. Claims walk over the dead entries of the queue's index, which
are cleared only when the indexes of all jobs are: so that table is vacuumed after a fixed number,
and its indexes each time, also where few pages have anything dead.
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"

_BOTH = """
DROP INDEX towline_jobs_finished;
CREATE INDEX towline_jobs_done ON towline_jobs (finished_us) WHERE state = 'done';
CREATE INDEX towline_jobs_died ON towline_jobs (finished_us) WHERE state = 'dead';
CREATE INDEX towline_seen_expiry ON towline_seen (expires_us)
"""
_OFTEN = "autovacuum_vacuum_scale_factor = 0.02"
_QUEUE = (
    "autovacuum_vacuum_scale_factor = 0.002, autovacuum_vacuum_threshold = 10000, "
    "vacuum_index_cleanup = on"
)
_POSTGRES = {
    "towline_jobs": _QUEUE,
    "towline_deliveries": _OFTEN,
    "towline_pr_events": _OFTEN,
    "towline_requests": _OFTEN,
    "towline_seen": _OFTEN,
    "towline_records": _OFTEN,
}


def upgrade() -> None:
    for statement in _BOTH.split(";"):
        op.execute(statement)
    if op.get_bind().dialect.name == "postgresql":
        for table, parameters in _POSTGRES.items():
            op.execute(f"ALTER TABLE {table} SET ({parameters})")
