"""The record of a pull request under tow, and a line of its log.

Every decision starts from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from towline.forges.snapshot import PullRef
from towline.pulls.budgets import Counts
from towline.pulls.facts import Facts
from towline.pulls.lifecycle import State

EventSource: TypeAlias = Literal[
    "github-webhook",
    "gitlab-webhook",
    "jenkins-webhook",
    "ci-webhook",
    "codegenie",
    "policy-bot",
    "approver-bot",
    "automerge-bot",
    "reconciler",
    "command-queue",
    "admin-api",
]


class Intent(NamedTuple):
    """A remedy under way: recorded before it is made, and gone when its outcome is known."""

    id: str
    strategy: str
    head_sha: str | None
    began_us: int
    verify_by_us: int
    by: str
    made: bool = False
    """Whether the forge or the CI took it; False until then, and when that is not known."""
    spent: bool = True
    """Whether a try of the budget is held for it, to be given back if nothing could be tried."""
    before: str = ""
    """What its effect would change, as it was: another trace than this is the effect."""
    watch: str = ""
    """Where the CI shows what became of it."""


class PullRecord(NamedTuple):
    """Times in microseconds since 1970. `since_us` is the clock of staleness."""

    ref: PullRef
    url: str | None
    title: str
    author: str | None
    head_ref: str | None
    base_ref: str | None
    head_sha: str | None
    vulnerability_id: str | None
    state: State
    substatus: str | None
    since_us: int
    created_us: int
    updated_us: int
    counts: Counts
    lifetime: Counts
    path: tuple[State, ...]
    """The states it has been in, the newest last; only as many as tell whether it goes round."""
    facts: Facts
    intent: Intent | None
    last_remediation_us: int | None
    remediation_action: str | None
    diagnosis: Mapping[str, object] | None
    replaces: int | None
    """The number of the pull request that was closed for this one."""
    replaced_by: int | None
    expires_us: int | None
    """Set when its life has ended: it is forgotten then."""
    version: int


class PullEvent(NamedTuple):
    """A line of the log. `key` makes it unique: the same one again is not written."""

    event_type: str
    source: EventSource
    at_us: int
    payload: Mapping[str, object]
    key: str
    id: int = 0


class Tracked(NamedTuple):
    """What a decision leaves behind; without events only what is known of it is newer."""

    record: PullRecord
    events: Sequence[PullEvent] = ()
