"""The fleet, one pull request, the health of it all, and what is ordered from there."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from towline.ports.pulls import PullRecord
from towline.web.answers import Problem
from towline.web.dashboard.fleet_find import page_of
from towline.web.dashboard.fleet_view import (
    MOST_COUNTED,
    MOST_REPOS,
    ORDER,
    RULES,
    board_of,
    columns_of,
    counts_of,
    wanted_from,
)
from towline.web.dashboard.health_span import SPANS, span_of
from towline.web.dashboard.health_view import health_of
from towline.web.dashboard.pages import HOME, pull_path
from towline.web.dashboard.pull_view import pull_page
from towline.web.dashboard.visits import Form, Visit, action, page, went
from towline.web.fleet import full_name, story_of
from towline.web.pull_models import LONGEST_NAME, ResetBody
from towline.web.pull_routes import give_order
from towline.web.reconciler_routes import reset_breakers

_FILTERS: Final = ("repo", "state", "stale", "rule", "search")
_MOST_SKIPPED: Final = 10_000


@page
async def fleet(visit: Visit) -> Response:
    """The board; with a filter, what it finds, page by page."""
    given = {name: visit.given(name) for name in _FILTERS}
    wanted = wanted_from(given)
    following = None
    if all(value is None for value in wanted):
        board = await board_of(visit.desk.insights, visit.tow, visit.now_us)
        columns = board.columns
    else:
        board = await counts_of(visit.desk.insights, visit.tow)
        if wanted.repo is not None:
            wanted = wanted._replace(repo=await full_name(visit.tow.pulls, wanted.repo))
        cursor = visit.given("cursor", 400) or ""
        found = await page_of(visit.desk.insights, visit.tow.policy, wanted, cursor, visit.now_us)
        columns = columns_of(found.records, visit.tow.policy, visit.now_us)
        following = found.following
    return visit.page(
        "fleet.html",
        "fleet",
        board=board,
        columns=columns,
        given=given,
        filtered=any(given.values()),
        following=following,
        repos=await visit.desk.insights.repos(MOST_REPOS),
        rules=RULES,
        order=ORDER,
        most_counted=MOST_COUNTED,
    )


@page
async def pull(visit: Visit) -> Response:
    record = await _record(visit)
    story = await story_of(visit.tow.pulls, record)
    skip = visit.given("skip", 6) or "0"
    skipped = min(int(skip), _MOST_SKIPPED) if skip.isascii() and skip.isdigit() else 0
    shown = pull_page(record, visit.tow.policy, story, visit.now_us, skipped)
    return visit.page("pull.html", "fleet", pull=shown, more_events=story.more_events)


@action("command")
async def command(visit: Visit, form: Form) -> Response:
    """The same as the API's: 409 where the state does not allow it."""
    record = await _record(visit)
    order = form.get("command", "")[:LONGEST_NAME]
    ref = record.ref
    await give_order(visit.control, visit.tow, visit.principal, ref.repo, ref.number, order)
    return went(pull_path(record.ref), "ordered")


@page
async def health(visit: Visit) -> Response:
    span = span_of(visit.given("days"))
    found = await health_of(visit.control, visit.tow, visit.desk, span)
    return visit.page("health.html", "health", health=found, spans=SPANS)


@action("admin")
async def reset(visit: Visit, form: Form) -> Response:
    name = form.get("name", "").replace("\0", "")[:LONGEST_NAME]
    body = ResetBody(name=name or None)
    await reset_breakers(visit.control, visit.tow, visit.principal, body)
    return went(f"{HOME}/health", "reset")


async def _record(visit: Visit) -> PullRecord:
    parts = visit.request.path_params
    number = str(parts["number"])
    if not (number.isascii() and number.isdigit() and len(number) <= 15):
        raise Problem(404, "not_found", "a pull request has a number")
    repo = await full_name(visit.tow.pulls, str(parts["repo"])[:LONGEST_NAME])
    record = await visit.tow.pulls.read(repo, int(number))
    if record is None:
        raise Problem(404, "unknown_pull", f"{repo}#{number} is not towed, or ended long ago")
    return record
