"""`towline reconcile`: one sweep over the stale pull requests, now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towline.cli import progress
from towline.cli.database import check_tables
from towline.cli.pulls import Config, Json, print_json
from towline_once.errors import Transient

if TYPE_CHECKING:
    from towline.reconciler.sweep import Reconciler

_Dry = Annotated[bool, typer.Option("--dry-run", help="Print the decisions, and change nothing.")]


def register(app: typer.Typer) -> None:
    app.command("reconcile")(reconcile)


def reconcile(dry_run: _Dry = False, config: Config = None, json: Json = False) -> None:
    """Check the stale pull requests at the forge, and start the remediation that each one needs."""
    report = progress.run("Looking at stale pull requests", _swept(config, dry_run))
    show(report, json)


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """What was done is shown also where the sweep ended early, which is a failure."""
    if as_json:
        print_json(report)
    else:
        _show_to_people(report)
    if report["trouble"] is not None:
        raise Transient(f"the sweep ended early: {report['trouble']}")


def _show_to_people(report: Mapping[str, Any]) -> None:
    from towline.cli.pulls_text import show_decisions

    show_decisions(report["decisions"])
    counted = ("stale", "looked", "drifted", "acted", "escalated", "skipped", "failed")
    counts = ", ".join(f"{report[name]} {name}" for name in counted)
    typer.echo(f"{counts}; the breaker is {report['breaker']}", err=True)


async def _swept(config: Path | None, dry_run: bool) -> dict[str, Any]:
    from towline.app.service import Service
    from towline.config import load

    service: Any = Service(load(config))
    try:
        await check_tables(service.settings, service.database)
        await service.open()
        return await swept_by(service.reconciler, dry_run)
    finally:
        await service.close()


async def swept_by(reconciler: Reconciler, dry_run: bool) -> dict[str, Any]:
    from towline.reconciler.http import sweep_out

    report = await reconciler.sweep(dry_run=dry_run)
    return sweep_out(report, dry_run).model_dump(mode="json")
