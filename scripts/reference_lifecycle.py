"""The tables and the picture of the lifecycle page, from the tables of `core`."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape

from scripts.reference_tables import table
from towline.pulls.budgets import _RESET_BY, LIFETIME_FACTOR, MAX_TRIES, STRATEGIES
from towline.pulls.command_rules import ALLOWED_IN
from towline.pulls.lifecycle import (
    LATER_CHECKS,
    PAST_CHECKS,
    STATES,
    TERMINAL,
    TRANSITIONS,
    WAITING_FOR,
    State,
)
from towline.pulls.staleness import THRESHOLD_SECONDS
from towline.slash_commands import COMMANDS

_LIVE: Final = tuple(state for state in STATES if state not in TERMINAL)


def states() -> str:
    rows = [(f"`{state}`", WAITING_FOR[state], _stale_after(state)) for state in STATES]
    return table(("state", "waits for", "stale after"), rows)


def _stale_after(state: State) -> str:
    seconds = THRESHOLD_SECONDS.get(state)
    if seconds is None:
        return "never: it has ended" if state in TERMINAL else "never"
    return f"{seconds / 60:g} min"


def transitions() -> str:
    """Moves of one state each; those that every live state has are told once."""
    shared = {
        (step.happening, step.target)
        for step in TRANSITIONS.values()
        if all((state, step.happening) in TRANSITIONS for state in _LIVE)
    }
    rows = [
        (f"`{step.source}`", f"`{step.happening}`", f"`{step.target}`", step.trigger)
        for step in TRANSITIONS.values()
        if (step.happening, step.target) not in shared and step not in LATER_CHECKS
    ]
    later = ", ".join(f"`{state}`" for state in PAST_CHECKS)
    for happening, target, trigger in dict.fromkeys(step[1:] for step in LATER_CHECKS):
        rows.append((later, f"`{happening}`", f"`{target}`", f"{trigger} on the same head"))
    for happening, target in sorted(shared):
        step = TRANSITIONS["CREATED", happening]
        rows.append(("every live state", f"`{happening}`", f"`{target}`", step.trigger))
    return table(("from", "event", "to", "when"), rows)


def budgets() -> str:
    rows = []
    for strategy in STRATEGIES:
        resets = sorted(_RESET_BY[strategy], key=STATES.index)
        shown = ", ".join(f"`{state}`" for state in resets) or "nothing"
        most = MAX_TRIES[strategy]
        rows.append((f"`{strategy}`", str(most), str(most * LIFETIME_FACTOR), shown))
    return table(("remedy", "tries", "in its life", "starts anew when it is seen in"), rows)


def commands_by_state() -> str:
    heads = ("command", *(state.lower().replace("_", " ") for state in _LIVE))
    rows = [
        (f"`{command}`", *("yes" if state in ALLOWED_IN[command] else "" for state in _LIVE))
        for command in COMMANDS
    ]
    return table(heads, rows)


_WIDTH: Final = 158
_HEIGHT: Final = 40
_PLACES: Final[dict[State, tuple[int, int]]] = {
    "CLOSED": (20, 20),
    "CHECKS_FAILED": (240, 20),
    "NEEDS_INTERVENTION": (460, 20),
    "POLICY_FAILED": (680, 20),
    "CREATED": (20, 120),
    "CHECKS_RUNNING": (240, 120),
    "CHECKS_PASSED": (460, 120),
    "POLICY_EVALUATING": (680, 120),
    "POLICY_PASSED": (680, 220),
    "APPROVED": (460, 220),
    "MERGING": (240, 220),
    "MERGED": (20, 220),
}
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2937}"
    "rect{fill:#e8eef4;stroke:#4b6478;rx:8}"
    ".end{fill:#d9ead3}.person{fill:#f6dfc8}"
    "path{fill:none;stroke:#4b6478;stroke-width:1.4;marker-end:url(#tip)}"
)
_HEAD: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 370" role="img" '
    'aria-label="The states of a pull request and the moves between them">'
)
_TIP: Final = (
    '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4.5" orient="auto">'
    '<path d="M0 0L9 4.5L0 9z" style="fill:#4b6478;stroke:none;marker-end:none"/></marker></defs>'
)


def picture() -> str:
    """The moves of one state each as arrows; what every live state can do is written below."""
    arrows = sorted({(step.source, step.target) for step in TRANSITIONS.values() if _drawn(step)})
    lines = [
        _HEAD,
        f"<style>{_STYLE}</style>",
        _TIP,
        '<rect width="860" height="370" style="fill:#fff;stroke:none;rx:0"/>',
        *(_arrow(source, target) for source, target in arrows),
        *(_box(state) for state in STATES),
        _words(290, "From every live state: new commits lead to CHECKS_RUNNING,"),
        _words(310, "a merge to MERGED, a close to CLOSED, spent budgets to NEEDS_INTERVENTION."),
        _words(
            330, "From CHECKS_PASSED, the policy states and APPROVED: a later check of the same"
        ),
        _words(350, "head leads back to CHECKS_RUNNING, or to CHECKS_FAILED if it fails."),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(step: tuple[State, str, State, str]) -> bool:
    source, happening, target, _ = step
    everywhere = all((state, happening) in TRANSITIONS for state in _LIVE)
    if source == target or step in LATER_CHECKS:
        return False
    return not everywhere or (source, target) == ("MERGING", "MERGED")


def _box(state: State) -> str:
    x, y = _PLACES[state]
    kind = "person" if state == "NEEDS_INTERVENTION" else "end" if state in TERMINAL else "live"
    middle = x + _WIDTH / 2
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
        f'<text x="{middle:g}" y="{y + 25}" text-anchor="middle">{escape(state)}</text>'
    )


def _arrow(source: State, target: State) -> str:
    """From edge to edge; a move down goes to the right of the way back up."""
    (from_x, from_y), (to_x, to_y) = _PLACES[source], _PLACES[target]
    if from_y == to_y:
        forward = to_x > from_x
        start = (from_x + (_WIDTH if forward else 0.0), from_y + _HEIGHT / 2)
        end = (to_x + (0.0 if forward else _WIDTH), to_y + _HEIGHT / 2)
    else:
        down = to_y > from_y
        lane = _WIDTH / 2 + (24 if down else -24)
        start = (from_x + lane, from_y + (_HEIGHT if down else 0))
        end = (to_x + lane, to_y + (0 if down else _HEIGHT))
    return f'<path d="M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}"/>'


def _words(y: int, text: str) -> str:
    return f'<text x="20" y="{y}">{escape(text)}</text>'
