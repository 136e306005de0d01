"""No table of a service grows for ever: each is known to be bounded, or a chore empties it."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from towline.app.service import Service
from towline.config import Settings

PRUNED: Final[dict[str, dict[str, Any]]] = {
    "towline_deliveries": {"body": b"{}"},
    "towline_jobs": {"state": "done"},
    "towline_requests": {},
    "once_seen": {},
    "once_rates": {},
    "once_leases": {},
    "once_waiters": {"name": "another"},
    "towline_prs": {"state": "MERGED", "last_remediation_us": None},
    "towline_pr_events": {},
    "towline_reopened": {"vulnerability_id": "another"},
    "towline_runs": {"state": "done"},
    "towline_run_stages": {},
    "towline_starts": {},
    "towline_parked": {},
    "towline_sessions": {},
    "towline_ended": {},
}
"""With what makes a row of it old, beside times of long ago."""
BOUNDED: Final = {
    "once_records": "by max_items of who uses them",
    "once_slots": "by the limits of their names",
    "once_documents": "by breakers and marks, of which there is one for each name",
    "towline_repos": "by repositories",
    "towline_schedules": "by the settings",
    "towline_api_keys": "by people",
    "towline_hook_hours": "by hooks: an hour that is recorded makes the oldest go",
    "once_epoch": "one row",
    "once_revisions": "by revisions of the tables",
    "towline_revisions": "by revisions of the tables",
}


def fill(db: sqlite3.Connection) -> None:
    """A row of each, all times long past."""
    for table, special in PRUNED.items():
        columns = {row[1]: row[2] for row in db.execute(f"PRAGMA table_info({table})")}
        plain = {name: 1 if kind == "BIGINT" else "{}" for name, kind in columns.items()}
        values = {**plain, **special}
        places = ",".join("?" * len(values))
        names = ",".join(values)
        db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", list(values.values()))


async def test_every_table_is_bounded_or_emptied_by_a_chore(sqlite_url: str) -> None:
    """A row of years ago is in none of them after each chore had its turn."""
    service = Service(Settings(database_url=sqlite_url))
    await service.open()
    db = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=30)
    try:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        assert tables == set(PRUNED) | set(BOUNDED)
        fill(db)
        db.commit()
        for chore in service._upkeep()._chores:
            if chore.name.startswith(("tidy", "forget")):
                await chore.work()
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in PRUNED}
        assert counts == dict.fromkeys(PRUNED, 0)
    finally:
        db.close()
        await service.close()
