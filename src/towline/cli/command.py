"""`towline command`: order something for a pull request, through the same queue as everybody."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towline.cli import progress
from towline.cli.database import check_tables
from towline.cli.pulls import Config, Json, Ref, print_json, ref_of

if TYPE_CHECKING:
    from towline.commands.service import Bridge
    from towline.pulls.store import PullStore

_Command = Annotated[str, typer.Argument(metavar="COMMAND", help="For example /rebuild or /merge.")]


def register(app: typer.Typer) -> None:
    app.command("command")(command)


def command(ref: Ref, order: _Command, config: Config = None, json: Json = False) -> None:
    """Queue a command for a pull request; a running worker carries it out."""
    ordered = progress.run("Queueing the command", _ordered(config, ref, order))
    if json:
        print_json(ordered)
        return
    pull = f"{ordered['repo']}#{ordered['number']}"
    typer.echo(f"{ordered['command']} for {pull} is queued as {ordered['job_id']}")


async def _ordered(config: Path | None, ref: str, order: str) -> dict[str, Any]:
    from towline.app.service import Service
    from towline.config import load

    ref_of(ref)
    service: Any = Service(load(config))
    try:
        await check_tables(service.settings, service.database)
        await service.open()
        return await ordered_at(service.pulls, service.bridge, ref, order)
    finally:
        await service.close()


async def ordered_at(pulls: PullStore, bridge: Bridge, ref: str, order: str) -> dict[str, Any]:
    from towline.pulls.fleet import full_name

    name, number = ref_of(ref)
    repo = await full_name(pulls, name)
    ordered = await bridge.order(repo, number, order, source="admin-api", requested_by=_caller())
    return {
        "job_id": ordered.job_id,
        "command": ordered.command,
        "repo": ordered.repo,
        "number": ordered.number,
    }


def _caller() -> str:
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"
