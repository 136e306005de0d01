"""`towline runs`: the fix runs, read from the database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from towline.cli import progress
from towline.cli.database import opened_database
from towline.cli.pulls import Config, Json, print_json
from towline.fix.model import RunState
from towline_once.errors import Rejected

_Repo = Annotated[str | None, typer.Option("--repo", help="Only those of OWNER/NAME.")]
_State = Annotated[
    str | None,
    typer.Option(
        "--state", help="Only those that are scheduled, waiting, running, blocked or done."
    ),
]
_Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most rows to list.")]
_STATES: Final[tuple[RunState, ...]] = get_args(RunState)


def register(app: typer.Typer) -> None:
    app.command("runs")(runs)


def runs(
    repo: _Repo = None,
    state: _State = None,
    limit: _Limit = 50,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the fix runs, the newest first."""
    found = progress.run("Reading the fix runs", _listed(config, repo, state, limit))
    if json:
        print_json({"items": found})
        return
    from towline.cli.runs_text import show_runs

    show_runs(found)
    if not found:
        typer.echo("there are no fix runs", err=True)


async def _listed(
    config: Path | None, repo: str | None, state: str | None, limit: int
) -> list[dict[str, Any]]:
    from towline.fix.http import run_in_list
    from towline.fix.store import RunStore

    known = next((one for one in _STATES if one == (state or "").lower()), None)
    if state is not None and known is None:
        raise Rejected(f"unknown state {state[:50]!a}; allowed: {', '.join(_STATES)}")
    async with opened_database(config) as opened:
        found = await RunStore(opened.database).listing(repo, known, "", limit)
    return [run_in_list(run).model_dump(mode="json") for run in found]
