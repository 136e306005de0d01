"""Fix runs as the control plane shows them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field, StringConstraints

from towline.core.fixrun import (
    WARNING,
    Cause,
    RunRecord,
    RunState,
    Stage,
    StageOutcome,
    StageRecord,
)
from towline.web.control_models import moment

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
