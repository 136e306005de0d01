"""Which deliveries may share one job: those that only say how one thing stands.

The state of a pull request or of a commit's checks is looked at as a whole, so many deliveries
about it need one look. What a person says or orders is acted on by itself, each time.
"""

from __future__ import annotations

from collections.abc import Sequence

from towline.core.events import CheckChanged, Event, PullRequestChanged


def subject_of(events: Sequence[Event]) -> str | None:
    """The one thing that all events are about, if they are of the kind that may wait together."""
    subjects = {_subject(event) for event in events}
    return subjects.pop() if len(subjects) == 1 else None


def _subject(event: Event) -> str | None:
    if event.repo is None:
        return None
    if isinstance(event, PullRequestChanged):
        return f"{event.source}:{event.repo}#{event.number}"
    if isinstance(event, CheckChanged) and event.head_sha is not None:
        return f"{event.source}:{event.repo}@{event.head_sha}"
    return None
