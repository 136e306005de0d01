"""A small simulated Jira: issues, their comments, and as much of JQL as pollers ask with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from towline.ports.clock import Clock

_MINUTE_US: Final = 60_000_000
_CLAUSE: Final = re.compile(
    r"""\s*(?P<field>project|labels|status|key)\s*=\s*(?P<quote>"?)(?P<value>[^"()]+?)(?P=quote)\s*""",
    re.IGNORECASE,
)
_WHOLE: Final = re.compile(
    r"""\((?P<own>.*)\)\sAND\supdated\s>=\s"-(?P<minutes>\d+)m"\sORDER\sBY\supdated\sASC,\skey\sASC""",
    re.VERBOSE,
)


class BadJql(Exception):
    """What Jira would answer with 400."""


@dataclass
class SimComment:
    id: int
    author: str
    body: str
    created_us: int


@dataclass
class SimIssue:
    id: int
    project: str
    number: int
    summary: str
    created_us: int
    updated_us: int
    status: str = "To Do"
    labels: list[str] = field(default_factory=list)
    comments: list[SimComment] = field(default_factory=list)

    @property
    def key(self) -> str:
        return f"{self.project}-{self.number}"


class JiraWorld:
    """Times are those of its clock, to the millisecond."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.issues: dict[str, SimIssue] = {}
        self._ids = count(10_000)

    def now_us(self) -> int:
        return self.clock.now_us() // 1000 * 1000

    def add_issue(self, project: str, summary: str, *labels: str) -> SimIssue:
        number = sum(one.project == project for one in self.issues.values()) + 1
        now = self.now_us()
        issue = SimIssue(next(self._ids), project, number, summary, now, now, labels=list(labels))
        self.issues[issue.key] = issue
        return issue

    def change(self, issue: SimIssue, *, status: str) -> None:
        issue.status = status
        issue.updated_us = self.now_us()

    def comment(self, issue: SimIssue, author: str, body: str) -> SimComment:
        comment = SimComment(next(self._ids), author, body, self.now_us())
        issue.comments.append(comment)
        issue.updated_us = comment.created_us
        return comment

    def search(self, jql: str) -> list[SimIssue]:
        """`(…) AND updated >= "-5m" ORDER BY updated ASC, key ASC`, with `=` and AND inside."""
        asked = _WHOLE.fullmatch(jql)
        if asked is None:
            raise BadJql("Error in the JQL Query")
        since_us = self.now_us() - int(asked["minutes"]) * _MINUTE_US
        wanted = [_clause(text) for text in re.split(r"\bAND\b", asked["own"], flags=re.IGNORECASE)]
        found = [
            issue
            for issue in self.issues.values()
            if issue.updated_us >= since_us and all(_holds(issue, *one) for one in wanted)
        ]
        return sorted(found, key=lambda issue: (issue.updated_us, issue.key))


def _clause(text: str) -> tuple[str, str]:
    found = _CLAUSE.fullmatch(text)
    if found is None:
        raise BadJql(f"Error in the JQL Query: {text.strip()[:50]}")
    return found["field"].lower(), found["value"]


def _holds(issue: SimIssue, name: str, value: str) -> bool:
    if name == "labels":
        return value in issue.labels
    return str(getattr(issue, name)).lower() == value.lower()
