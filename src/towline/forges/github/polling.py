"""GitHub's pull requests and their comments, read from time to time, for where no webhook gets in.

They are told as webhooks tell them. A pull request is known by `review:{repo}:{number}:{head}`,
with the time of its last change in its key, and a comment by `note:{repo}:{number}:{id}`. Comments
on lines of the diff are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from towline.forges import payload as reading
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeUnreadable
from towline.forges.github import webhooks as github
from towline.forges.github.auth import Access
from towline.forges.github.client import date_us
from towline.forges.payload import Object
from towline.forges.polling import (
    GRAIN_US,
    HOOK,
    Page,
    Thing,
    moment_text,
    required_number,
    stamp_of,
)
from towline_once import keys

_PER_PAGE: Final = 100


class GitHubPolling:
    """One repository. Several may share an `access`, and with it what GitHub allows."""

    newest_first = True
    grain_us = GRAIN_US

    def __init__(self, access: Access, repo: str) -> None:
        self.name = f"github {repo}"
        self._repo = repo
        self._access = access
        self._repository: Object = {}

    async def now_us(self) -> int:
        """Asks for the repository, whose number and present name are needed anyway."""
        answer = await self._access.get(self._repo, "", f"repository {self._repo}")
        if date_us(answer.headers.get("date")) is None:
            raise ForgeUnreadable("GitHub's answer has no Date to go by")
        found = answer.json()
        if not isinstance(found, dict) or reading.ident(found, "id") is None:
            raise ForgeUnreadable("GitHub's answer about the repository has no id")
        self._repository = {name: found.get(name) for name in ("id", "full_name", "html_url")}
        return answer.now_us // GRAIN_US * GRAIN_US

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        """This list cannot be asked for by time."""
        number = int(cursor or "1")
        query = {
            "state": "all",
            "sort": "updated",
            "direction": "desc",
            "per_page": str(_PER_PAGE),
            "page": str(number),
        }
        about = f"pull requests of {self._repo}"
        listed = (await self._access.get(self._repo, "/pulls", about, query=query)).json()
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise ForgeUnreadable(f"GitHub's answer about {about} is not a list")
        following = str(number + 1) if len(listed) >= _PER_PAGE else None
        return Page([self._thing(item) for item in listed], following)

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        found = await self._access.all_of(
            self._repo,
            f"/issues/{thing.id}/comments",
            f"comments on {self._repo}#{thing.id}",
            query={"since": moment_text(since_us)},
        )
        younger = {
            comment_id: comment
            for comment in found
            if (comment_id := reading.ident(comment, "id")) is not None
            and stamp_of(comment, "created_at", "GitHub") >= since_us
        }
        return [self._comment(thing.id, *one) for one in younger.items()]

    def _thing(self, pull: Object) -> Thing:
        number, at_us = required_number(pull, "number"), stamp_of(pull, "updated_at", "GitHub")
        head = reading.commit(reading.inner(pull, "head"), "sha") or "none"
        seen_as = "labeled" if pull.get("draft") else "ready_for_review"
        payload: dict[str, Any] = {
            "action": "closed" if pull.get("state") == "closed" else seen_as,
            "number": number,
            "pull_request": pull,
            "repository": self._repository,
        }
        known_as = f"review:{self._repository['id']}:{number}:{head}"
        delivery = self._delivery("pull_request", known_as, f"{known_as}@{at_us}", payload)
        return Thing(str(number), at_us, delivery)

    def _comment(self, number: str, comment_id: str, comment: Object) -> Delivery:
        payload: dict[str, Any] = {
            "action": "created",
            "issue": {"number": int(number), "pull_request": {"number": int(number)}},
            "comment": comment,
            "repository": self._repository,
            "sender": comment.get("user"),
        }
        known_as = f"note:{self._repository['id']}:{number}:{comment_id}"
        return self._delivery("issue_comment", known_as, known_as, payload)

    def _delivery(self, event: str, delivery_id: str, key: str, payload: Object) -> Delivery:
        return Delivery(
            key=keys.GitHub(key, hook_id=HOOK),
            delivery_id=delivery_id,
            source=github.SOURCE,
            event_name=event,
            repo=reading.repo_name(self._repository.get("full_name")),
            payload=payload,
            events=github.read(event, payload),
        )

    async def aclose(self) -> None:
        await self._access.rest.aclose()
