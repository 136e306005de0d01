"""Pull requests as text for people; what comes from outside is shown, and never obeyed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from towline.cli.listing import Column, clean, coloured, show_rows, terminal
from towline.history.explain import Note, budget_told, lateness, spoken

if TYPE_CHECKING:
    from towline.pulls.http_models import EventOut
    from towline.reconciler.status import PullStatus


_COLOURS: Final = {
    "MERGED": "green",
    "CLOSED": "dim",
    "NEEDS_INTERVENTION": "bold red",
    "CHECKS_FAILED": "red",
    "POLICY_FAILED": "red",
    "CHECKS_PASSED": "cyan",
    "POLICY_PASSED": "cyan",
    "APPROVED": "cyan",
}
_WHY: Final = ("reason", "detail", "says", "summary", "evidence", "command", "outcome")
_ENDED: Final = ("MERGED", "CLOSED")
_EVENTS_SHOWN: Final = 15
_FLEET: Final = (
    Column("pull request"),
    Column("state"),
    Column("for"),
    Column("waiting for", folds=True),
    Column("title", folds=True),
)
_DECISIONS: Final = (
    Column("pull request"),
    Column("state"),
    Column("action"),
    Column("outcome", folds=True),
    Column("why", folds=True),
)


def show_fleet(found: Mapping[str, Any]) -> None:
    show_rows(_FLEET, map(_row, found["items"]))
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items() if count)
    more = "; more follow: use --limit" if found["next"] is not None else ""
    print(f"{counts or 'nothing is towed'}{more}", file=sys.stderr)


def show_pull(status: PullStatus) -> None:
    console = terminal()
    head(console, status)
    used = {name: tries for name, tries in status.retry_counts.items() if tries.used}
    shown = ", ".join(f"{name} {tries.used}/{tries.max}" for name, tries in used.items())
    line(console, "tries used", shown or "none")
    left_out = len(status.events) - _EVENTS_SHOWN
    if left_out > 0:
        line(console, "log", f"{left_out} earlier events: towline pr --json shows all")
    _events(console, status.events[-_EVENTS_SHOWN:])


def show_decisions(decisions: Sequence[Mapping[str, Any]]) -> None:
    show_rows(_DECISIONS, map(_decision, decisions))


def _decision(one: Mapping[str, Any]) -> list[Text]:
    return [
        Text(clean(one["pr"]), style="bold"),
        _state(one["state"]),
        Text(clean(one["action"]), style="yellow"),
        Text(clean(one["outcome"])),
        Text(f"{clean(one['rule'])}: {clean(one['reason'])}", style="dim"),
    ]


def head(console: Console, status: PullStatus) -> None:
    console.print(
        Text.assemble(
            (f"{status.repo}#{status.number}", "bold"), "  ", _state(status.state), "  ",
            clean(status.title),
        ),
        soft_wrap=True,
    )  # fmt: skip
    detail = f" ({clean(status.substatus)})" if status.substatus else ""
    late = ", and is stale" if status.stale else ""
    since = age(status.last_event_timestamp)
    waited = f"since {since} ago" if status.state in _ENDED else f"for {since}"
    line(console, "waits for", f"{status.waiting_for}{detail}, {waited}{late}")
    line(console, "branch", f"{status.branch} → {status.base}, head {(status.head or '')[:12]}")
    if status.vulnerability_id:
        line(console, "fixes", status.vulnerability_id)
    for name, number in (("replaces", status.replaces), ("replaced by", status.replaced_by)):
        if number is not None:
            line(console, name, f"{status.repo}#{number}")
    if status.url:
        line(console, "at", status.url)
    diagnosis = status.diagnosis
    if diagnosis is not None:
        line(console, "diagnosis", f"{diagnosis.get('rule')}: {diagnosis.get('reason')}")
        if diagnosis.get("evidence"):
            line(console, "evidence", diagnosis["evidence"])


def _events(console: Console, events: Sequence[EventOut]) -> None:
    """What said nothing new is only counted."""
    news = [event for event in events if not event.payload.get("repeated")]
    for event in news:
        show_event(console, event)
    if len(news) < len(events):
        line(console, "left out", f"{len(events) - len(news)} that only repeated")


def show_event(console: Console, event: EventOut) -> None:
    style = "" if is_observed(event.event_type) else "yellow"
    if event.payload.get("anomaly"):
        style = "red"
    reasons = why(event.payload)
    told = Text.assemble(
        (event.at.strftime("%Y-%m-%d %H:%M:%S"), "dim"), "  ", (clean(event.event_type), style),
        (f"  {clean(event.source)}", "dim"), f"  {clean(reasons)}" if reasons else "",
    )  # fmt: skip
    console.print(told, soft_wrap=True)


def why(payload: Mapping[str, Any]) -> str:
    """What an event did, and for which reason, as far as it tells."""
    anomaly = payload.get("anomaly")
    if anomaly:
        said = f": {anomaly}" if isinstance(anomaly, str) else ""
        return f"not believed, as it does not fit{said}"
    told = list(dict.fromkeys(str(payload[name]) for name in _WHY if payload.get(name)))
    rule = payload.get("rule")
    if rule:
        told = [f"{rule}: {'; '.join(told)}" if told else str(rule)]
    before = payload.get("from") or payload.get("table")
    after = payload.get("to") or payload.get("actual")
    if before and after and before != after:
        told.insert(0, f"{before} → {after}")
    if payload.get("check"):
        told.append(f"{payload['check']}: {payload.get('conclusion')}")
    by = payload.get("by") or payload.get("requested_by")
    if isinstance(by, list):
        by = ", ".join(map(str, by))
    return f"{'; '.join(told)} (by {by})".lstrip() if by else "; ".join(told)


def is_observed(event_type: str) -> bool:
    """Whether the world did it, or we."""
    ours = ("REMEDIATION_", "ESCALAT", "COMMAND_", "STATE_DRIFT")
    return not event_type.startswith(ours)


def _row(item: Mapping[str, Any]) -> list[Text]:
    since = datetime.fromisoformat(item["last_event_timestamp"])
    waited = Text(age(since), style="bold yellow" if item["stale"] else "")
    diagnosis = item["diagnosis"] or {}
    waits = diagnosis.get("rule") or item["waiting_for"]
    return [
        Text(f"{item['repo']}#{item['number']}"),
        _state(item["state"]),
        waited,
        Text(clean(waits)),
        Text(clean(item["title"])),
    ]


def _state(state: str) -> Text:
    return coloured(state, _COLOURS)


def line(console: Console, name: str, value: object) -> None:
    told = Text.assemble((f"{name:>13}  ", "dim"), clean(value))
    console.print(told, soft_wrap=True)


def age(since: datetime) -> str:
    minutes = max(0, int((datetime.now(UTC) - since).total_seconds() // 60))
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


# ------------------------------------------------------------------ explanations
# Why each decision on a pull request was taken, for people and for programs.

_INDENT: Final = " " * 21
_BY_SOMEBODY: Final = ("PR_OPENED", "PR_CLOSED", "PR_MERGED", "MERGE_SUCCEEDED", "BRANCH_UPDATED")


class Told(NamedTuple):
    """A pull request, a note on each line of its log, and when something is decided next."""

    status: PullStatus
    notes: Sequence[Note]
    when: str


def show_explanation(told: Told) -> None:
    console, status = terminal(), told.status
    head(console, status)
    console.print()
    repeated = 0
    for event, note in zip(status.events, told.notes, strict=True):
        if event.payload.get("repeated"):
            repeated += 1
            continue
        show_event(console, event)
        for said in details(event, note):
            console.print(Text(f"{_INDENT}{clean(said)}", style="dim"), soft_wrap=True)
    if repeated:
        line(console, "left out", f"{repeated} that only repeated")
    console.print()
    _sum(console, told)
    _next(console, told)


def details(event: EventOut, note: Note) -> list[str]:
    """What the line itself does not say: who, how long it had waited, its cost, its outcome."""
    who = event.payload.get("actor") or event.payload.get("author")
    said = [f"by {who}"] if who and event.event_type in _BY_SOMEBODY else []
    if note.waited is not None and note.state is not None:
        stale = "" if note.patience is None else f", which is stale after {spoken(note.patience)}"
        said += [f"after {spoken(note.waited)} in {note.state}{stale}", lateness(note)]
    if budget := budget_told(note):
        said.append(f"budget of {note.strategy}: {budget}")
    if note.came_of_it and note.after is not None:
        said.append(f"came of it after {spoken(note.after)}: {note.came_of_it}")
    return [one for one in said if one]


def _sum(console: Console, told: Told) -> None:
    status = told.status
    events = [event.event_type for event in status.events]
    remedies = sum(note.waited is not None and note.strategy is not None for note in told.notes)
    people = events.count("ESCALATED_NEEDS_INTERVENTION")
    drifts = events.count("STATE_DRIFT_CORRECTED")
    odd = sum(bool(event.payload.get("anomaly")) for event in status.events)
    counted = (
        ("remedies tried", remedies), ("missed events found", drifts),
        ("given to a person", people), ("not believed", odd),
    )  # fmt: skip
    told_of = ", ".join(f"{what}: {count}" for what, count in counted if count)
    if told_of:
        line(console, "in sum", told_of)
    if status.state == "MERGED":
        took = (status.last_event_timestamp - status.created_at).total_seconds()
        by_itself = "" if remedies or people else ", without any help"
        line(console, "merged", f"{spoken(took)} after it was first seen{by_itself}")
    decided = status.last_decision
    if decided:
        line(console, "last decision", f"{decided.get('next_action')}: {decided.get('outcome')}")


def _next(console: Console, told: Told) -> None:
    diagnosis = told.status.diagnosis
    if diagnosis is None:
        line(console, "next", "nothing: its life has ended")
        return
    left = diagnosis.get("budget_left")
    tries = f", {left} tries left" if left is not None else ""
    line(console, "next", f"{diagnosis.get('next_action')}{tries}")
    if told.when:
        line(console, "when", told.when)
    otherwise = diagnosis.get("otherwise")
    if otherwise:
        line(console, "otherwise", f"{otherwise.get('action')}: {otherwise.get('reason')}")


def explained(told: Told) -> dict[str, Any]:
    """The same for programs."""
    whole = told.status.model_dump(mode="json")
    story = [
        {
            **event,
            "why": why(event["payload"]),
            "observed": is_observed(event["event_type"]),
            "note": {
                name: value for name, value in asdict(note).items() if value not in (None, "")
            },
        }
        for event, note in zip(whole["events"], told.notes, strict=True)
    ]
    names = ("repo", "number", "state", "substatus", "waiting_for", "stale")
    return {
        **{name: whole[name] for name in names},
        "diagnosis": whole["diagnosis"],
        "when": told.when or None,
        "last_decision": whole["last_decision"],
        "retry_counts": whole["retry_counts"],
        "story": story,
    }
