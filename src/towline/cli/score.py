"""`towline score`: how often people did what Towline decided in observe mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towline.cli import progress
from towline.cli.history import Repo, opened_history, repo_named
from towline.cli.pulls import Config, Json, print_json

if TYPE_CHECKING:
    from towline.reconciler.http import ScoreOut

_Hours = Annotated[
    float,
    typer.Option(
        "--window-hours", min=0.1, max=720, help="How long after a decision people may act on it."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("score")(score)


def score(repo: Repo = None, hours: _Hours = 24, config: Config = None, json: Json = False) -> None:
    """Compare what Towline decided in observe mode with what people did afterwards."""
    found = progress.run("Reading the history", _scored(config, repo, hours))
    if json:
        print_json(found.model_dump(mode="json"))
        return
    _show(found)


async def _scored(config: Path | None, repo: str | None, hours: float) -> ScoreOut:
    from towline.config import load
    from towline.reconciler.http import score_out
    from towline.reconciler.observe import score as scored

    async with opened_history(load(config)) as (pulls, _):
        name = await repo_named(pulls, repo)
        return score_out(name, hours, await scored(pulls, window_hours=hours, repo=name))


def _show(found: ScoreOut) -> None:
    from rich.text import Text

    from towline.cli.listing import Column, show_rows

    rows = []
    for rule in found.rules:
        share = "–" if rule.share is None else f"{rule.share:.0%}"
        rows.append([rule.rule, share, str(rule.agreed), str(rule.disagreed), str(rule.open)])
    names = ("rule", "agreement", "agreed", "disagreed", "open")
    show_rows([Column(name) for name in names], [[Text(cell) for cell in row] for row in rows])
    if not rows:
        typer.echo("No decisions to score: set reconciler.observe_only = true first.", err=True)
