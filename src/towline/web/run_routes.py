"""Fix runs: to look at them stage by stage, and to let a blocked one begin anew."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request

from towline.core.fixrun import RunRecord
from towline.flow.fix_start import run_job
from towline.ports.runs import RunStore
from towline.web.answers import Problem
from towline.web.control_access import Commander, Reader, TheControl
from towline.web.problems import documented
from towline.web.run_models import (
    RunCursor,
    RunKey,
    RunLimit,
    RunPage,
    RunRepo,
    RunStateFilter,
    RunStory,
    Unblocked,
    run_in_list,
    run_story,
)

router = APIRouter(prefix="/api/runs", tags=["fix runs"], responses=documented(401, 403, 422, 503))


class Runs(NamedTuple):
    """The collaborators of these routes."""

    store: RunStore
    max_attempts: int


def runs_of(request: Request) -> Runs:
    runs: Runs = request.app.state.runs
    return runs


TheRuns = Annotated[Runs, Depends(runs_of)]


@router.get("")
async def list_runs(
    runs: TheRuns,
    reader: Reader,
    repo: RunRepo = None,
    state: RunStateFilter = None,
    limit: RunLimit = 50,
    cursor: RunCursor = None,
) -> RunPage:
    """The newest first; the stages without their logs."""
    found = await runs.store.listing(repo, state, cursor or "", limit + 1)
    items = [run_in_list(run) for run in found[:limit]]
    return RunPage(items=items, next=items[-1].run_id if len(found) > limit else None)


@router.get("/{run_key}", responses=documented("unknown_run"))
async def show_run(runs: TheRuns, reader: Reader, run_key: RunKey) -> RunStory:
    """Stage by stage, with the patch and the logs."""
    return run_story(await _found(runs, run_key))


@router.post(
    "/{run_key}/unblock", status_code=202, responses=documented("unknown_run", "not_blocked")
)
async def unblock_run(
    control: TheControl, runs: TheRuns, commander: Commander, run_key: RunKey
) -> Unblocked:
    """Let a blocked run begin anew, from its plan; 409 `not_blocked` if it is not blocked."""
    run = await _found(runs, run_key)
    if run.state != "blocked":
        raise Problem(409, "not_blocked", f"the run is {run.state}, not blocked")
    by = commander.name or commander.id
    job = run_job(
        run_key,
        run.errand.repo,
        control.clock.now_us(),
        runs.max_attempts,
        salt=f"unblocked {run.token}",
    )
    if await runs.store.unblock(run_key, by, job) is None:
        raise _unknown(run_key)
    control.audit(
        "RUN_UNBLOCKED", by=by, key=commander.id, run_key=run_key, run_id=run.run_id,
        repo=run.errand.repo, was=run.blocked_reason, job_id=job.id,
    )  # fmt: skip
    return Unblocked(run_key=run_key, job_id=job.id)


async def _found(runs: Runs, run_key: str) -> RunRecord:
    run = await runs.store.read(run_key)
    if run is None:
        raise _unknown(run_key)
    return run


def _unknown(run_key: str) -> Problem:
    return Problem(404, "unknown_run", f"there is no run {run_key}, or it ended long ago")
