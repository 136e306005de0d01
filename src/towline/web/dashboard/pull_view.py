"""One pull request: where it stands and why, what is next and when, and what may be ordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from towline.core.commands import COMMANDS, Command, refusal
from towline.core.lifecycle import TERMINAL
from towline.core.sweep_policy import TowPolicy
from towline.ports.pulls import PullEvent, PullRecord
from towline.web.dashboard.timeline import Drawing, Span, drawn, life_of
from towline.web.pull_models import Story
from towline.web.pull_status import PullStatus, pull_status

EVENTS_A_PAGE: Final = 50
_TELLING: Final = 1_000
"""A diagnosis made now reads no more of the log than its end."""
_ABOUT: Final[Mapping[str, str]] = {
    "/rebuild": "Run the failed checks again",
    "/recheck-policy": "Have the policy bot look again",
    "/recheck-sod": "Check separation of duties again",
    "/recheck-approval": "Ask the approver bot again",
    "/merge": "Ask for the merge again",
    "/update-branch": "Bring the base branch in",
    "/close-and-reopen": "Close it and start a fresh one",
    "/cancel": "Close it and stop towing",
    "/why": "Post the diagnosis as a comment",
}
_GRAVE: Final = frozenset({"/close-and-reopen", "/cancel"})


class Button(NamedTuple):
    command: str
    about: str
    refused: str | None
    """Why it cannot be ordered now."""
    grave: bool


class Row(NamedTuple):
    """An event as the log shows it."""

    event: PullEvent
    who: str
    said: str
    kind: str


class PullPage(NamedTuple):
    record: PullRecord
    status: PullStatus
    drawing: Drawing
    spans: Sequence[Span]
    buttons: Sequence[Button]
    rows: Sequence[Row]
    older: int | None
    """How many of the newest to skip to see older ones."""
    newer: int | None
    total: int
    next_us: int | None
    """When the reconciler looks at it, unless something happens before."""


def pull_page(
    record: PullRecord, policy: TowPolicy, story: Story, now_us: int, skip: int
) -> PullPage:
    life = life_of(story.events, record.state, record.since_us, now_us)
    total = len(story.events)
    end = max(0, total - skip)
    rows = [row_of(event) for event in reversed(story.events[max(0, end - EVENTS_A_PAGE) : end])]
    return PullPage(
        record,
        pull_status(record, policy, now_us, story._replace(events=story.events[-_TELLING:])),
        drawn(life),
        life.spans,
        [_button(command, record) for command in COMMANDS],
        rows,
        skip + EVENTS_A_PAGE if end > EVENTS_A_PAGE else None,
        max(0, skip - EVENTS_A_PAGE) if skip else None,
        total,
        _next_us(record, policy),
    )


def _button(command: Command, record: PullRecord) -> Button:
    return Button(command, _ABOUT[command], refusal(command, record.state), command in _GRAVE)


def _next_us(record: PullRecord, policy: TowPolicy) -> int | None:
    if record.state in TERMINAL:
        return None
    if record.intent is not None:
        return record.intent.verify_by_us
    seconds = policy.of(record.ref.repo).thresholds.get(record.state)
    return None if seconds is None else record.since_us + round(seconds * 1e6)


def row_of(event: PullEvent) -> Row:
    payload = event.payload
    who = payload.get("requested_by") or payload.get("by") or payload.get("actor") or ""
    said = next(
        (
            str(payload[name])
            for name in ("anomaly", "reason", "detail", "command", "summary", "text", "evidence")
            if payload.get(name)
        ),
        "",
    )
    moved = ""
    if payload.get("from") and payload.get("to") and payload["from"] != payload["to"]:
        moved = f"{payload['from']} → {payload['to']}"
    outcome = str(payload.get("outcome") or "")
    parts = [part for part in (moved, outcome, said) if part]
    named = ", ".join(map(str, who)) if isinstance(who, list) else str(who)
    return Row(event, named, " · ".join(parts)[:400], _kind(event))


def _kind(event: PullEvent) -> str:
    if event.payload.get("anomaly"):
        return "alarm"
    if event.event_type.startswith("REMEDIATION_"):
        return "remedy"
    if event.event_type.startswith("COMMAND_"):
        return "command"
    return "alarm" if event.event_type.startswith("ESCALAT") else "plain"
