"""Alembic's entry: runs the revisions on the connection that `towline.store.migrate` opened."""

from __future__ import annotations

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="towline_version",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
