"""`towline sessions`: list the sessions of the dashboard, and end them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from towline.cli import progress
from towline.cli.pulls import Config, Json, print_json
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.dashboard.session_store import StoredSession

sessions = typer.Typer(help="Sessions of the dashboard.", no_args_is_help=True)

_MOST: Final = 1000
_Ids = Annotated[
    list[str] | None, typer.Argument(help="As `towline sessions list` shows them.", metavar="ID…")
]
_All = Annotated[bool, typer.Option("--all", help="End every session.")]


@sessions.command("list")
def listing(config: Config = None, json: Json = False) -> None:
    """List the sessions of the dashboard, the newest first."""
    found = [_shown(one) for one in progress.run("Reading the sessions", _listed(config))]
    if json:
        print_json(found)
        return
    from towline.cli.sessions_text import show_sessions

    show_sessions(found)
    if not found:
        typer.echo("there are no sessions", err=True)


@sessions.command("revoke")
def revoke(
    ids: _Ids = None, everything: _All = False, config: Config = None, json: Json = False
) -> None:
    """End sessions at once; their browsers have to sign in again."""
    if bool(ids) == everything:
        raise Rejected("name the ids of the sessions to end, or give --all")
    ended = progress.run("Ending the sessions", _ended(config, ids or []))
    if json:
        print_json({"ended": ended})
        return
    typer.echo("\n".join(f"{one} has ended" for one in ended) or "there were no sessions")


async def _listed(config: Path | None) -> list[StoredSession]:
    from towline.cli.database import opened_database
    from towline.dashboard.session_store import SqlSessions

    async with opened_database(config) as opened:
        now = opened.clock.now_us()
        return await SqlSessions(opened.database).listing(None, (2**63 - 1, ""), now, _MOST)


async def _ended(config: Path | None, ids: list[str]) -> list[str]:
    """All of them where none is named; nothing ends if one of the names is wrong."""
    from towline.cli.database import opened_database
    from towline.dashboard.session_store import SqlSessions

    alive = [one.id for one in await _listed(config)]
    unknown = [one for one in ids if one not in alive]
    if unknown:
        raise Rejected(f"there is no session {unknown[0][:50]!a}, or it has ended")
    async with opened_database(config) as opened:
        store, now = SqlSessions(opened.database), opened.clock.now_us()
        return [one for one in dict.fromkeys(ids or alive) if await store.end(one, now)]


def _shown(one: StoredSession) -> dict[str, Any]:
    from towline.cli.keys import iso

    return {
        "id": one.id,
        "key": one.principal,
        "address": one.address,
        "user_agent": one.agent,
        "created_at": iso(one.created_us),
        "last_seen_at": iso(one.seen_us),
        "expires_at": iso(one.expires_us),
    }
