"""A record that is settled keeps its place in the index of expiry.

PostgreSQL writes an updated row anew, and an entry for it in every index, unless none of its
indexed values has changed and the new row fits beside the old one. So a record stays where its
claim put it if it ends just before that, and `early_us` says by how much; and claims fill two
fifths of a page, so that the results of all of them fit in as well.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.execute("ALTER TABLE towline_records ADD COLUMN early_us BIGINT NOT NULL DEFAULT 0")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE towline_records SET (fillfactor = 40)")
