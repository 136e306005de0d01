"""The command `once`: makes the library's tables, or prints the SQL that does.

A program makes its tables by itself when it first connects. Where its role may not create tables,
a person who may runs `once db upgrade URL`, or reviews and runs what `once db sql URL` prints.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from towline_once.backends import database_for
from towline_once.db.migrate import ONCE
from towline_once.errors import TowlineError


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 after one line on standard error."""
    chosen = _parser().parse_args(arguments)
    try:
        print(asyncio.run(chosen.run(chosen.url)))  # noqa: T201 - what the command is for
    except TowlineError as error:
        print(f"once: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="once", description="The tables of towline-once.")
    database = parser.add_subparsers(required=True).add_parser("db", help="the database's tables")
    commands = database.add_subparsers(required=True)
    for name, run, text in (
        ("upgrade", upgrade, "make the tables, or bring them up to date"),
        ("sql", sql, "print the SQL that `upgrade` would run; change nothing"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("url", metavar="URL", help="sqlite:///FILE or postgresql://…")
        command.set_defaults(run=run)
    return parser


async def upgrade(url: str) -> str:
    database = database_for(url)
    try:
        await database.connect()
    finally:
        await database.aclose()
    return f"the tables are up to date: version {ONCE.newest()}"


async def sql(url: str) -> str:
    """One transaction, with the note that the revision was applied."""
    database = database_for(url)
    try:
        found = await database.version()
    finally:
        await database.aclose()
    if ONCE.is_current(found):
        return f"-- Nothing to do: the tables have version {found}."
    return f"BEGIN;\n{''.join(ONCE.pending(found, database.dialect))}COMMIT;"
