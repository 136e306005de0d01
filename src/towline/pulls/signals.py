"""How a team's bots are recognised, and how they are poked: configuration, as plain data.

A signal says what an outcome looks like from the outside. A trigger says how to make a bot or a CI
act. Nothing here names a bot of a certain team; where a team has none, `native` does its job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

Outcome: TypeAlias = Literal[
    "policy_started", "policy_passed", "policy_failed", "approved", "merging", "merge_failed"
]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Holds when all that is given holds; at least one is given.

    `label` is one that the pull request has; `review_by` an approving review of that login, `*`
    for anybody but its author; `comment_by` a comment of that login, whose text `pattern` finds.
    """

    label: str | None = None
    review_by: str | None = None
    comment_by: str | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """`policy_checks` are the policy bot's own checks or statuses: their states are its outcomes.

    Every other check is CI's. `required` are the ones that must pass; if none are named, all that
    the head commit has must. Names may end in `*`. `sod`, `build` and `protection` find in the
    policy bot's words which policy is not met.
    """

    required: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    policy_checks: tuple[str, ...] = ("policy-bot*",)
    outcomes: Mapping[Outcome, tuple[Signal, ...]] = field(
        default_factory=lambda: {"approved": (Signal(review_by="*"),)}
    )
    sod: re.Pattern[str] = re.compile(r"\bSOD\b|separation of duties", re.IGNORECASE)
    build: re.Pattern[str] = re.compile(r"\bbuild\b|\bjenkins\b|\bCI\b", re.IGNORECASE)
    protection: re.Pattern[str] = re.compile(r"branch protection|protected branch", re.IGNORECASE)


TriggerKind: TypeAlias = Literal[
    "native",
    "jenkins",
    "rerun_failed",
    "rerequest_suite",
    "empty_commit",
    "label",
    "comment",
    "status",
    "dispatch",
    "http",
]
TRIGGER_KINDS: Final[tuple[TriggerKind, ...]] = get_args(TriggerKind)
Poked: TypeAlias = Literal["rebuild", "policy", "sod", "approver", "merge"]
"""Who is poked."""
POKED: Final[tuple[Poked, ...]] = get_args(Poked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """How to poke. Each kind reads what it needs:

    jenkins: `job`, with `{repo}`, `{owner}`, `{name}`, `{branch}` and `{number}` filled in;
    label: `label`, taken off and put on again; comment: `text`; status: `context`, which is
    emitted again as it stands; dispatch: `event_type` of a repository_dispatch; http: `url`,
    which gets a POST. The others need nothing.
    """

    kind: TriggerKind = "native"
    job: str = ""
    label: str = ""
    text: str = ""
    context: str = ""
    event_type: str = ""
    url: str = ""


DEFAULT_TRIGGERS: Final[Mapping[Poked, Trigger]] = {
    "rebuild": Trigger(kind="rerun_failed"),
    "policy": Trigger(kind="native"),
    "sod": Trigger(kind="native"),
    "approver": Trigger(kind="native"),
    "merge": Trigger(kind="native"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Towing:
    """Which pull requests are towed: by author, branch or label, any of them; with none, nothing.

    `vulnerability` finds the id of what a pull request fixes in its branch, title, labels or
    body, in that order; its first group, or else the whole match, is the id.
    """

    authors: frozenset[str] = frozenset()
    branch_prefixes: tuple[str, ...] = ()
    labels: frozenset[str] = frozenset()
    vulnerability: re.Pattern[str] = re.compile(
        r"\b(CVE-\d{4}-\d{4,}|GHSA(?:-[23456789cfghjmpqrvwx]{4}){3})\b", re.IGNORECASE
    )
