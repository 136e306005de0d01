"""`towline tune`: how long states really last, and the staleness thresholds that would fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from towline.cli import progress
from towline.cli.history import Repo, Since, opened_history, repo_named, since_us
from towline.cli.pulls import Config, Json, print_json
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.history.tune import Row

_Percentile = Annotated[
    float,
    typer.Option(
        "--percentile",
        min=50,
        max=99.9,
        help="The share of healthy waits, in %, to leave undisturbed.",
    ),
]
_Toml = Annotated[bool, typer.Option("--toml", help="Print a staleness table for towline.toml.")]


class Tuned(NamedTuple):
    rows: list[Row]
    pulls: int
    repo: str | None


def register(app: typer.Typer) -> None:
    app.command("tune")(tune)


def tune(
    percentile: _Percentile = 95,
    since: Since = None,
    repo: Repo = None,
    toml: _Toml = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show how long pull requests stay in each state, and advise staleness thresholds."""
    if toml and json:
        raise Rejected("--toml and --json exclude each other")
    tuned = progress.run("Reading the history", _tuned(percentile, since, repo, config))
    if json:
        states = [row._asdict() for row in tuned.rows]
        print_json(
            {
                "percentile": percentile,
                "repo": tuned.repo,
                "pulls": tuned.pulls,
                "states": states,
            }
        )
    elif toml:
        from towline.history.tune import as_toml

        typer.echo(as_toml(tuned.rows, tuned.repo), nl=False)
    else:
        _show(tuned)


async def _tuned(
    percentile: float, since: str | None, repo: str | None, config: Path | None
) -> Tuned:
    from towline import config as settings
    from towline.app.policy import policy_of
    from towline.history.tune import Waits, observe, rows
    from towline.pulls.lifecycle import State
    from towline.pulls.store import whole_logs

    loaded = settings.load(config)
    policy = policy_of(loaded)
    waits: dict[State, Waits] = {}
    count = 0
    async with opened_history(loaded) as (pulls, now_us):
        name = await repo_named(pulls, repo)
        earliest_us = since_us(since, now_us)
        async for log in whole_logs(pulls, name):
            if log[0].at_us >= earliest_us:
                observe(log, waits)
                count += 1
    thresholds = (policy.of(name) if name else policy.general).thresholds
    made = rows(waits, thresholds, percentile / 100, heal_unlisted=policy.heal_unlisted)
    return Tuned(made, count, name)


def _show(tuned: Tuned) -> None:
    from rich.text import Text

    from towline.cli.listing import Column, show_rows

    names = ("state", "n", "cut short", "p50", "p90", "p99", "threshold", "advice")
    show_rows(
        [Column(name) for name in names] + [Column("why", folds=True)],
        [[Text(cell) for cell in _cells(row)] for row in tuned.rows],
    )
    typer.echo(
        f"From {tuned.pulls} pull requests. n counts waits that ended by themselves; waits that "
        "Towline or a person cut short are in no percentile.",
        err=True,
    )


def _cells(row: Row) -> list[str]:
    from towline.history.explain import spoken

    times = ["–" if one is None else spoken(one) for one in (row.p50, row.p90, row.p99)]
    advice = row.advice if row.advice == "keep" else f"{row.advice} to {spoken(row.seconds)}"
    counts = [str(row.n), str(row.cut_short)]
    return [row.state, *counts, *times, spoken(row.threshold), advice, row.why]
