"""The database: whether it answers, which tables it has, its disk and its clock, and its keys."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from towline.config import Settings
from towline.db import REVISIONS
from towline.doctor.findings import (
    Finding,
    PostgresFacts,
    failure,
    judge_clock,
    judge_postgres,
    judge_space,
    judge_tables,
    ok,
    warning,
)
from towline.doctor.reading import Reading, is_postgres, opened, sqlite_file, where_of
from towline_once.db.migrate import newest_of, version_of
from towline_once.db.sqlite_driver import has_wal_reset_bug, version_text
from towline_once.errors import Rejected

_PLACE = "database"
_FACTS = """
SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery(),
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
       current_setting('fsync'), current_setting('synchronous_commit')
"""
_NOW = "SELECT extract(epoch from clock_timestamp())::float8"
_KEYS = "SELECT scopes FROM towline_api_keys WHERE revoked_us IS NULL"


@asynccontextmanager
async def reading_of(settings: Settings, seconds: float) -> AsyncIterator[Reading | None]:
    """None where nothing is there yet, and nothing is to be made."""
    file = None if is_postgres(settings.database_url) else sqlite_file(settings.database_url)
    if not is_postgres(settings.database_url) and (file is None or not file.exists()):
        yield None
        return
    reading = await opened(settings.database_url, seconds)
    try:
        yield reading
    finally:
        await reading.aclose()


async def version_in(reading: Reading) -> str | None:
    tables = set(await reading.tables())
    found: list[str | None] = []
    for one in REVISIONS:
        one.refuse_former(tables)
        there = one.table in tables
        rows = await reading.rows(f"SELECT max(revision) FROM {one.table}") if there else [(None,)]
        found.append(rows[0][0])
    return version_of(found)


async def _look_at_tables(reading: Reading) -> tuple[str | None, Finding]:
    try:
        version = await version_in(reading)
    except Rejected as refusal:
        fix = "name an empty database in database_url (TOWLINE_DATABASE_URL)"
        return None, failure("tables", str(refusal), fix)
    return version, judge_tables("tables", version, newest_of(REVISIONS))


async def look_at_database(settings: Settings, seconds: float) -> list[Finding]:
    if is_postgres(settings.database_url):
        return await _look_at_postgres(settings, seconds)
    return await _look_at_sqlite(settings, seconds)


async def _look_at_postgres(settings: Settings, seconds: float) -> list[Finding]:
    reading = await opened(settings.database_url, seconds)
    try:
        version, tables = await _look_at_tables(reading)
        facts = PostgresFacts(*(await reading.rows(_FACTS))[0])
        sent = time.time()
        theirs = float((await reading.rows(_NOW))[0][0])
        ours = (sent + time.time()) / 2
    finally:
        await reading.aclose()
    where = where_of(settings.database_url)
    return [
        *judge_postgres(_PLACE, where, facts, current=version == newest_of(REVISIONS)),
        tables,
        judge_clock("clock", f"the database at {where}", theirs - ours),
    ]


async def _look_at_sqlite(settings: Settings, seconds: float) -> list[Finding]:
    file = sqlite_file(settings.database_url)
    library = _judge_library()
    if file is None:
        fix = 'set database_url = "sqlite:///towline.db" (TOWLINE_DATABASE_URL)'
        return [warning(_PLACE, "SQLite in memory: everything is lost at the end", fix), library]
    trouble = _trouble_with_folder(file.parent) or _trouble_with_file(file)
    if trouble is not None:
        return [trouble, library]
    space = judge_space("disk", str(file.parent), shutil.disk_usage(file.parent).free)
    async with reading_of(settings, seconds) as reading:
        if reading is None:
            return [
                ok(_PLACE, f"{file} is not there yet; the first start makes it"),
                library,
                space,
            ]
        _, tables = await _look_at_tables(reading)
    size = file.stat().st_size / 1e6
    found = [ok(_PLACE, f"SQLite file {file} can be read and written ({size:.1f} MB)")]
    return [*found, tables, library, space]


def _judge_library() -> Finding:
    version = f"SQLite {version_text()}"
    if has_wal_reset_bug():
        fix = (
            "let nothing but Towline write to the file, or use a Python with SQLite 3.51.3 or newer"
        )
        return warning("sqlite", f"{version} can corrupt a file that others write to as well", fix)
    return ok("sqlite", f"{version}, without known faults")


def _trouble_with_folder(folder: Path) -> Finding | None:
    if not folder.is_dir():
        return failure(_PLACE, f"the folder {folder} does not exist", f"mkdir -p {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        found = f"the folder {folder} cannot be written to; SQLite keeps its log beside the file"
        return failure(_PLACE, found, f"chown {_whoami()} {folder}, or chmod u+wx {folder}")
    return None


def _trouble_with_file(file: Path) -> Finding | None:
    if not file.exists():
        return None
    if not file.is_file():
        fix = "name a file in database_url (TOWLINE_DATABASE_URL)"
        return failure(_PLACE, f"{file} is not a file", fix)
    if not os.access(file, os.R_OK | os.W_OK):
        return failure(_PLACE, f"{file} cannot be read and written", f"chown {_whoami()} {file}*")
    return None


def _whoami() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "…"


async def look_at_keys(settings: Settings, seconds: float) -> list[Finding]:
    """Whether anybody can sign in."""
    held: list[set[str]] = [set(key.scopes) for key in settings.api_keys.values()]
    async with reading_of(settings, seconds) as reading:
        if reading is not None and "towline_api_keys" in await reading.tables():
            held += [set(_words(row)) for row in await reading.rows(_KEYS)]
    if not held:
        fix = "towline keys create --scope admin"
        return [
            warning("keys", "there is no API key yet; on loopback the first start makes one", fix)
        ]
    admins = sum("admin" in scopes for scopes in held)
    if not admins:
        fix = "towline keys create --scope admin"
        return [warning("keys", f"{len(held)} API keys, none with the scope admin", fix)]
    return [ok("keys", f"{len(held)} API keys, {admins} with the scope admin")]


def _words(row: Sequence[Any]) -> list[str]:
    return str(row[0]).replace(",", " ").split()
