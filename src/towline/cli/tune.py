"""`towline tune`: staleness thresholds from how long states really last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from towline.cli import waiting
from towline.cli.history import Repo, Since, opened_history, repo_named, since_us
from towline.cli.prs import Config, Json, print_json
from towline.errors import Rejected

if TYPE_CHECKING:
    from towline.core.tune import Proposal

_Percentile = Annotated[
    float,
    typer.Option(
        "--percentile", min=50, max=99.9, help="Of waits that are to end before they are disturbed."
    ),
]
_Toml = Annotated[bool, typer.Option("--toml", help="Print a staleness table for towline.toml.")]


class Tuned(NamedTuple):
    proposals: list[Proposal]
    pulls: int
    repo: str | None
    heal_unlisted: bool


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
    """Propose staleness thresholds from how long the world takes to move on by itself."""
    if toml and json:
        raise Rejected("--toml and --json exclude each other")
    tuned = waiting.run("Reading the history", _tuned(percentile, since, repo, config))
    if json:
        print_json(_as_json(tuned, percentile))
    elif toml:
        from towline.core.tune import as_toml

        healed = tuned.heal_unlisted
        typer.echo(as_toml(tuned.proposals, tuned.repo, heal_unlisted=healed), nl=False)
    else:
        _show(tuned, percentile)


async def _tuned(
    percentile: float, since: str | None, repo: str | None, config: Path | None
) -> Tuned:
    from towline import settings
    from towline.core.tune import proposals
    from towline.flow.backtest import Wanted, waits
    from towline.settings_policy import policy_of

    loaded = settings.load(config)
    policy = policy_of(loaded)
    async with opened_history(loaded) as (pulls, now_us):
        name = await repo_named(pulls, repo)
        tally, count = await waits(pulls, Wanted(name, since_us(since, now_us)), now_us)
    thresholds = (policy.of(name) if name else policy.general).thresholds
    made = proposals(tally, thresholds, percentile / 100)
    return Tuned(made, count, name, policy.heal_unlisted)


def _as_json(tuned: Tuned, percentile: float) -> dict[str, Any]:
    return {
        "percentile": percentile,
        "repo": tuned.repo,
        "pulls": tuned.pulls,
        "proposals": [
            {**one._asdict(), "check": one.check or None, "why": one.why or None}
            for one in tuned.proposals
        ],
    }


def _show(tuned: Tuned, percentile: float) -> None:
    from rich.table import Table
    from rich.text import Text

    from towline.cli.backtest_texts import console

    out = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("state, and its checks", "now", f"p{percentile:g}", "proposed"):
        table.add_column(name, justify="left" if not table.columns else "right", no_wrap=True)
    for name in ("rests on", "what it would have meant"):
        table.add_column(name, overflow="fold")
    for one in tuned.proposals:
        cells = _row(one, heal_unlisted=tuned.heal_unlisted)
        table.add_row(*(Text(cell, style="dim" if one.check else "") for cell in cells))
    out.print(table)
    out.print()
    for line in _notes(tuned, percentile):
        out.print(Text(line, style="dim"), soft_wrap=True)


def _row(one: Proposal, *, heal_unlisted: bool) -> list[str]:
    name = f"  {one.check}" if one.check else one.state
    proposed = "–" if one.seconds is None else _time(one.seconds)
    if one.check and one.seconds is not None:
        proposed = ""
    cut = one.helped + one.cut
    rests = f"{one.moved} ended, {cut} cut short"
    if one.lost:
        rests += f", {one.lost} not told"
    now = "" if one.check else _time(one.current)
    meaning = one.why or _meaning(one, heal_unlisted=heal_unlisted)
    return [name, now, _time(one.measured), proposed, rests, meaning]


def _meaning(one: Proposal, *, heal_unlisted: bool) -> str:
    from towline.core.tune import TO_A_PERSON

    if one.check:
        return ""
    disturbed = f"{one.disturbed_then} healthy waits disturbed (now {one.disturbed_now})"
    if one.state in TO_A_PERSON and one.disturbed_then and not heal_unlisted:
        disturbed += ", each given to a person unless heal_unlisted is set"
    if not one.helped or not one.found_earlier:
        return disturbed
    when = "earlier" if one.found_earlier > 0 else "later"
    return f"{disturbed}; {one.helped} stuck found {_time(abs(one.found_earlier))} {when}"


def _notes(tuned: Tuned, percentile: float) -> list[str]:
    of = f"From {tuned.pulls} pull requests. p{percentile:g}: within that time {percentile:g} %"
    cut = "Cut short: by our own remedies, by people, or still going on: they lasted at least so"
    return [
        f"{of} of the waits end that end by themselves.",
        f"{cut} long (Kaplan–Meier). Not told: the webhook of their end was lost.",
        "Thresholds are per state; checks show which of them makes a state long.",
        "What would only call people sooner is left out of --toml, with a remark.",
        "Try it: towline tune --toml > other.toml; towline backtest --policy other.toml",
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 600:
        whole, rest = divmod(round(seconds), 60)
        return (
            f"{whole} min {rest} s" if whole and rest else f"{whole} min" if whole else f"{rest} s"
        )
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
