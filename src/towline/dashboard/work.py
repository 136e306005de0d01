"""What came in and what is worked on: deliveries, jobs and fix runs, and to run them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, get_args

from starlette.responses import Response

from towline.dashboard.page_request import Form, Visit, action, page, went
from towline.dashboard.render import HOME, part, query
from towline.fix.http import Runs, run_in_list, run_story, unblock_run
from towline.fix.model import STAGES, RunState
from towline.inbox.admin_http import redeliver_delivery
from towline.inbox.admin_http import redeliver_job as redeliver_its_job
from towline.jobs.model import JobState
from towline_once.asgi.messages import Problem

A_PAGE: Final = 50
_LONGEST_SHOWN: Final = 100_000
_LONGEST_ID: Final = 4_096
JOB_STATES: Final[tuple[str, ...]] = get_args(JobState)
RUN_STATES: Final[tuple[str, ...]] = get_args(RunState)


@page
async def inbox(visit: Visit) -> Response:
    given = {name: visit.given(name) for name in ("source", "repo", "event", "id")}
    if given["id"]:
        rows, last = await visit.control.inbox.find(given["id"]), None
    else:
        asked = {"source": given["source"], "repo": given["repo"], "event_name": given["event"]}
        before = _moment_and_key(visit.given("before", 1_000) or "")
        rows, last = await visit.desk.insights.deliveries(_filled(asked), before, A_PAGE)
    following = None if last is None else f"{last[0]} {last[1]}"
    parked = await visit.control.inbox.parked([row.key for row in rows])
    return visit.page(
        "inbox.html", "inbox", rows=rows, parked=parked, following=following, given=given
    )


def _moment_and_key(cursor: str) -> tuple[int, str] | None:
    at, _, key = cursor.partition(" ")
    return (int(at), key) if at.isascii() and at.isdigit() and len(at) < 19 else None


def _filled(asked: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in asked.items() if text}


@page
async def delivery(visit: Visit) -> Response:
    """Several hooks may share an id; then the first is shown, and links to the others."""
    found = await visit.control.inbox.find(_id(visit))
    key = visit.given("key", _LONGEST_ID)
    stored = next((one for one in found if key in (None, one.key)), None)
    if stored is None:
        raise Problem(404, "not_found", "there is no such delivery")
    job = await visit.control.jobs.read(stored.job_id)
    body = (stored.body or b"").decode("utf-8", "replace")
    parked = await visit.control.inbox.parked([stored.key])
    return visit.page(
        "delivery.html",
        "inbox",
        stored=stored,
        parked=parked,
        job=job,
        payload=pretty(body),
        found=found,
    )


@action("command")
async def redeliver(visit: Visit, form: Form) -> Response:
    delivery_id, key = _id(visit), form.get("key") or None
    force = form.get("force") == "yes"
    await redeliver_delivery(visit.control, visit.principal, delivery_id, key, force)
    where = f"{HOME}/inbox/{part(delivery_id)}{query({'key': key})}"
    return went(where.rstrip("?"), "redelivered")


@page
async def jobs(visit: Visit) -> Response:
    given = {name: visit.given(name) for name in ("state", "kind", "repo")}
    state = _one_of(given["state"], get_args(JobState))
    wanted = _filled({"kind": given["kind"], "repo": given["repo"]})
    before = visit.given("before", _LONGEST_ID) or ""
    rows, following = await visit.desk.insights.jobs(state, wanted, before, A_PAGE)
    return visit.page(
        "jobs.html", "jobs", rows=rows, following=following, given=given, job_states=JOB_STATES
    )


@page
async def job(visit: Visit) -> Response:
    found = await visit.control.jobs.read(_id(visit))
    if found is None:
        raise Problem(404, "not_found", "there is no such job, or it ended long ago")
    return visit.page(
        "job.html", "jobs", job=found, params=pretty(found.params), result=pretty(found.result)
    )


@action("command")
async def redeliver_job(visit: Visit, form: Form) -> Response:
    job_id, force = _id(visit), form.get("force") == "yes"
    await redeliver_its_job(visit.control, visit.principal, job_id, force)
    return went(f"{HOME}/jobs/{part(job_id)}", "redelivered")


@page
async def runs(visit: Visit) -> Response:
    known = visit.desk.runs
    given = {name: visit.given(name) for name in ("repo", "state")}
    items, following = [], None
    if known is not None:
        state = next((one for one in get_args(RunState) if one == given["state"]), None)
        before = visit.given("before") or ""
        rows = await known.store.listing(given["repo"], state, before, A_PAGE + 1)
        items = [run_in_list(row) for row in rows[:A_PAGE]]
        following = items[-1].run_id if len(rows) > A_PAGE else None
    return visit.page(
        "runs.html", "runs", known=known is not None, items=items, following=following,
        given=given, run_states=RUN_STATES, stages=STAGES,
    )  # fmt: skip


@page
async def run(visit: Visit) -> Response:
    found = await _runs(visit).store.read(str(visit.request.path_params["run_key"])[:300])
    if found is None:
        raise Problem(404, "unknown_run", "there is no such run, or it ended long ago")
    return visit.page("run.html", "runs", run=run_story(found), order=STAGES, pretty=shown)


@action("command")
async def unblock(visit: Visit, form: Form) -> Response:
    run_key = str(visit.request.path_params["run_key"])[:300]
    await unblock_run(visit.control, _runs(visit), visit.principal, run_key)
    return went(f"{HOME}/runs/{part(run_key)}", "unblocked")


def _runs(visit: Visit) -> Runs:
    if visit.desk.runs is None:
        raise Problem(404, "not_found", "there are no fix runs here")
    return visit.desk.runs


def _id(visit: Visit) -> str:
    return str(visit.request.path_params["id"])[:_LONGEST_ID].replace("\0", "")


def _one_of(text: str | None, allowed: tuple[JobState, ...]) -> JobState | None:
    return next((one for one in allowed if one == text), None)


def shown(value: object) -> str:
    return pretty(json.dumps(value, default=str))


def pretty(text: str | None) -> str:
    """JSON with indents; other text as it is; the beginning of what is very long."""
    if not text:
        return ""
    if len(text) > _LONGEST_SHOWN:
        return f"{text[:_LONGEST_SHOWN]}\n… {len(text) - _LONGEST_SHOWN} characters more"
    try:
        indented = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return indented.encode("utf-8", "backslashreplace").decode()  # half characters as they came
