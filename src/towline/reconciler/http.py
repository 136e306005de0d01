"""The reconciler and its breakers: to run a sweep now, to look, and to close a breaker by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from towline.forges.snapshot import PullRef
from towline.http.access import Reader
from towline.http.auth import Principal
from towline.http.json_body import JsonBody
from towline.http.models import moment
from towline.http.problem_docs import documented
from towline.inbox.access import TheControl
from towline.pulls.access import Admin
from towline.pulls.fleet import full_name
from towline.pulls.http import refusal_of
from towline.pulls.http_models import DryRun, RepoFilter, ResetBody
from towline.reconciler.access import TheTow
from towline.reconciler.observe import WINDOW_HOURS, score
from towline.reconciler.observe_score import Agreed
from towline_once.asgi.messages import Problem
from towline_once.coordination.circuit_breaker import Report
from towline_once.errors import TowlineError

router = APIRouter(prefix="/api", tags=["reconciler"], responses=documented(401, 403, 422, 503))
_reset = JsonBody(ResetBody, default=ResetBody())
_MOST_NAMES: Final = 50
_WindowHours = Annotated[
    float, Query(gt=0, le=720, description="How long after a decision people may act on it.")
]


class DecisionOut(BaseModel):
    """What was decided about one pull request, why, and what came of it."""

    pr: str = Field(examples=["octo-org/app#7"])
    state: str
    rule: str
    action: str
    reason: str
    evidence: str
    budget_left: int | None
    outcome: str


class SweepOut(BaseModel):
    """What a sweep found and did; on a dry run, what it would have done."""

    dry_run: bool
    stale: int = Field(description="How many were found.")
    looked: int = Field(description="How many of them were looked at, at the forge.")
    drifted: int = Field(description="How many were in another state than the one on record.")
    acted: int
    escalated: int
    skipped: int
    failed: int
    breaker: Literal["closed", "open", "half_open"]
    api_calls: int
    trouble: str | None = Field(description="Why it ended early.")
    decisions: list[DecisionOut]


class RuleScore(BaseModel):
    """How often people did what one rule had decided in observe mode."""

    rule: str
    agreed: int
    disagreed: int
    open: int = Field(description="Decisions after which nothing has happened in the window.")
    share: float | None = Field(description="`agreed` of those that are not open.")


class ScoreOut(BaseModel):
    """Decisions of observe mode against what people did, for each rule."""

    repo: str | None
    window_hours: float
    rules: list[RuleScore]


class BreakerOut(BaseModel):
    """`successes` and `failures` are those of its window, `trips` how often it ever opened."""

    name: str
    state: Literal["closed", "open", "half_open"]
    successes: int
    failures: int
    trips: int
    opened_at: datetime | None

    @classmethod
    def of(cls, view: Report) -> BreakerOut:
        return cls(
            name=view.name,
            state=view.state,
            successes=view.successes,
            failures=view.failures,
            trips=view.trips,
            opened_at=moment(view.opened_us) if view.opened_us else None,
        )


class BreakersOut(BaseModel):
    items: list[BreakerOut]


class BreakersReset(BaseModel):
    """These are closed now."""

    reset: list[str]
    by: str


@router.post("/reconciler/run", responses=documented(409))
async def run_reconciler(
    control: TheControl, tow: TheTow, admin: Admin, dry_run: DryRun = False
) -> SweepOut:
    """One sweep over the stale pull requests, now."""
    report = await tow.sweeper.sweep(dry_run=dry_run)
    control.audit("RECONCILER_RUN", by=_name_of(admin), key=admin.id, dry_run=dry_run)
    return sweep_out(report, dry_run)


@router.get(
    "/reconciler/score",
    summary="Score observe mode",
    responses=documented("unknown_repo", "ambiguous"),
)
async def score_reconciler(
    tow: TheTow,
    reader: Reader,
    repo: RepoFilter = None,
    window_hours: _WindowHours = WINDOW_HOURS,
) -> ScoreOut:
    """How often people did what the reconciler decided while it only observed."""
    try:
        name = None if repo is None else await full_name(tow.pulls, repo)
    except TowlineError as error:
        raise refusal_of(error) from None
    return score_out(
        name, window_hours, await score(tow.pulls, window_hours=window_hours, repo=name)
    )


@router.get("/circuit-breaker")
async def list_breakers(tow: TheTow, reader: Reader) -> BreakersOut:
    """How each breaker stands."""
    return BreakersOut(items=[BreakerOut.of(view) for view in await tow.breakers.views()])


@router.post(
    "/circuit-breaker/reset",
    responses=documented(400, 408, 413, "unknown_breaker"),
    openapi_extra=_reset.described,
)
async def reset_breakers(
    control: TheControl, tow: TheTow, admin: Admin, body: Annotated[ResetBody, Depends(_reset)]
) -> BreakersReset:
    """Close a breaker by hand, or all that are not closed, so that remediation goes on."""
    views = await tow.breakers.views()
    names = [view.name for view in views]
    if body.name is not None and body.name not in names:
        detail = f"there is no such breaker; there are {', '.join(names[:_MOST_NAMES]) or 'none'}"
        raise Problem(404, "unknown_breaker", detail, names=names[:_MOST_NAMES])
    wanted = [body.name] if body.name else [view.name for view in views if view.state != "closed"]
    by = _name_of(admin)
    for name in wanted:
        await tow.breakers.reset(name, by)
    control.audit("BREAKERS_RESET", by=by, key=admin.id, names=wanted)
    return BreakersReset(reset=wanted, by=by)


def sweep_out(report: object, dry_run: bool) -> SweepOut:
    """The report, a NamedTuple of NamedTuples, as objects all the way down."""
    return SweepOut.model_validate({**_plain(report), "dry_run": dry_run})


def score_out(repo: str | None, window_hours: float, by_rule: Mapping[str, Agreed]) -> ScoreOut:
    rules = [
        RuleScore(rule=rule, **found._asdict(), share=found.share)
        for rule, found in sorted(by_rule.items())
    ]
    return ScoreOut(repo=repo, window_hours=window_hours, rules=rules)


def _plain(value: Any) -> Any:
    if isinstance(value, PullRef):
        return str(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        members = {name: _plain(inner) for name, inner in value._asdict().items()}
        return {"pr": members.pop("ref"), **members} if "ref" in members else members
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return value


def _name_of(principal: Principal) -> str:
    return principal.name or principal.id
