"""Pull requests under tow: to look at one or at the fleet, and to order something for them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError

from towline.commands.service import BatchResult
from towline.http.access import Commander, Reader
from towline.http.auth import Principal
from towline.http.json_body import JsonBody
from towline.http.problem_docs import documented
from towline.http.problems import problem_of
from towline.http.repeatable import Again, same_again
from towline.inbox.access import Control, TheControl
from towline.pulls.access import TheTow, Tow
from towline.pulls.command_rules import NoCredentials, NotNow, UnknownCommand, UnknownPull
from towline.pulls.fleet import Ambiguous, BadCursor, Fleet, NoSuchRepo, Wanted, full_name
from towline.pulls.http_models import (
    MOST_OF_A_BATCH,
    BatchAnswer,
    BatchBody,
    BatchItem,
    CommandAccepted,
    CommandBody,
    Cursor,
    Name,
    Number,
    Owner,
    PullFilter,
    PullLimit,
    PullPage,
    PullStateFilter,
    Repo,
    RepoFilter,
    RuleFilter,
    SearchFilter,
    StaleCursor,
    StaleFilter,
    StalePage,
    parsed_ref,
    pull_out,
)
from towline.pulls.model import PullRecord
from towline.pulls.store import PullStore
from towline_once.asgi.messages import Problem
from towline_once.errors import TowlineError

router = APIRouter(prefix="/api", tags=["pull requests"], responses=documented(401, 403, 422, 503))
_command = JsonBody(CommandBody)
_batch = JsonBody(BatchBody)
UNKNOWN: Final = ("unknown_pull", "unknown_repo")
_REFUSALS: Final = documented(
    400, 408, 413, *UNKNOWN, "ambiguous", "not_now", "no_credentials", 422, "unknown_command",
    "too_many",
)  # fmt: skip


async def _command_for(request: Request, tow: TheTow, number: Number) -> CommandBody:
    """The body; one that is wrong is told after a pull request that is not there."""
    try:
        return await _command(request)
    except (Problem, RequestValidationError):
        place = request.path_params
        await found_pull(tow.pulls, place.get("repo") or "{owner}/{name}".format_map(place), number)
        raise


@router.get("/prs", summary="List pull requests", responses=documented("unknown_repo", "ambiguous"))
async def list_pulls(
    control: TheControl,
    tow: TheTow,
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
    tow: TheTow,
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


@router.post(
    "/prs/commands",
    operation_id="command_pulls",
    summary="Give one command for many pull requests",
    status_code=202,
    responses=_REFUSALS,
    openapi_extra=_batch.described,
)
async def order_for_many(
    request: Request,
    control: TheControl,
    tow: TheTow,
    commander: Commander,
    body: Annotated[BatchBody, Depends(_batch)],
) -> BatchAnswer:
    """One command for many; each is taken or refused by itself."""
    if (body.prs is None) == (body.filter is None):
        raise Problem(422, "invalid_request", "body: give either prs or filter")
    names = body.prs if body.filter is None else await _matching(control, tow, body.filter)
    again = await same_again(request.scope)
    results = await _ordered(tow, commander, list(dict.fromkeys(names or ())), body.command, again)
    accepted = sum(result.status == "accepted" for result in results)
    control.audit(
        "COMMANDS_ORDERED", by=_name_of(commander), key=commander.id, command=body.command,
        accepted=accepted, refused=len(results) - accepted,
    )  # fmt: skip
    return BatchAnswer(
        command=body.command, accepted=accepted, refused=len(results) - accepted, results=results
    )


@router.post(
    "/pr/{owner}/{name}/{number}/command",
    operation_id="command_pull",
    summary="Give a command for a pull request",
    status_code=202,
    responses=_REFUSALS,
    openapi_extra=_command.described,
)
async def order(
    request: Request,
    control: TheControl,
    tow: TheTow,
    commander: Commander,
    owner: Owner,
    name: Name,
    number: Number,
    body: Annotated[CommandBody, Depends(_command_for)],
) -> CommandAccepted:
    """Queue a command.

    409 `not_now` where the state does not allow it, and `no_credentials` without a token for the
    forge; `detail` names the setting.
    """
    repo = f"{owner}/{name}"
    again = await same_again(request.scope)
    return await give_order(control, tow, commander, repo, number, body.command, again)


@router.post("/pr/{repo:path}/{number}/command", status_code=202, include_in_schema=False)
async def order_by_any_name(
    request: Request,
    control: TheControl,
    tow: TheTow,
    commander: Commander,
    repo: Repo,
    number: Number,
    body: Annotated[CommandBody, Depends(_command_for)],
) -> CommandAccepted:
    """The same by a bare name, or by one with nested groups."""
    again = await same_again(request.scope)
    return await give_order(control, tow, commander, repo, number, body.command, again)


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


async def give_order(
    control: Control,
    tow: Tow,
    commander: Principal,
    name: str,
    number: int,
    command: str,
    again: Again | None = None,
) -> CommandAccepted:
    """For the API and the dashboard alike; a refusal is a `Problem`."""
    try:
        repo = await full_name(tow.pulls, name)
        ordered = await tow.orders.order(
            repo,
            number,
            command,
            source="admin-api",
            requested_by=_name_of(commander),
            **(again._asdict() if again is not None else {}),
        )
    except TowlineError as error:
        raise refusal_of(error) from None
    control.audit(
        "COMMAND_ORDERED", by=_name_of(commander), key=commander.id, command=ordered.command,
        repo=ordered.repo, number=ordered.number, job_id=ordered.job_id,
    )  # fmt: skip
    return CommandAccepted(
        job_id=ordered.job_id, command=ordered.command, repo=ordered.repo, number=ordered.number
    )


async def _matching(control: Control, tow: Tow, given: PullFilter) -> list[str]:
    fleet = Fleet(tow.pulls, tow.policy, control.clock.now_us())
    wanted = Wanted(**given.model_dump())
    if not any(value is not None for value in wanted):
        raise Problem(422, "invalid_request", "body filter: give at least one condition")
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        try:
            page = await fleet.page(wanted, cursor, MOST_OF_A_BATCH)
        except TowlineError as error:
            raise refusal_of(error) from None
        names += [str(record.ref) for record in page.records]
        if len(names) > MOST_OF_A_BATCH:
            detail = f"more than {MOST_OF_A_BATCH} match; narrow the filter"
            raise Problem(422, "too_many", detail)
        cursor = page.next
    return names


async def _ordered(
    tow: Tow, commander: Principal, names: list[str], command: str, again: Again | None
) -> list[BatchItem]:
    """Names that stand for nothing are refused here, the rest is ordered together, once each."""
    results: dict[str | tuple[str, int], BatchItem | None] = {}
    for name in names:
        try:
            results[await _named(tow.pulls, name)] = None
        except Problem as problem:
            results[name] = _refused(name, problem)
    refs = [ref for ref in results if isinstance(ref, tuple)]
    try:
        found = await tow.orders.batch(
            refs,
            command,
            _name_of(commander),
            **(again._asdict() if again is not None else {}),
        )
    except TowlineError as error:
        raise refusal_of(error) from None
    results |= zip(refs, map(_item, found), strict=True)
    return [item for item in results.values() if item is not None]


async def _named(pulls: PullStore, name: str) -> tuple[str, int]:
    ref = parsed_ref(name)
    if ref is None:
        raise Problem(422, "invalid_request", "write OWNER/NAME#NUMBER")
    try:
        return await full_name(pulls, ref[0]), ref[1]
    except TowlineError as error:
        raise refusal_of(error) from None


def _item(found: BatchResult) -> BatchItem:
    name = f"{found.repo}#{found.number}"
    if found.job_id is not None:
        return BatchItem(pr=name, status="accepted", job_id=found.job_id)
    code = "unknown_pull" if found.error == "not_found" else found.error
    return BatchItem(pr=name, status="refused", code=code, detail=found.reason)


def _refused(name: str, problem: Problem) -> BatchItem:
    told = problem.members
    return BatchItem(pr=name, status="refused", code=told["code"], detail=told["detail"])


def _name_of(principal: Principal) -> str:
    """Who is recorded as having done it."""
    return principal.name or principal.id


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
