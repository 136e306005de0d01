"""A small simulated Jira: issues, their comments, and as much of JQL as pollers ask with."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from towline_once.ports import Clock
from towline_sim.http import Simulator, json_response, mark_date

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


# --------------------------------------------------------------- jira_http
# The simulated Jira over HTTP: search, comments, its time, and faults.

FaultKind = Literal["failing", "limited", "silent", "garbled"]

_API: Final = "/rest/api/2"
_COMMENTS: Final = re.compile(rf"{_API}/issue/(?P<key>[A-Z]+-\d+)/comment")


class JiraFault(NamedTuple):
    """`path` is found anywhere in the path."""

    kind: FaultKind
    path: str = ""
    headers: Mapping[str, str] = {}


class Asked(NamedTuple):
    path: str
    query: Mapping[str, str]


class JiraSim(Simulator):
    """Over a world. Cloud has tokens for its pages, Data Center numbers."""

    def __init__(
        self, world: JiraWorld, *, token: str, user: str | None = None, cloud: bool = True
    ) -> None:
        self.world = world
        self.cloud = cloud
        self.faults: list[JiraFault] = []
        self.asked: list[Asked] = []
        self.most_a_page = 100
        self.ahead_seconds = 0.0
        """How far the clock behind its Date is from the one that stamps its issues."""
        basic = base64.b64encode(f"{user}:{token}".encode()).decode()
        self._authorization = f"Basic {basic}" if user else f"Bearer {token}"

    async def respond(self, request: Request) -> Response | None:
        path, query = request.url.path, dict(request.query_params)
        self.asked.append(Asked(path, query))
        fault = next((one for one in self.faults if one.path in path), None)
        if fault is not None and fault.kind == "silent":
            return None
        response = self._struck(fault) if fault else self._served(request, path, query)
        mark_date(response, self.world.now_us() / 1e6 + self.ahead_seconds)
        return response

    def _struck(self, fault: JiraFault) -> Response:
        if fault.kind == "garbled":
            return PlainTextResponse('{"issues": [{"key": "AP')
        response = _problem(429 if fault.kind == "limited" else 503, f"simulated: {fault.kind}")
        response.headers.update(fault.headers)
        return response

    def _served(self, request: Request, path: str, query: Mapping[str, str]) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), self._authorization.encode()):
            return _problem(401, "You do not have permission")
        if path == f"{_API}/serverInfo":
            return json_response({"version": "9.12.0", "serverTime": _moment(self.world.now_us())})
        if path == f"{_API}/search/jql" and self.cloud:
            return self._search(query, "nextPageToken")
        if path == f"{_API}/search" and not self.cloud:
            return self._search(query, "startAt")
        found = _COMMENTS.fullmatch(path)
        issue = self.world.issues.get(found["key"]) if found else None
        if issue is None:
            return _problem(404, "Issue does not exist or you do not have permission to see it.")
        return self._comments(issue, query)

    def _search(self, query: Mapping[str, str], paged_by: str) -> Response:
        try:
            found = self.world.search(query.get("jql", ""))
        except BadJql as error:
            return _problem(400, str(error))
        start, size = int(query.get(paged_by, "0")), self._size(query)
        page: dict[str, Any] = {"issues": [issue_shape(one) for one in found[start : start + size]]}
        if paged_by == "startAt":
            page |= {"startAt": start, "maxResults": size, "total": len(found)}
        elif start + size < len(found):
            page |= {"nextPageToken": str(start + size), "isLast": False}
        return json_response(page)

    def _comments(self, issue: SimIssue, query: Mapping[str, str]) -> Response:
        newest_first = query.get("orderBy") == "-created"
        ordered = sorted(issue.comments, key=lambda one: one.id, reverse=newest_first)
        start, size = int(query.get("startAt", "0")), self._size(query)
        shown = [_comment(one) for one in ordered[start : start + size]]
        return json_response(
            {"startAt": start, "maxResults": size, "total": len(ordered), "comments": shown}
        )

    def _size(self, query: Mapping[str, str]) -> int:
        return min(int(query.get("maxResults", "50")), self.most_a_page)


def issue_shape(issue: SimIssue) -> dict[str, Any]:
    fields = {
        "summary": issue.summary,
        "description": None,
        "status": {"name": issue.status},
        "issuetype": {"name": "Task"},
        "project": {"key": issue.project},
        "labels": list(issue.labels),
        "created": _moment(issue.created_us),
        "updated": _moment(issue.updated_us),
    }
    return {"id": str(issue.id), "key": issue.key, "fields": fields}


def _comment(comment: SimComment) -> dict[str, Any]:
    return {
        "id": str(comment.id),
        "author": {"accountId": comment.author, "displayName": comment.author},
        "body": comment.body,
        "created": _moment(comment.created_us),
        "updated": _moment(comment.created_us),
    }


def _moment(at_us: int) -> str:
    at = datetime.fromtimestamp(at_us // 1_000_000, UTC)
    return f"{at.strftime('%Y-%m-%dT%H:%M:%S')}.{at_us // 1000 % 1000:03}+0000"


def _problem(status: int, message: str) -> Response:
    return json_response({"errorMessages": [message], "errors": {}}, status)
