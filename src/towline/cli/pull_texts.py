"""Pull requests as text for people; what comes from outside is shown, and never obeyed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from towline.web.pull_models import EventOut, PullStatus

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
_LONGEST: Final = 300
_EVENTS_SHOWN: Final = 15


def show_fleet(found: Mapping[str, Any]) -> None:
    console = _console()
    items: Sequence[Mapping[str, Any]] = found["items"]
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("pull request", "state", "for"):
            table.add_column(name, no_wrap=True)
        for name in ("waiting for", "title"):
            table.add_column(name, overflow="fold")
        for item in items:
            table.add_row(*_row(item))
        console.print(table)
    else:
        for item in items:
            console.print(Text("  ").join(_row(item)), soft_wrap=True)
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items() if count)
    more = "; more follow: use --limit" if found["next"] is not None else ""
    print(f"{counts or 'nothing is towed'}{more}", file=sys.stderr)


def show_pull(status: PullStatus) -> None:
    console = _console()
    _head(console, status)
    used = {name: tries for name, tries in status.retry_counts.items() if tries.used}
    shown = ", ".join(f"{name} {tries.used}/{tries.max}" for name, tries in used.items())
    _line(console, "tries used", shown or "none")
    left_out = len(status.events) - _EVENTS_SHOWN
    if left_out > 0:
        _line(console, "log", f"{left_out} earlier events: towline pr --json shows all")
    _events(console, status.events[-_EVENTS_SHOWN:])


def show_explanation(status: PullStatus) -> None:
    console = _console()
    _head(console, status)
    console.print()
    _events(console, status.events)
    decided = status.last_decision
    if decided:
        console.print()
        _line(console, "last decision", f"{decided.get('next_action')}: {decided.get('outcome')}")
    _next(console, status)


def show_decisions(decisions: Sequence[Mapping[str, Any]]) -> None:
    console = _console()
    for one in decisions:
        told = Text.assemble(
            (_clean(one["pr"]), "bold"), "  ", _state(one["state"]), "  ",
            (_clean(one["action"]), "yellow"), f"  {_clean(one['outcome'])}",
            (f"  {_clean(one['rule'])}: {_clean(one['reason'])}", "dim"),
        )  # fmt: skip
        console.print(told, soft_wrap=True)


def explained(status: PullStatus) -> dict[str, Any]:
    """The same for programs."""
    whole = status.model_dump(mode="json")
    story = [
        {**event, "why": _why(event["payload"]), "observed": _is_observed(event["event_type"])}
        for event in whole["events"]
    ]
    names = ("repo", "number", "state", "substatus", "waiting_for", "stale")
    return {
        **{name: whole[name] for name in names},
        "diagnosis": whole["diagnosis"],
        "last_decision": whole["last_decision"],
        "retry_counts": whole["retry_counts"],
        "story": story,
    }


def _head(console: Console, status: PullStatus) -> None:
    console.print(
        Text.assemble(
            (f"{status.repo}#{status.number}", "bold"), "  ", _state(status.state), "  ",
            _clean(status.title),
        ),
        soft_wrap=True,
    )  # fmt: skip
    detail = f" ({_clean(status.substatus)})" if status.substatus else ""
    late = ", and is stale" if status.stale else ""
    age = _age(status.last_event_timestamp)
    _line(console, "waits for", f"{status.waiting_for}{detail}, for {age}{late}")
    _line(console, "branch", f"{status.branch} → {status.base}, head {(status.head or '')[:12]}")
    if status.vulnerability_id:
        _line(console, "fixes", status.vulnerability_id)
    for name, number in (("replaces", status.replaces), ("replaced by", status.replaced_by)):
        if number is not None:
            _line(console, name, f"{status.repo}#{number}")
    if status.url:
        _line(console, "at", status.url)
    diagnosis = status.diagnosis
    if diagnosis is not None:
        _line(console, "diagnosis", f"{diagnosis.get('rule')}: {diagnosis.get('reason')}")
        if diagnosis.get("evidence"):
            _line(console, "evidence", diagnosis["evidence"])


def _next(console: Console, status: PullStatus) -> None:
    diagnosis = status.diagnosis
    if diagnosis is None:
        _line(console, "next", "nothing: its life has ended")
        return
    left = diagnosis.get("budget_left")
    tries = f", {left} tries left" if left is not None else ""
    _line(console, "next", f"{diagnosis.get('next_action')}{tries}")
    otherwise = diagnosis.get("otherwise")
    if otherwise:
        _line(console, "otherwise", f"{otherwise.get('action')}: {otherwise.get('reason')}")


def _events(console: Console, events: Sequence[EventOut]) -> None:
    """What said nothing new is only counted."""
    news = [event for event in events if not event.payload.get("repeated")]
    for event in news:
        _event(console, event)
    if len(news) < len(events):
        _line(console, "left out", f"{len(events) - len(news)} that only repeated")


def _event(console: Console, event: EventOut) -> None:
    style = "" if _is_observed(event.event_type) else "yellow"
    if event.payload.get("anomaly"):
        style = "red"
    why = _why(event.payload)
    told = Text.assemble(
        (event.at.strftime("%Y-%m-%d %H:%M:%S"), "dim"), "  ", (_clean(event.event_type), style),
        (f"  {_clean(event.source)}", "dim"), f"  {_clean(why)}" if why else "",
    )  # fmt: skip
    console.print(told, soft_wrap=True)


def _why(payload: Mapping[str, Any]) -> str:
    """What an event did, and for which reason, as far as it tells."""
    anomaly = payload.get("anomaly")
    if anomaly:
        said = f": {anomaly}" if isinstance(anomaly, str) else ""
        return f"not believed, as it does not fit{said}"
    told = list(dict.fromkeys(str(payload[name]) for name in _WHY if payload.get(name)))
    rule = payload.get("rule")
    if rule:
        told = [f"{rule}: {'; '.join(told)}" if told else str(rule)]
    before, after = payload.get("from"), payload.get("to")
    if before and after and before != after:
        told.insert(0, f"{before} → {after}")
    if payload.get("check"):
        told.append(f"{payload['check']}: {payload.get('conclusion')}")
    by = payload.get("by") or payload.get("requested_by")
    if isinstance(by, list):
        by = ", ".join(map(str, by))
    return f"{'; '.join(told)} (by {by})".lstrip() if by else "; ".join(told)


def _is_observed(event_type: str) -> bool:
    """Whether the world did it, or we."""
    ours = ("REMEDIATION_", "ESCALAT", "COMMAND_", "STATE_DRIFT")
    return not event_type.startswith(ours)


def _row(item: Mapping[str, Any]) -> list[Text]:
    since = datetime.fromisoformat(item["last_event_timestamp"])
    age = Text(_age(since), style="bold yellow" if item["stale"] else "")
    diagnosis = item["diagnosis"] or {}
    waits = diagnosis.get("rule") or item["waiting_for"]
    return [
        Text(f"{item['repo']}#{item['number']}"),
        _state(item["state"]),
        age,
        Text(_clean(waits)),
        Text(_clean(item["title"])),
    ]


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))


def _line(console: Console, name: str, value: object) -> None:
    told = Text.assemble((f"{name:>13}  ", "dim"), _clean(value))
    console.print(told, soft_wrap=True)


def _clean(value: object) -> str:
    """On one line, and without a letter that a terminal would act upon."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _age(since: datetime) -> str:
    minutes = max(0, int((datetime.now(UTC) - since).total_seconds() // 60))
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def _console() -> Console:
    return Console(highlight=False)
