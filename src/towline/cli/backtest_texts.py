"""Two policies side by side, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from towline.core.backtest import MODEL, Comparison, Difference, Side, quantile
from towline.core.budgets import STRATEGIES

_SHOWN: Final = 20
_WIDE: Final = 160
"""Where no terminal says how wide it is."""


def console() -> Console:
    known = Console(highlight=False)
    return known if known.is_terminal else Console(highlight=False, width=_WIDE)


def show(comparison: Comparison, changes: Sequence[str], *, every: bool) -> None:
    out = console()
    out.print(Text("The other policy differs in:" if changes else _NO_CHANGE, style="bold"))
    for change in changes:
        out.print(Text(f"  {change}"))
    out.print()
    out.print(_sides(comparison))
    _differences(out, comparison, every=every)
    _foot(out, comparison)


_NO_CHANGE: Final = "The other policy differs in nothing that a replay can tell."


def _sides(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("as recorded", justify="right", no_wrap=True)
    table.add_column("under the other", justify="right", no_wrap=True)
    for row in _rows(comparison):
        table.add_row(*row)
    return table


def _rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    before, after = comparison.before, comparison.after
    low, high = comparison.escalated_range
    need = str(low) if low == high else f"{low} to {high}"
    there = str(comparison.pulls - comparison.absent)
    rows = [
        ("pull requests", str(comparison.pulls), there),
        ("merged", str(before.merged), _at_least(after.merged, comparison.unknown)),
        ("given to a person", str(before.escalated), need),
        ("  though they went on by themselves", str(before.premature), str(after.premature)),
        ("remedies made", str(before.remedies.total()), str(after.remedies.total())),
    ]
    rows += [
        (f"  {strategy}", str(before.remedies[strategy]), str(after.remedies[strategy]))
        for strategy in STRATEGIES
        if before.remedies[strategy] or after.remedies[strategy]
    ]
    rows.append(("  of them needless", str(before.needless), str(after.needless)))
    if before.in_vain or after.in_vain:
        rows.append(("  of them in vain", str(before.in_vain), str(after.in_vain)))
    paired = before.merge_seconds.total()
    for name, share in (("median", 0.5), ("90th percentile", 0.9)):
        title = f"time to merge, {name} of {paired}"
        times = (quantile(side.merge_seconds, share) for side in (before, after))
        rows.append((title, *map(_time, times)))  # type: ignore[arg-type]
    first = (quantile(side.first_seconds, 0.5) for side in (before, after))
    rows.append(("first help after, median", *map(_time, first)))  # type: ignore[arg-type]
    return rows


def _at_least(count: int, unknown: int) -> str:
    return f"{count} to {count + unknown}" if unknown else str(count)


def _differences(out: Console, comparison: Comparison, *, every: bool) -> None:
    if not comparison.differing:
        return
    out.print()
    out.print(Text(f"{comparison.differing} pull requests differ", style="bold"))
    shown = comparison.differences if every else _telling(comparison.differences)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("pull request", "ends", "first helped", "what differs", "why"):
        table.add_column(name, overflow="fold", no_wrap=name == "pull request")
    for one in shown:
        table.add_row(*_row(one))
    out.print(table)
    if len(shown) < comparison.differing:
        left = comparison.differing - len(shown)
        more = "" if every else ": --all shows them"
        out.print(Text(f"and {left} more{more}", style="dim"))


def _telling(differences: Sequence[Difference]) -> list[Difference]:
    """Those that end differently come first, then those whose help moved the most."""
    ordered = sorted(
        differences,
        key=lambda one: (one.state_before == one.state_after, -abs(_moved(one)), one.ref),
    )
    return ordered[:_SHOWN]


def _moved(one: Difference) -> int:
    if one.first_before_us is None or one.first_after_us is None:
        return 0
    return one.first_after_us - one.first_before_us


def _row(one: Difference) -> list[Text]:
    after = one.state_after or "not known"
    ends = one.state_before if one.state_before == after else f"{one.state_before} → {after}"
    style = "" if one.state_before == after else "yellow"
    first = f"{_clock(one.first_before_us)} → {_clock(one.first_after_us)}"
    if one.first_before_us == one.first_after_us:
        first = _clock(one.first_before_us)
    name = f"{one.ref.repo}#{one.ref.number}"
    return [Text(name), Text(ends, style=style), Text(first), Text(one.what), Text(one.why)]


def _foot(out: Console, comparison: Comparison) -> None:
    out.print()
    faithful = comparison.faithful
    style = "green" if faithful == comparison.pulls else "bold red"
    out.print(Text(f"replayed faithfully: {faithful} of {comparison.pulls}", style=style))
    for ref in comparison.unfaithful[:5]:
        out.print(Text(f"  not {ref.repo}#{ref.number}"))
    for line in _notes(comparison):
        out.print(Text(line, style="dim"), soft_wrap=True)
    out.print(Text("How it is told:", style="dim"))
    for line in MODEL:
        out.print(Text(f"  {line}", style="dim"), soft_wrap=True)


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    if comparison.unknown:
        told = comparison.unknown - comparison.untold
        notes.append(
            f"not known: {comparison.unknown} would get a remedy that was never tried there; by"
            f" what such remedies did, {comparison.expected:.1f} of {told} would need no person"
        )
    if comparison.untold:
        notes.append(f"of {comparison.untold} too few such remedies were made to expect anything")
    if comparison.held:
        notes.append(
            f"held back: {comparison.held} times a sweep did not get to one that was due"
            " (a breaker, an outage, a full sweep): it does not under the other policy either"
        )
    if comparison.unread:
        notes.append(f"left out: {comparison.unread}, as their logs do not begin with the opening")
    return notes


# ---------------------------------------------------------------------- for programs


def as_json(comparison: Comparison, changes: Sequence[str]) -> dict[str, Any]:
    low, high = comparison.escalated_range
    return {
        "changes": list(changes),
        "pulls": comparison.pulls,
        "replayed_faithfully": comparison.faithful,
        "unfaithful": [f"{ref.repo}#{ref.number}" for ref in comparison.unfaithful],
        "left_out": comparison.unread,
        "held_back": comparison.held,
        "before": _side(comparison.before),
        "after": {
            **_side(comparison.after),
            "interventions_range": [low, high],
            "would_not_exist": comparison.absent,
            "unknown": comparison.unknown,
            "unknown_without_experience": comparison.untold,
            "unknown_expected_to_heal": round(comparison.expected, 3),
        },
        "differing": comparison.differing,
        "differences": [_difference(one) for one in comparison.differences],
        "model": list(MODEL),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "merged": side.merged,
        "interventions": side.escalated,
        "premature_interventions": side.premature,
        "actions": side.remedies.total(),
        "actions_by_remedy": dict(side.remedies),
        "needless_actions": side.needless,
        "actions_in_vain": side.in_vain,
        "merged_by_both": side.merge_seconds.total(),
        "time_to_merge_seconds": {
            "p50": quantile(side.merge_seconds, 0.5),
            "p90": quantile(side.merge_seconds, 0.9),
        },
        "first_help_seconds": {"p50": quantile(side.first_seconds, 0.5)},
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "repo": one.ref.repo,
        "number": one.ref.number,
        "what": one.what,
        "why": one.why,
        "state_before": one.state_before,
        "state_after": one.state_after,
        "first_help_before": _moment(one.first_before_us),
        "first_help_after": _moment(one.first_after_us),
        "merge_seconds_before": _seconds(one.merged_before_us),
        "merge_seconds_after": _seconds(one.merged_after_us),
    }


def _seconds(us: int | None) -> float | None:
    return None if us is None else round(us / 1e6, 3)


def _moment(us: int | None) -> str | None:
    return None if us is None else datetime.fromtimestamp(us / 1e6, UTC).isoformat()


def _clock(us: int | None) -> str:
    return "never" if us is None else datetime.fromtimestamp(us / 1e6, UTC).strftime("%d %H:%M")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
