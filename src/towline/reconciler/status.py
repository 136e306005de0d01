"""One pull request with its diagnosis: where it stands, why, what is next, what it has used up.

The diagnosis is the reconciler's last one or, where that does not fit any more, one that is made
now from what is known, without asking the forge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from towline.http.access import Reader
from towline.http.problem_docs import documented
from towline.inbox.access import Control, TheControl
from towline.pulls.budgets import LIFETIME_FACTOR, STRATEGIES, Counts, Strategy
from towline.pulls.fleet import story_of
from towline.pulls.http import UNKNOWN, found_pull
from towline.pulls.http_models import (
    STUCK,
    EventOut,
    Name,
    Number,
    Owner,
    PullOut,
    Repo,
    Story,
    current_diagnosis,
    event_out,
    fields_of,
)
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.reconciler.access import TheTow, Tow
from towline.reconciler.decision import as_stored, case_of, diagnosed, history_of
from towline.remediation.escalation_text import ESCALATED

router = APIRouter(prefix="/api", tags=["pull requests"], responses=documented(401, 403, 422, 503))


class Tries(BaseModel):
    """`used` of `max`; a count may start anew, `lifetime` never does."""

    used: int
    max: int
    lifetime: int
    lifetime_max: int


class PullStatus(PullOut):
    """A pull request with its budgets and everything that happened to it."""

    last_decision: Mapping[str, Any] | None = Field(
        description="The reconciler's last diagnosis, and what came of it."
    )
    retry_counts: Mapping[Strategy, Tries]
    events: list[EventOut] = Field(description="Oldest first.")
    more_events: bool = Field(description="Whether there are more than are shown.")


def pull_status(record: PullRecord, tow: TowPolicy, now_us: int, story: Story) -> PullStatus:
    policy = tow.of(record.ref.repo)
    diagnosis = current_diagnosis(record) or diagnosis_now(
        record,
        policy,
        now_us,
        story.events,
        reopened=story.reopened,
        heal_unlisted=tow.heal_unlisted,
    )
    return PullStatus(
        **fields_of(record, policy, now_us),
        diagnosis=diagnosis,
        last_decision=record.diagnosis,
        retry_counts=tries_of(record.counts, record.lifetime, policy.budgets, story.reopened),
        events=[event_out(event) for event in story.events],
        more_events=story.more_events,
    )


def tries_of(
    counts: Counts, lifetime: Counts, budgets: Counts, reopened: int
) -> dict[Strategy, Tries]:
    used = {strategy: counts.get(strategy, 0) for strategy in STRATEGIES}
    used["close_and_reopen"] = max(used["close_and_reopen"], reopened)
    return {
        strategy: Tries(
            used=used[strategy],
            max=budgets[strategy],
            lifetime=max(lifetime.get(strategy, 0), used[strategy]),
            lifetime_max=budgets[strategy] * LIFETIME_FACTOR,
        )
        for strategy in STRATEGIES
    }


def diagnosis_now(
    record: PullRecord,
    policy: RepoPolicy,
    now_us: int,
    events: Sequence[PullEvent],
    *,
    reopened: int,
    heal_unlisted: bool,
) -> Mapping[str, Any] | None:
    """By what is known without asking the forge; None when its life has ended."""
    if record.state in TERMINAL:
        return None
    if record.state == STUCK:
        return _why_a_person(events)
    facts = record.facts
    case = case_of(
        record,
        history_of(events),
        transient=facts.transient is True,
        evidence=facts.evidence,
        reopened=reopened,
    )
    now = now_us / 1e6
    diagnosis = diagnosed(case, now, policy, heal_unlisted=heal_unlisted)
    return as_stored(diagnosis, record.state, now, "undecided")


def _why_a_person(events: Sequence[PullEvent]) -> Mapping[str, Any]:
    """As the log has it."""
    told: Mapping[str, object] = next(
        (event.payload for event in reversed(events) if event.event_type == ESCALATED), {}
    )
    return {
        "rule": told.get("rule"),
        "reason": told.get("reason") or "a person is needed",
        "evidence": told.get("evidence") or "",
        "next_action": STUCK,
        "budget_left": None,
        "otherwise": None,
    }


@router.get(
    "/pr/{owner}/{name}/{number}/status",
    operation_id="show_pull",
    summary="Show a pull request",
    responses=documented(*UNKNOWN, "ambiguous"),
)
async def status(
    control: TheControl, tow: TheTow, reader: Reader, owner: Owner, name: Name, number: Number
) -> PullStatus:
    """Where a pull request stands, why, what is next, and everything that happened to it."""
    return await _status(control, tow, f"{owner}/{name}", number)


@router.get("/pr/{repo:path}/{number}/status", include_in_schema=False)
async def status_by_any_name(
    control: TheControl, tow: TheTow, reader: Reader, repo: Repo, number: Number
) -> PullStatus:
    """The same by a bare name, or by one with nested groups."""
    return await _status(control, tow, repo, number)


async def _status(control: Control, tow: Tow, name: str, number: int) -> PullStatus:
    record = await found_pull(tow.pulls, name, number)
    story = await story_of(tow.pulls, record)
    return pull_status(record, tow.policy, control.clock.now_us(), story)
