"""Fix runs: to look at them stage by stage, and to let a blocked one begin anew."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel, Field, StringConstraints

from towline.fix.model import WARNING, Cause, RunRecord, RunState, Stage, StageOutcome, StageRecord
from towline.fix.starter import run_job
from towline.fix.store import RunStore
from towline.http.access import Commander, Reader
from towline.http.models import moment
from towline.http.problem_docs import documented
from towline.inbox.access import TheControl
from towline_once.asgi.messages import Problem

# ------------------------------------------------------------------ models
# Fix runs as the control plane shows them.

MOST_OF_A_PAGE: Final = 200
_SHOWN_APART: Final = frozenset({"diff", "log"})


RunKey = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9]{1,128}$"),
    Path(description="`run_key` of the list."),
]
_Repo = Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)+$", max_length=300)]
_RunId = Annotated[str, StringConstraints(pattern=r"^run_[0-9a-f]{1,40}$")]
RunRepo = Annotated[_Repo | None, Query(description="Only those of OWNER/NAME.")]
RunStateFilter = Annotated[RunState | None, Query(description="Only those in this state.")]
RunLimit = Annotated[int, Query(ge=1, le=MOST_OF_A_PAGE, description="How many at most.")]
RunCursor = Annotated[
    _RunId | None, Query(description="`next` of the page before; without it, the newest.")
]


class StageOut(BaseModel):
    """How a stage ended; `refused` is for good, `failed` may be tried again."""

    stage: Stage
    outcome: StageOutcome
    reason: str
    attempt: int
    started_at: datetime
    seconds: float
    input_digest: str


class StageStory(StageOut):
    output: Mapping[str, Any]
    log: str


class RunLinks(BaseModel):
    """Where to go on."""

    run: str
    unblock: str
    pull_request: str | None


class RunOut(BaseModel):
    """A fix run as it stands."""

    run_key: str
    event_id: str
    run_id: str
    repo: str
    forge: str
    cause: Cause
    title: str
    check: str | None
    vulnerability_id: str | None
    requested_by: str | None
    replaces: int | None
    state: RunState
    starts_at: datetime | None = Field(
        description="When its turn comes; null once it has come, or if it waits for no turn."
    )
    stage: Stage | None = Field(description="The last one that ended.")
    attempt_count: int
    blocked_reason: str | None
    branch: str
    base: str
    last_pr_url: str | None
    last_pr_number: int | None
    last_pr_created_at: datetime | None
    last_attempt_at: datetime | None
    created_at: datetime
    updated_at: datetime
    unblocked_by: str | None
    links: RunLinks


class RunInList(RunOut):
    stages: list[StageOut]


class RunStory(RunOut):
    """A run with everything that is known of it."""

    url: str | None = Field(description="Where the failure, the advisory or the request is.")
    sha: str | None
    instruction: str
    diff: str | None = Field(description="The patch, as far as there is one that is text.")
    evidence: str = Field(description="The end of the failing job's log.")
    warnings: list[str] = Field(description="Such as that nothing had to be isolated.")
    stages: list[StageStory]


class RunPage(BaseModel):
    """The newest first. `next` goes into `cursor` to get the page after; null on the last."""

    items: list[RunInList]
    next: str | None


class Unblocked(BaseModel):
    """The run begins anew, with all its attempts."""

    status: Literal["accepted"] = "accepted"
    run_key: str
    job_id: str


def run_in_list(run: RunRecord) -> RunInList:
    return RunInList(**_fields(run), stages=[StageOut(**_stage(one)) for one in run.stages])


def run_story(run: RunRecord) -> RunStory:
    outputs: dict[str, Mapping[str, object]] = {one.stage: one.output for one in run.stages}
    diff = outputs.get("PATCH", {}).get("diff")
    return RunStory(
        **_fields(run),
        url=run.errand.url,
        sha=run.errand.sha,
        instruction=run.errand.instruction,
        diff=diff if isinstance(diff, str) else None,
        evidence=str(outputs.get("PLAN", {}).get("log") or ""),
        warnings=list(
            dict.fromkeys(str(one[WARNING]) for one in outputs.values() if WARNING in one)
        ),
        stages=[
            StageStory(**_stage(one), output=_rest_of(one.output), log=one.log)
            for one in run.stages
        ],
    )


def _rest_of(output: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in output.items() if name not in _SHOWN_APART}


def _stage(record: StageRecord) -> dict[str, Any]:
    return {
        "stage": record.stage,
        "outcome": record.outcome,
        "reason": record.reason,
        "attempt": record.attempt,
        "started_at": moment(record.started_us),
        "seconds": record.seconds,
        "input_digest": record.input_digest,
    }


def _fields(run: RunRecord) -> dict[str, Any]:
    errand = run.errand
    opened, tried = run.last_pr_created_us, run.last_attempt_us
    starts = run.starts_us if run.state == "scheduled" else None
    path = f"/api/runs/{run.run_key}"
    return {
        "run_key": run.run_key,
        "event_id": run.event_id,
        "run_id": run.run_id,
        "repo": errand.repo,
        "forge": errand.forge,
        "cause": errand.cause,
        "title": errand.title,
        "check": errand.check,
        "vulnerability_id": errand.vulnerability_id,
        "requested_by": errand.requested_by,
        "replaces": errand.replaces,
        "state": run.state,
        "starts_at": None if starts is None else moment(starts),
        "stage": run.stages[-1].stage if run.stages else None,
        "attempt_count": run.attempt_count,
        "blocked_reason": run.blocked_reason,
        "branch": run.branch,
        "base": errand.base_ref,
        "last_pr_url": run.last_pr_url,
        "last_pr_number": run.last_pr_number,
        "last_pr_created_at": None if opened is None else moment(opened),
        "last_attempt_at": None if tried is None else moment(tried),
        "created_at": moment(run.created_us),
        "updated_at": moment(run.updated_us),
        "unblocked_by": run.unblocked_by,
        "links": RunLinks(run=path, unblock=f"{path}/unblock", pull_request=run.last_pr_url),
    }


# ------------------------------------------------------------------ routes

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
