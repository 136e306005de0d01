"""The database of a play: who hears of a commit, and what the play before leaves behind."""

from __future__ import annotations

import importlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import towline
import towline_once
from towline.db import REVISIONS
from towline_once.db.statement import Statement
from towline_sim.proof.loop import SimLoop
from towline_sim.proof.run_seed import play
from towline_sim.proof.store import SimServer, _connected, _empty_database, _tables_of

WRITES: Final = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}
ADD: Final = Statement(
    "add", {"name": "text"}, "INSERT INTO once_leases SELECT b.name, '', '', 1, 0, 0 FROM b"
)
NONE: Final = Statement("none", {"name": "text"}, "DELETE FROM once_leases WHERE 1 = 0")
OTHER: Final = Statement("other", {"by": "bigint"}, "UPDATE once_epoch SET value = value + 1")


def statements() -> list[Statement]:
    """All that the product has, each text once: SQLite looks at a text when it is new."""
    named = [
        one
        for package in (towline, towline_once)
        for module in modules_of(package)
        for one in vars(module).values()
        if isinstance(one, Statement)
    ]
    return list({one.for_sqlite(1): one for one in named}.values())


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    """The modules with statements, whichever room they stand in."""
    root = Path(package.__path__[0])
    for file in sorted(root.rglob("*.py")):
        if re.search(r"= (?:Statement|_[a-z]+)\(", file.read_text(encoding="utf-8")):
            parts = file.relative_to(root.parent).with_suffix("").parts
            yield importlib.import_module(".".join(parts))


def test_it_is_known_which_tables_a_statement_writes_to() -> None:
    """As SQLite itself sees it: a watcher that is not told would miss what went wrong."""
    db = _connected()
    for one in REVISIONS:
        one.upgrade_sqlite(db)
    written: set[str] = set()

    def note(action: int, table: str | None, *_: Any) -> int:
        if action in WRITES and table is not None and table.startswith(("towline_", "once_")):
            written.add(table)
        return int(sqlite3.SQLITE_OK)

    db.set_authorizer(note)
    seen = 0
    for statement in statements():
        written.clear()
        nothing = [None] * (1 + len(statement.columns))
        try:
            db.execute(f"EXPLAIN {statement.for_sqlite(1)}", nothing).fetchall()
        except sqlite3.OperationalError:
            continue  # it is for PostgreSQL alone
        assert _tables_of(statement.text) == written, statement.name
        assert statement.writes or not written, statement.name
        seen += 1
    assert seen > 80


class Watch:
    def __init__(self, tables: frozenset[str] | None = None) -> None:
        self.heard: list[Sequence[str]] = []
        self.moments = 0
        if tables is not None:
            self.tables = tables

    def time_passed(self) -> None:
        self.moments += 1

    def committed(self, db: Any, names: Sequence[str]) -> None:
        self.heard.append(names)


@pytest.fixture
def server() -> Iterator[SimServer]:
    made = SimServer(SimLoop(1))  # type: ignore[abstract]
    yield made
    made.close()


def test_a_watcher_hears_of_what_changed_in_its_tables(server: SimServer) -> None:
    """One that names none hears of each commit, and time passes for all of them."""
    some, every = Watch(frozenset({"once_leases"})), Watch()
    server.watchers += [some, every]
    for steps in ([ADD], [NONE], [OTHER], [OTHER, ADD]):
        rows = [(len(every.heard),)]
        server.transact(lambda run, steps=steps, rows=rows: [run(one, rows) for one in steps])  # type: ignore[misc]
    assert some.heard == [["add"], ["other", "add"]]
    assert every.heard == [["add"], ["none"], ["other"], ["other", "add"]]
    assert some.moments == every.moments == server.commits == 4


def test_what_fails_half_way_leaves_nothing(server: SimServer) -> None:
    """Nobody hears of it either."""
    watch = Watch()
    server.watchers.append(watch)

    def twice(run: Any) -> None:
        run(ADD, [("one",)])
        run(ADD, [("one",)])

    with pytest.raises(sqlite3.IntegrityError):
        server.transact(twice)
    assert server.db.execute("SELECT count(*) FROM once_leases").fetchone() == (0,)
    assert (watch.heard, server.commits) == ([], 0)


def test_a_play_finds_its_database_as_if_it_were_new() -> None:
    """Whatever the plays before have written."""
    new = _connected()
    for one in REVISIONS:
        one.upgrade_sqlite(new)
    for seed in range(7):
        play(seed)
    used = _empty_database()
    assert everything_in(used) == everything_in(new)
    assert used.in_transaction is False


def everything_in(db: Any) -> dict[str, Any]:
    tables = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    rows = {
        name: db.execute(f"SELECT * FROM {name}").fetchall()
        for name, sql in tables
        if (sql or "").startswith("CREATE TABLE")
    }
    return {"schema": tables, **rows}
