"""What a person is told when nothing bounded is left to try, and what `/why` answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from towline.pulls.lifecycle import WAITING_FOR
from towline.pulls.model import PullEvent, PullRecord
from towline.remediation.strategies import OUTCOME

SENT: Final = "ESCALATION_SENT"
ESCALATED: Final = "ESCALATED_NEEDS_INTERVENTION"
_MOST_EVENTS: Final = 20
_LONGEST_CELL: Final = 200


class Notice(NamedTuple):
    title: str
    text: str


class Attempt(NamedTuple):
    """A remedy that was tried; `outcome` is that of its last word."""

    event_type: str
    at_us: int
    by: str
    outcome: str
    detail: str


def attempts_of(events: Sequence[PullEvent]) -> list[Attempt]:
    outcomes = {
        str(event.payload.get("intent")): event for event in events if event.event_type == OUTCOME
    }
    attempts = []
    for event in events:
        if not event.event_type.startswith("REMEDIATION_") or event.event_type == OUTCOME:
            continue
        ended = outcomes.get(str(event.payload.get("intent")))
        told: Mapping[str, object] = ended.payload if ended is not None else {}
        attempts.append(
            Attempt(
                event.event_type,
                event.at_us,
                str(event.payload.get("by", event.source)),
                str(told.get("outcome", "not known yet")),
                str(told.get("detail", "")),
            )
        )
    return attempts


def escalation(record: PullRecord, events: Sequence[PullEvent]) -> Notice:
    """Link, repository, vulnerability, reason, all attempts with outcomes, and the history."""
    escalated = next((event for event in reversed(events) if event.event_type == ESCALATED), None)
    told: Mapping[str, object] = escalated.payload if escalated is not None else {}
    reason = told.get("reason") or "a person is needed"
    lines = [
        f"Pull request: {record.url or record.ref}",
        f"Title: {_plain(record.title)}",
        f"Repository: {record.ref.repo}",
        f"Vulnerability: {record.vulnerability_id or 'not known'}",
        f"Was in: {told.get('from') or record.state}",
        f"Reason: {_plain(str(reason))}",
    ]
    if told.get("evidence"):
        lines.append(f"Evidence: {_plain(str(told['evidence']))}")
    lines += ["", "Attempts:", *(_attempt_lines(events) or ["- none"])]
    lines += ["", "History:", *timeline(events)]
    lines += ["", "A push, a merge, a close or a command such as /rebuild takes it from here."]
    return Notice(f"{record.ref} needs a person: {_plain(str(reason))[:120]}", "\n".join(lines))


def breaker_notice(name: str, failure_rate: float) -> Notice:
    text = f"Circuit breaker tripped — {failure_rate:.0%} failure rate"
    more = f"{text}\nBreaker: {name}\nRemediation is paused until a probe succeeds or it is reset."
    return Notice(text, more)


def nobody_reopens(record: PullRecord) -> Notice:
    """It was closed for a fresh one, and the fix pipeline is not set up to open that."""
    text = f"{record.ref} was closed for a fresh one, and needs a person to open it"
    lines = [
        f"Pull request: {record.url or record.ref}",
        f"Title: {_plain(record.title)}",
        f"Vulnerability: {record.vulnerability_id or 'not known'}",
        f"Reason: it conflicts, and {record.ref.repo} is not in fix.repos.",
        "",
        "Open a pull request by hand, and add the repository there for the next time.",
    ]
    return Notice(text, "\n".join(lines))


def why(record: PullRecord, events: Sequence[PullEvent]) -> str:
    """The answer to `/why`: the diagnosis and a short timeline."""
    diagnosis = record.diagnosis or {}
    lines = [f"**{record.state}**" + (f" ({record.substatus})" if record.substatus else "")]
    lines.append(f"It waits for {WAITING_FOR[record.state]}.")
    if diagnosis:
        lines.append(f"Diagnosis: `{diagnosis.get('rule')}`: {_plain(_text(diagnosis, 'reason'))}.")
        if diagnosis.get("evidence"):
            lines.append(f"Evidence: `{_plain(_text(diagnosis, 'evidence'))}`")
        lines.append(f"Next action: {_text(diagnosis, 'next_action')}.")
        if diagnosis.get("budget_left") is not None:
            lines.append(f"Tries left: {diagnosis['budget_left']}.")
    else:
        lines.append("Nothing is known to be wrong with it.")
    if record.intent is not None:
        lines.append(f"Under way: {record.intent.strategy}.")
    return "\n".join([*lines, "", "Timeline:", *timeline(events)])


def timeline(events: Sequence[PullEvent]) -> list[str]:
    """The newest events, oldest first."""
    left_out = len(events) - _MOST_EVENTS
    shown = [f"- ({left_out} earlier)"] if left_out > 0 else []
    return shown + [_line(event) for event in events[-_MOST_EVENTS:]]


def _attempt_lines(events: Sequence[PullEvent]) -> list[str]:
    return [
        f"- {_when(one.at_us)} {one.event_type} by {one.by}: {one.outcome}"
        + (f" ({_plain(one.detail)})" if one.detail else "")
        for one in attempts_of(events)
    ]


def _line(event: PullEvent) -> str:
    said = next(
        (
            str(event.payload[name])
            for name in ("reason", "detail", "says", "summary", "command", "action")
            if event.payload.get(name)
        ),
        "",
    )
    more = f": {_plain(said)}" if said else ""
    return f"- {_when(event.at_us)} {event.event_type} ({event.source}){more}"


def _text(mapping: Mapping[str, object], name: str) -> str:
    value = mapping.get(name)
    return "" if value is None else str(value)


def _plain(text: str) -> str:
    """On one line, and unable to mention anybody or to end a code span."""
    flat = " ".join(text.split()).replace("`", "'").replace("@", "@\u200b")
    return flat if len(flat) <= _LONGEST_CELL else f"{flat[: _LONGEST_CELL - 1]}…"


def _when(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
