"""Why each decision on a pull request was taken, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console
from rich.text import Text

from towline.cli.listing import clean, terminal
from towline.cli.pull_texts import head, is_observed, line, show_event, why
from towline.core.explaining import Note, budget_told, lateness, spoken

if TYPE_CHECKING:
    from towline.web.pull_models import EventOut
    from towline.web.pull_status import PullStatus

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
