"""Which events wait for a pull request that is not recorded yet, and by what it is found.

A forge sends the events of one pull request at once, and two workers may take them: a check may be
read before the event that opens its pull request, or before the push that made its commit the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from towline.events import (
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.forges.registry import FORGES
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import PullRecord
from towline.pulls.selection import is_towed
from towline.pulls.signals import Towing

ANY_NUMBER: Final = 0
"""Of an event that lists no pull request: only its commit tells which one it is about."""


def head_of(event: Event) -> str | None:
    """The commit that must be the head before the event counts; None if any head will do."""
    if isinstance(event, CheckChanged):
        return event.head_sha
    return event.reviewed_sha if isinstance(event, ReviewSubmitted) else None


def counts_for(record: PullRecord, event: Event) -> bool:
    """False while the event is about a commit that is not the head of the record yet."""
    head = head_of(event)
    if head is None or record.state in TERMINAL:
        return True
    return head == record.head_sha or head in record.facts.former_heads


def waits_for(event: Event, known: Sequence[PullRecord], towing: Towing) -> tuple[int, ...]:
    """The numbers of the pull requests that the event waits for.

    `known` are the recorded ones that it is about.
    """
    ready = {record.ref.number for record in known if counts_for(record, event)}
    listed = _numbers_of(event)
    missing = tuple(number for number in listed if number not in ready)
    if ready and (not missing or event.source not in FORGES):  # a CI system has numbers of its own
        return ()
    if not missing and head_of(event) is None:
        return ()
    return (missing or (ANY_NUMBER,)) if may_be_towed(event, towing) else ()


def _numbers_of(event: Event) -> tuple[int, ...]:
    if isinstance(event, CheckChanged):
        return event.pr_numbers if event.repo is not None else ()
    number: int | None = getattr(event, "number", None)
    return () if number is None else (number,)


def may_be_towed(event: Event, towing: Towing) -> bool:
    """False only where it is certain that the event is about no pull request under tow."""
    by_branch_alone = not towing.authors and not towing.labels
    if by_branch_alone and not towing.branch_prefixes:
        return False
    if isinstance(event, PullRequestChanged):
        return event.author is None or event.head_ref is None or is_towed(event, towing)
    if isinstance(event, CheckChanged):
        says = event.branch if event.source in FORGES and event.check != "status" else None
        return not by_branch_alone or says is None or says.startswith(towing.branch_prefixes)
    return isinstance(event, Commented | ReviewSubmitted | MergeGroupChanged)
