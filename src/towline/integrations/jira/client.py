"""Jira's issues by JQL, with their comments, read from time to time and told as webhooks are.

JQL compares with minutes, and reads absolute times by the time zone of the caller. So it is asked
for what changed in the last so many minutes, counted by Jira's own clock. An answer that was given
so late that these were too few is not believed, and asked for again. Cloud has a search with
tokens for its pages; Data Center has none of that, and is asked in the old way. Version 2 of the
API has the texts of comments as text.

An issue is known by its key, and its change by the time of it; a comment by its number.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any, Final
from urllib.parse import quote

from towline.forges import payload as reading
from towline.forges.client import Answer, ApiClient, Limits, checked_token
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeRefused, ForgeUnavailable, ForgeUnreadable
from towline.forges.payload import Object
from towline.forges.polling import GRAIN_US, HOOK, Page, Thing, date_of, stamp_of
from towline.integrations.jira import webhooks as jira
from towline_once import keys
from towline_once.errors import Rejected
from towline_once.ports import Clock

_MINUTE_US: Final = 60 * GRAIN_US
_SPARE_MINUTES: Final = 2
_PER_PAGE: Final = 100
_MOST_PAGES: Final = 50
_MOST_TRIES: Final = 3
_MAX_CONCURRENT: Final = 8
_FIELDS: Final = "summary,status,issuetype,project,labels,created,updated,description"
_API: Final = "/rest/api/2"


class Jira:
    """A small client. With a `user` the token is Cloud's, without one Data Center's."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        token: str,
        user: str | None = None,
        deadline_seconds: float = 15.0,
    ) -> None:
        self._http = ApiClient(
            "Jira",
            url,
            clock,
            headers={"authorization": _authorization(token, user), "accept": "application/json"},
            limits=Limits(clock, max_concurrent=_MAX_CONCURRENT),
            deadline_seconds=deadline_seconds,
        )
        self._clock = clock
        self._has_tokens = True
        self._told = (0, 0.0)

    async def ask_time(self) -> int:
        """Jira's time, by which `time_us` goes on."""
        return self._note(await self._http.send("GET", f"{_API}/serverInfo", about="server's time"))

    def _note(self, answer: Answer) -> int:
        self._told = (date_of(answer.headers, "Jira"), self._clock.monotonic())
        return self._told[0]

    async def who(self) -> Answer:
        """Whose token it is; one that Jira does not take is an answer, too."""
        return await self._http.send("GET", f"{_API}/myself", about="user", also=(401, 403, 404))

    def time_us(self) -> int:
        told_us, at = self._told
        return told_us + round((self._clock.monotonic() - at) * 1e6)

    async def search(self, jql: str, cursor: str | None = None) -> tuple[list[Object], str | None]:
        """A page of issues, and the cursor of the next."""
        asked = {"jql": jql, "fields": _FIELDS, "maxResults": str(_PER_PAGE)}
        if self._has_tokens:
            query = asked | ({"nextPageToken": cursor} if cursor else {})
            path = f"{_API}/search/jql"
            answer = await self._asked(path, query, also=(400,) if cursor else (400, 404))
            if answer.status != 404:
                found = answer.object()
                return _listed(found, "issues"), reading.text(found, "nextPageToken")
            self._has_tokens = False
        return await self._search_in_the_old_way(asked, _start_of(cursor))

    async def _search_in_the_old_way(
        self, asked: dict[str, str], start: int
    ) -> tuple[list[Object], str | None]:
        """Pages overlap by half: what leaves the list meanwhile makes the rest of it move up."""
        query = asked | {"startAt": str(start)}
        found = (await self._asked(f"{_API}/search", query, also=(400,))).object()
        issues, total = _listed(found, "issues"), found.get("total")
        more = bool(issues) and isinstance(total, int) and start + len(issues) < total
        return issues, str(start + max(len(issues) // 2, 1)) if more else None

    async def _asked(self, path: str, query: dict[str, str], also: Collection[int]) -> Answer:
        answer = await self._http.send("GET", path, about="search", query=query, also=also)
        if answer.status == 400:
            said = reading.texts(answer.object(), "errorMessages")
            raise ForgeRefused(f"Jira does not understand the JQL ({''.join(said[:1])[:200]})")
        self._note(answer)
        return answer

    async def comments(self, issue: str, since_us: int = 0) -> list[Object]:
        """Those that were written since then, oldest first."""
        path, about = f"{_API}/issue/{quote(issue, safe='')}/comment", f"comments on {issue}"
        found: list[Object] = []
        start = 0
        for _ in range(_MOST_PAGES):
            query = {"orderBy": "-created", "startAt": str(start), "maxResults": str(_PER_PAGE)}
            page = (await self._http.send("GET", path, about=about, query=query)).object()
            listed, total = _listed(page, "comments"), page.get("total")
            younger = [one for one in listed if stamp_of(one, "created", "Jira") >= since_us]
            found += younger
            start += len(listed)
            is_last = not isinstance(total, int) or start >= total
            if not listed or is_last or len(younger) < len(listed):
                return _oldest_first(found)
        raise ForgeUnreadable(f"Jira's list of {about} has no end")

    async def aclose(self) -> None:
        await self._http.aclose()


class JiraPolling:
    """The issues that a JQL expression finds; `title` is what the settings call it."""

    newest_first = False
    grain_us = _MINUTE_US

    def __init__(self, client: Jira, title: str, jql: str) -> None:
        self.name = f"jira {title}"
        self._client = client
        self._jql = jql
        self._asked = ""
        self._since_us: int | None = None

    async def now_us(self) -> int:
        self._since_us = None
        return await self._client.ask_time()

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        """A cursor is for the words that were asked with."""
        self._since_us = since_us if self._since_us is None else self._since_us
        if cursor is None:
            issues, following = await self._search(since_us)
        else:
            issues, following = await self._client.search(self._asked, cursor)
        return Page([self._thing(issue) for issue in issues], following)

    async def _search(self, since_us: int) -> tuple[list[Object], str | None]:
        """Until the minutes that were asked for were enough when Jira counted them."""
        for _ in range(_MOST_TRIES):
            asked_us = self._client.time_us()
            self._asked = recent(self._jql, since_us, asked_us)
            found = await self._client.search(self._asked)
            if self._client.time_us() - asked_us <= _SPARE_MINUTES * _MINUTE_US:
                return found
        raise ForgeUnreadable("Jira's time runs away while it is asked")

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        payload = thing.delivery.payload
        issue = reading.inner(payload if isinstance(payload, dict) else {}, "issue")
        return [
            self._comment(thing.id, issue, comment)
            for comment in await self._client.comments(thing.id, since_us)
        ]

    def _thing(self, issue: Object) -> Thing:
        key = reading.text(issue, "key", reading.LONGEST_ID)
        if key is None:
            raise ForgeUnreadable("an issue in Jira's list has no key")
        fields = reading.inner(issue, "fields")
        at_us = stamp_of(fields, "updated", "Jira")
        created = reading.moment(fields, "created")
        is_new = created is not None and round(created * 1e6) >= (self._since_us or 0)
        payload: dict[str, Any] = {
            "webhookEvent": "jira:issue_created" if is_new else "jira:issue_updated",
            "timestamp": at_us // 1000,
            "issue": issue,
        }
        return Thing(key, at_us, _delivery(key, f"{key}@{at_us}", payload))

    def _comment(self, key: str, issue: Object, comment: Object) -> Delivery:
        comment_id = reading.ident(comment, "id")
        if comment_id is None:
            raise ForgeUnreadable("a comment in Jira's list has no id")
        payload: dict[str, Any] = {
            "webhookEvent": "comment_created",
            "timestamp": stamp_of(comment, "created", "Jira") // 1000,
            "comment": comment,
            "issue": issue,
        }
        known_as = f"note:{key}:{comment_id}"
        return _delivery(known_as, known_as, payload)

    async def aclose(self) -> None:
        await self._client.aclose()


def recent(jql: str, since_us: int, now_us: int) -> str:
    """Some minutes more than it takes: time goes on until Jira reads it."""
    minutes = max(-(-(now_us - since_us) // _MINUTE_US), 0) + _SPARE_MINUTES
    return f'({jql}) AND updated >= "-{minutes}m" ORDER BY updated ASC, key ASC'


def _delivery(delivery_id: str, key: str, payload: Object) -> Delivery:
    return Delivery(
        key=keys.Jira(f"{HOOK}:{key}"),
        delivery_id=delivery_id,
        source=jira.SOURCE,
        event_name=str(payload["webhookEvent"]),
        repo=None,
        payload=payload,
        events=jira.read(payload),
    )


def _start_of(cursor: str | None) -> int:
    """Of a search in the old way; a token is of a search that was begun in the new one."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise ForgeUnavailable("Jira is searched in another way by now: begin again")
    return int(cursor)


def _oldest_first(comments: Sequence[Object]) -> list[Object]:
    """Each of them once, as the list may have moved between two pages."""
    met = {reading.ident(one, "id"): one for one in reversed(comments)}
    return sorted(met.values(), key=lambda one: stamp_of(one, "created", "Jira"))


def _authorization(token: str, user: str | None) -> str:
    checked_token(token, "Jira")
    if user is None:
        return f"Bearer {token}"
    if not user.isprintable() or ":" in user:
        raise Rejected("the Jira user must be printable, without a colon")
    return f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"


def _listed(found: Object, name: str) -> list[Object]:
    listed = found.get(name)
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ForgeUnreadable(f"Jira's answer has no list of {name}")
    return [item for item in listed if isinstance(item, dict)]
