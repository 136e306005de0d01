"""`towline prs`, `pr` and `explain`: the fleet and its pull requests, read from the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from towline.cli import progress
from towline.cli.database import opened_database
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.cli.pulls_text import Told
    from towline.pulls.policy import TowPolicy
    from towline.pulls.store import PullStore
    from towline.reconciler.status import PullStatus

Config = Annotated[
    Path | None, typer.Option("--config", help="The settings file; towline.toml if not given.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Ref = Annotated[str, typer.Argument(metavar="OWNER/NAME#N", help="The pull request.")]
_Stale = Annotated[bool, typer.Option("--stale", help="Only those that are stale.")]
_Repo = Annotated[str | None, typer.Option("--repo", help="Only those of OWNER/NAME.")]
_State = Annotated[str | None, typer.Option("--state", help="Only those in this state.")]
_All = Annotated[bool, typer.Option("--all", help="Also those that are merged or closed.")]
_Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="The most rows to list.")]


def register(app: typer.Typer) -> None:
    app.command("prs")(fleet)
    app.command("pr")(pull)
    app.command("explain")(explain)


def fleet(
    stale: _Stale = False,
    repo: _Repo = None,
    state: _State = None,
    everything: _All = False,
    limit: _Limit = 100,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the pull requests under tow: first those that need a person, then the stale ones."""
    wanted = _Choice(stale, repo, state, everything, limit)
    found = progress.run("Reading the fleet", _fleet(config, wanted))
    if json:
        print_json(found)
        return
    from towline.cli.pulls_text import show_fleet

    show_fleet(found)


def pull(ref: Ref, config: Config = None, json: Json = False) -> None:
    """Show where a pull request stands, its budgets and its log."""
    status = progress.run("Reading the pull request", _status(config, ref))
    if json:
        print_json(status.model_dump(mode="json"))
        return
    from towline.cli.pulls_text import show_pull

    show_pull(status)


def explain(ref: Ref, config: Config = None, json: Json = False) -> None:
    """Say why each decision on a pull request was taken, and what comes next."""
    told = progress.run("Reading the pull request", _told(config, ref))
    from towline.cli.pulls_text import explained, show_explanation

    if json:
        print_json(explained(told))
        return
    show_explanation(told)


def print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value).decode())


def ref_of(text: str) -> tuple[str, int]:
    """The repository, maybe by its bare name, and the number."""
    from towline.pulls.http_models import parsed_ref

    ref = parsed_ref(text)
    if ref is None:
        raise Rejected(f"a pull request is written OWNER/NAME#NUMBER, not {text[:100]!a}")
    return ref


class _Choice(NamedTuple):
    stale: bool
    repo: str | None
    state: str | None
    everything: bool
    limit: int


class _Opened(NamedTuple):
    pulls: PullStore
    policy: TowPolicy
    now_us: int
    every_seconds: float


@asynccontextmanager
async def _opened(config: Path | None) -> AsyncIterator[_Opened]:
    from towline.app.policy import policy_of
    from towline.pulls.store import PullStore

    async with opened_database(config) as (loaded, database, clock):
        every = loaded.reconciler.every_seconds
        yield _Opened(PullStore(database), policy_of(loaded), clock.now_us(), every)


async def _fleet(config: Path | None, choice: _Choice) -> dict[str, Any]:
    from towline.pulls.fleet import Fleet, Wanted
    from towline.pulls.http_models import pull_out
    from towline.pulls.lifecycle import STATES

    given = choice.state
    known = next((one for one in STATES if one == (given or "").upper()), None)
    if given is not None and known is None:
        raise Rejected(f"unknown state {given[:50]!a}; allowed: {', '.join(STATES)}")
    async with _opened(config) as opened:
        reader = Fleet(opened.pulls, opened.policy, opened.now_us)
        wanted = Wanted(choice.repo, known, choice.stale or None)
        found = await reader.by_urgency(wanted, choice.limit, ended=choice.everything)
        items = [
            pull_out(one, opened.policy.of(one.ref.repo), opened.now_us).model_dump(mode="json")
            for one in found.records
        ]
        counts = dict(await opened.pulls.census())
    return {"items": items, "next": found.next, "counts": counts}


async def _status(config: Path | None, text: str) -> PullStatus:
    return (await _told(config, text)).status


async def _told(config: Path | None, text: str) -> Told:
    from towline.cli.pulls_text import Told
    from towline.history.explain import notes_on, when_next
    from towline.pulls.fleet import full_name, story_of
    from towline.reconciler.status import pull_status

    name, number = ref_of(text)
    async with _opened(config) as opened:
        repo = await full_name(opened.pulls, name)
        record = await opened.pulls.read(repo, number)
        if record is None:
            raise Rejected(f"{repo}#{number} is not towed, or ended long ago")
        story = await story_of(opened.pulls, record)
    policy = opened.policy.of(repo)
    patience = policy.thresholds.get(record.state)
    since, now = record.since_us / 1e6, opened.now_us / 1e6
    return Told(
        pull_status(record, opened.policy, opened.now_us, story),
        notes_on(story.events, policy),
        when_next(record.state, since, now, patience, opened.every_seconds),
    )
