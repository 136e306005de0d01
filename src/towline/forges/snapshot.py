"""A pull request as a forge shows it when it is looked at, in the vocabulary of its events.

What a look tells is told in the same words as what webhooks tell, so that both are read by the
same rules: a lost webhook cannot lead to another reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from towline.events import CheckChanged, Commented, PullRequestChanged, ReviewSubmitted


class PullRef(NamedTuple):
    """Which pull request; `forge` is the name of the source that its events come from."""

    forge: str
    repo: str
    number: int

    def __str__(self) -> str:
        return f"{self.repo}#{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`checks` are the newest of each name, of the head commit alone; a suite is one of them."""

    pull: PullRequestChanged
    body: str = ""
    checks: tuple[CheckChanged, ...] = ()
    reviews: tuple[ReviewSubmitted, ...] = ()
    """The newest of each reviewer that still counts."""
    comments: tuple[Commented, ...] = ()
    """The newest, oldest first."""
    conflicts: bool | None = None
    """None while the forge has not worked it out."""
    behind: bool | None = None
    blocked: str | None = None
    """Why the forge would not merge it now, in its own word."""
    asked_at: float | None = field(default=None, compare=False)
    """When the look was begun, by the forge's own clock; None if it does not tell."""

    @property
    def ref(self) -> PullRef:
        return PullRef(self.pull.source, self.pull.repo, self.pull.number)
