"""The database of a command that reads it: it is there already, or the command says so.

Only `serve`, `worker`, `keys create` and `db upgrade` make tables. A person who types
`towline prs` in the wrong folder gets one line, and no new database files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.config import Settings
    from towline_once.db.statement import Database
    from towline_once.ports import Clock


class Opened(NamedTuple):
    settings: Settings
    database: Database
    clock: Clock


@asynccontextmanager
async def opened_database(config: Path | Settings | None) -> AsyncIterator[Opened]:
    """The database that the settings name; `Rejected` if it has not the tables of this version."""
    from towline import config as settings
    from towline.db import database_for
    from towline_once.clock import SystemClock

    loaded = config if isinstance(config, settings.Settings) else settings.load(config)
    clock = SystemClock()
    database = database_for(loaded.database_url, clock, loaded.store_timeout_seconds)
    try:
        await check_tables(loaded, database)
        await database.connect()
        yield Opened(loaded, database, clock)
    finally:
        await database.aclose()


async def check_tables(loaded: Settings, database: Database) -> None:
    """Refuse a database that would have to be made or changed before it can be read."""
    from towline.cli.db import without_password

    version, newest = await database.version(), database.newest()
    where = without_password(loaded.database_url)
    if version is None:
        raise Rejected(
            f"{where} has no tables of Towline: run this in the folder of the service, or name "
            "its database with --config FILE or TOWLINE_DATABASE_URL; `towline serve` makes the "
            "tables"
        )
    if version < newest:
        raise Rejected(
            f"{where} has the tables of version {version}, and this Towline reads {newest}: "
            "run `towline db upgrade`"
        )
