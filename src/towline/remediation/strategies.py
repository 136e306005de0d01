"""The remedies as a table: who is poked, what is hoped for, and how the effect is told.

A remedy's effect is that something which it is meant to change has changed. What that is has a
trace, a short text; the trace before the action is kept with the intent, and another trace later
is the effect, however often the process died in between.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from towline.events import PASSING
from towline.pulls.budgets import Strategy
from towline.pulls.facts import Facts, counted, matches
from towline.pulls.lifecycle import State
from towline.pulls.signals import Poked, Signals, Trigger

CLOSING_TEXT: Final = "Closing due to merge conflicts. A new PR will be created automatically."
_NOBODY: Final = (
    "The fix pipeline would open it, but it is not set up for {repo} (`fix.repos`): "
    "please open it by hand."
)
EMPTY_COMMIT_TEXT: Final = "Run the checks again"


def closing_text(repo: str, opens_anew: bool) -> str:
    return CLOSING_TEXT if opens_anew else f"{CLOSING_TEXT}\n\n{_NOBODY.format(repo=repo)}"


class Remedy(NamedTuple):
    """`target` is the state that is hoped for, until an event tells more."""

    strategy: Strategy
    event_type: str
    poked: Poked | None
    target: State


REMEDIES: Final[Mapping[Strategy, Remedy]] = {
    remedy.strategy: remedy
    for remedy in (
        Remedy("branch_update", "REMEDIATION_BRANCH_UPDATE", None, "CHECKS_RUNNING"),
        Remedy("rebuild", "REMEDIATION_REBUILD", "rebuild", "CHECKS_RUNNING"),
        Remedy(
            "retrigger_policy_bot", "REMEDIATION_RETRIGGER_POLICY", "policy", "POLICY_EVALUATING"
        ),
        Remedy("retrigger_sod_check", "REMEDIATION_RETRIGGER_SOD", "sod", "POLICY_EVALUATING"),
        Remedy(
            "retrigger_approver_bot", "REMEDIATION_RETRIGGER_APPROVER", "approver", "POLICY_PASSED"
        ),
        Remedy("retrigger_automerge_bot", "REMEDIATION_RETRIGGER_MERGE", "merge", "MERGING"),
        Remedy("close_and_reopen", "REMEDIATION_CLOSE_AND_REOPEN", None, "CLOSED"),
    )
}
OUTCOME: Final = "REMEDIATION_OUTCOME"
"""The type of the event that tells what came of a remedy."""


def running(facts: Facts, signals: Signals, stuck_before: float = 0.0) -> list[str]:
    """CI's checks that run; one that was last heard of before `stuck_before` does not any more."""
    return sorted(
        name
        for name, check in counted(facts, signals).items()
        if check.status != "completed" and (check.at is None or check.at >= stuck_before)
    )


def needless(
    strategy: Strategy, facts: Facts, signals: Signals, stuck_before: float = 0.0
) -> str | None:
    """Why nothing has to be done, as the effect is there already; None if something has."""
    if facts.condition != "open":
        return f"it is {facts.condition} already"
    if strategy == "rebuild" and (names := running(facts, signals, stuck_before)):
        return f"checks are running: {', '.join(names[:5])}"
    if strategy == "branch_update" and facts.behind is False and facts.conflicts is not True:
        return "its branch is up to date"
    if strategy == "retrigger_approver_bot" and facts.approved_by:
        return f"it is approved by {', '.join(facts.approved_by)}"
    return None


def trace(strategy: Strategy, facts: Facts) -> str:
    """What the effect would change, as it stands."""
    seen: list[object] = [facts.condition, facts.head_sha]
    if strategy == "rebuild":
        seen += sorted(
            repr((name, check.status, check.attempt, check.run_id, _time(check.kind, check.at)))
            for name, check in facts.checks.items()
        )
    elif strategy in ("retrigger_policy_bot", "retrigger_sod_check"):
        seen += [facts.policy, facts.policy_substatus, facts.policy_says]
        seen += sorted(
            repr((name, check.status, check.conclusion, check.attempt, check.run_id, check.at))
            for name, check in facts.policy_checks.items()
        )
    elif strategy == "retrigger_approver_bot":
        seen += sorted(facts.approved_by)
    elif strategy == "retrigger_automerge_bot":
        seen.append(facts.merging)
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:24]


class Judged(NamedTuple):
    """Our own evaluation where a team has no policy bot."""

    passed: bool
    substatus: str | None
    says: str


def judged(facts: Facts, author: str | None, signals: Signals) -> Judged:
    """Separation of duties, the build, and nothing else: the forge enforces its own rules."""
    if facts.approved_by and set(facts.approved_by) <= {author}:
        says = f"separation of duties: {author} wrote it, and no other person approved it"
        return Judged(False, "SOD_FAILURE", says)
    checks = counted(facts, signals)
    unmet = [name for name, check in sorted(checks.items()) if check.conclusion not in PASSING]
    unmet += [name for name in signals.required if not any(matches(one, [name]) for one in checks)]
    if unmet or not checks:
        says = f"the build is not green: {', '.join(unmet[:5]) or 'there are no checks'}"
        return Judged(False, "BUILD_FAILURE", says)
    return Judged(True, None, "its checks are green; authors do not approve their own work")


_WORD: Final = re.compile(r"\{(repo|owner|name|branch|number)\}")


def filled(
    template: str, repo: str, branch: str | None, number: int, *, in_url: bool = False
) -> str:
    """A text with `{repo}`, `{owner}`, `{name}`, `{branch}` and `{number}` filled in."""
    owner, _, name = repo.rpartition("/")
    values = {
        "repo": repo,
        "owner": owner,
        "name": name,
        "branch": branch or "",
        "number": str(number),
    }
    return _WORD.sub(
        lambda found: quote(values[found[1]], safe="") if in_url else values[found[1]], template
    )


def target_of(poked: Poked | None, trigger: Trigger | None) -> str:
    """Whom a poke reaches, the same for all repositories that share a bot."""
    if poked is None or trigger is None:
        return "forge"
    where = trigger.job or trigger.label or trigger.text or trigger.context
    where = where or trigger.event_type or trigger.url
    return f"{poked}:{trigger.kind}:{hashlib.sha256(where.encode()).hexdigest()[:12]}"


def _time(kind: str, at: float | None) -> float | None:
    """A status that is emitted again as it stands has a new time, which is no effect."""
    return None if kind == "status" else at
