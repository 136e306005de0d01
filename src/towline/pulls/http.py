"""Pull requests under tow: the fleet, the stale ones, and what their routes have in common."""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import APIRouter

from towline.http.access import Reader
from towline.http.problem_docs import documented
from towline.http.problems import problem_of
from towline.inbox.access import TheControl
from towline.pulls.access import ThePulls
from towline.pulls.command_rules import NoCredentials, NotNow, UnknownCommand, UnknownPull
from towline.pulls.fleet import Ambiguous, BadCursor, Fleet, NoSuchRepo, Wanted, full_name
from towline.pulls.http_models import (
    Cursor,
    PullLimit,
    PullPage,
    PullStateFilter,
    RepoFilter,
    RuleFilter,
    SearchFilter,
    StaleCursor,
    StaleFilter,
    StalePage,
    pull_out,
)
from towline.pulls.model import PullRecord
from towline.pulls.store import PullStore
from towline_once.asgi.messages import Problem
from towline_once.errors import TowlineError

router = APIRouter(prefix="/api", tags=["pull requests"], responses=documented(401, 403, 422, 503))
UNKNOWN: Final = ("unknown_pull", "unknown_repo")


@router.get("/prs", summary="List pull requests", responses=documented("unknown_repo", "ambiguous"))
async def list_pulls(
    control: TheControl,
    tow: ThePulls,
    reader: Reader,
    repo: RepoFilter = None,
    state: PullStateFilter = None,
    stale: StaleFilter = None,
    rule: RuleFilter = None,
    search: SearchFilter = None,
    limit: PullLimit = 50,
    cursor: Cursor = None,
) -> PullPage:
    """The fleet, by repository and number."""
    now_us = control.clock.now_us()
    fleet = Fleet(tow.pulls, tow.policy, now_us)
    try:
        page = await fleet.page(Wanted(repo, state, stale, rule, search), cursor or "", limit)
    except TowlineError as error:
        raise refusal_of(error) from None
    items = [pull_out(one, tow.policy.of(one.ref.repo), now_us) for one in page.records]
    return PullPage(items=items, next=page.next, counts=await tow.pulls.census())


@router.get(
    "/prs/stale",
    operation_id="list_stale_pulls",
    summary="List stale pull requests",
    responses=documented("unknown_repo", "ambiguous"),
)
async def list_stale(
    control: TheControl,
    tow: ThePulls,
    reader: Reader,
    repo: RepoFilter = None,
    state: PullStateFilter = None,
    rule: RuleFilter = None,
    search: SearchFilter = None,
    limit: PullLimit = 50,
    cursor: StaleCursor = None,
) -> StalePage:
    """Those in which nothing has happened for longer than their state allows."""
    now_us = control.clock.now_us()
    fleet = Fleet(tow.pulls, tow.policy, now_us)
    wanted = Wanted(repo, state, None, rule, search)
    try:
        page, everything = await fleet.stale(wanted, cursor or "", limit)
    except TowlineError as error:
        raise refusal_of(error) from None
    items = [pull_out(one, tow.policy.of(one.ref.repo), now_us) for one in page.records]
    counts = Counter(one.state for one in everything)
    return StalePage(items=items, next=page.next, counts=counts)


async def found_pull(pulls: PullStore, name: str, number: int) -> PullRecord:
    """The record; a `Problem` where the name or the number stands for nothing."""
    try:
        repo = await full_name(pulls, name)
    except TowlineError as error:
        raise refusal_of(error) from None
    record = await pulls.read(repo, number)
    if record is None:
        raise Problem(404, "unknown_pull", f"{repo}#{number} is not towed, or ended long ago")
    return record


def refusal_of(error: TowlineError) -> Problem:
    """Each kind of refusal has its status and its code."""
    if isinstance(error, Ambiguous):
        return Problem(409, "ambiguous", str(error), candidates=error.candidates)
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return Problem(status, code, str(error))
    return problem_of(error)


_KINDS: Final[tuple[tuple[type[TowlineError], int, str], ...]] = (
    (UnknownCommand, 422, "unknown_command"),
    (UnknownPull, 404, "unknown_pull"),
    (NotNow, 409, "not_now"),
    (NoCredentials, 409, "no_credentials"),
    (NoSuchRepo, 404, "unknown_repo"),
    (BadCursor, 422, "invalid_request"),
)
