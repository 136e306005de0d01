"""Commands by the admin API: for one pull request, or one command for many."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError

from towline.commands.access import CommandRoutes, TheCommands
from towline.commands.service import BatchResult
from towline.http.access import Commander
from towline.http.auth import Principal
from towline.http.json_body import JsonBody
from towline.http.problem_docs import documented
from towline.http.repeatable import Again, same_again
from towline.inbox.access import Control, TheControl
from towline.pulls.fleet import Fleet, Wanted, full_name
from towline.pulls.http import UNKNOWN, found_pull, refusal_of
from towline.pulls.http_models import (
    MOST_OF_A_BATCH,
    BatchAnswer,
    BatchBody,
    BatchItem,
    CommandAccepted,
    CommandBody,
    Name,
    Number,
    Owner,
    PullFilter,
    Repo,
    parsed_ref,
)
from towline.pulls.store import PullStore
from towline_once.asgi.messages import Problem
from towline_once.errors import TowlineError

router = APIRouter(prefix="/api", tags=["pull requests"], responses=documented(401, 403, 422, 503))
_command = JsonBody(CommandBody)
_batch = JsonBody(BatchBody)
_REFUSALS: Final = documented(
    400, 408, 413, *UNKNOWN, "ambiguous", "not_now", "no_credentials", 422, "unknown_command",
    "too_many",
)  # fmt: skip


async def _command_for(request: Request, tow: TheCommands, number: Number) -> CommandBody:
    """The body; one that is wrong is told after a pull request that is not there."""
    try:
        return await _command(request)
    except (Problem, RequestValidationError):
        place = request.path_params
        await found_pull(tow.pulls, place.get("repo") or "{owner}/{name}".format_map(place), number)
        raise


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
    tow: TheCommands,
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
    tow: TheCommands,
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
    tow: TheCommands,
    commander: Commander,
    repo: Repo,
    number: Number,
    body: Annotated[CommandBody, Depends(_command_for)],
) -> CommandAccepted:
    """The same by a bare name, or by one with nested groups."""
    again = await same_again(request.scope)
    return await give_order(control, tow, commander, repo, number, body.command, again)


async def give_order(
    control: Control,
    tow: CommandRoutes,
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


async def _matching(control: Control, tow: CommandRoutes, given: PullFilter) -> list[str]:
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
    tow: CommandRoutes, commander: Principal, names: list[str], command: str, again: Again | None
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
