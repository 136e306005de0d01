"""GitLab's merge requests and their notes, read from time to time and told as webhooks tell them.

A merge request is known by `review:{project}:{number}:{head}`, with the time of its last change in
its key, and a note by `note:{project}:{number}:{note}`. What a list does not show is left out: who
changed a merge request, and what was changed. A draft is shown as one whose labels changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from towline.forges import payload as reading
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeUnreadable
from towline.forges.gitlab import webhooks as gitlab
from towline.forges.gitlab.client import GitLabApi, project_path
from towline.forges.payload import Object
from towline.forges.polling import (
    GRAIN_US,
    HOOK,
    Page,
    Thing,
    date_of,
    moment_text,
    required_number,
    stamp_of,
)
from towline_once import keys

_MOST_PAGES: Final = 50
_ACTIONS: Final = {"closed": "close", "merged": "merge"}


class GitLabPolling:
    """One project. Several may share an `api`, and with it what GitLab allows."""

    newest_first = False
    grain_us = GRAIN_US

    def __init__(self, api: GitLabApi, repo: str) -> None:
        self.name = f"gitlab {repo}"
        self._repo = repo
        self._api = api
        self._project: Object = {}
        self._since_us: int | None = None

    async def now_us(self) -> int:
        """Asks for the project, whose number and present name are needed anyway."""
        about = f"project {self._repo}"
        answer = await self._api.http.send("GET", project_path(self._repo), about=about)
        project = answer.object()
        if reading.ident(project, "id") is None:
            raise ForgeUnreadable("GitLab's answer about the project has no id")
        self._project = {
            name: project.get(name) for name in ("id", "path_with_namespace", "web_url")
        }
        self._since_us = None
        return date_of(answer.headers, "GitLab")

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        self._since_us = since_us if self._since_us is None else self._since_us
        query = {
            "updated_after": moment_text(since_us - GRAIN_US),
            "order_by": "updated_at",
            "sort": "asc",
            "scope": "all",
            "state": "all",
            "page": cursor or "1",
        }
        path = f"{project_path(self._repo)}/merge_requests"
        items, following = await self._api.page(path, f"merge requests of {self._repo}", query)
        return Page([self._thing(item) for item in items], str(following) if following else None)

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        """Newest first, down to the first one that is older."""
        payload = thing.delivery.payload
        request = reading.inner(payload if isinstance(payload, dict) else {}, "object_attributes")
        number = required_number(request, "iid")
        path = f"{project_path(self._repo)}/merge_requests/{number}/notes"
        about = f"notes of {self._repo}!{number}"
        query = {"order_by": "created_at", "sort": "desc"}
        found: list[Object] = []
        following: int | None = 1
        for _ in range(_MOST_PAGES):
            items, following = await self._api.page(path, about, {**query, "page": str(following)})
            younger = [one for one in items if stamp_of(one, "created_at", "GitLab") >= since_us]
            found += younger
            if following is None or len(younger) < len(items):
                return self._notes(request, number, found)
        raise ForgeUnreadable(f"GitLab's list about {about} has no end")

    def _notes(self, request: Object, number: int, found: Sequence[Object]) -> list[Delivery]:
        written = {reading.ident(note, "id"): note for note in reversed(found)}
        return [
            self._note(request, number, note_id, note)
            for note_id, note in written.items()
            if note_id is not None and not reading.flag(note, "system")
        ]

    def _thing(self, item: Object) -> Thing:
        number, at_us = required_number(item, "iid"), stamp_of(item, "updated_at", "GitLab")
        request: Object = {
            **item,
            "url": item.get("web_url"),
            "author_id": reading.inner(item, "author").get("id"),
            "last_commit": {"id": item.get("sha")},
            "labels": [{"title": label} for label in reading.texts(item, "labels")],
            "action": _ACTIONS.get(reading.text(item, "state") or "", "update"),
        }
        changed = "labels" if item.get("draft") else "draft"
        head = reading.commit(item, "sha") or "none"
        payload: dict[str, Any] = {
            "object_kind": "merge_request",
            "user": item.get("author") if self._is_new(item) else None,
            "project": self._project,
            "object_attributes": request,
            "changes": {changed: {}},
        }
        known_as = f"review:{self._project['id']}:{number}:{head}"
        return Thing(str(number), at_us, self._delivery(known_as, f"{known_as}@{at_us}", payload))

    def _note(self, request: Object, number: int, note_id: str, note: Object) -> Delivery:
        page = reading.url(request, "url")
        told: Object = {
            **note,
            "note": note.get("body"),
            "action": "create",
            "url": f"{page}#note_{note_id}" if page else None,
        }
        payload: dict[str, Any] = {
            "object_kind": "note",
            "user": note.get("author"),
            "project": self._project,
            "object_attributes": told,
            "merge_request": request,
        }
        known_as = f"note:{self._project['id']}:{number}:{note_id}"
        return self._delivery(known_as, known_as, payload)

    def _is_new(self, item: Object) -> bool:
        """Then it is its author who acted; the author of later changes is not known."""
        created = reading.moment(item, "created_at")
        return created is not None and round(created * 1e6) >= (self._since_us or 0)

    def _delivery(self, delivery_id: str, key: str, payload: Object) -> Delivery:
        return Delivery(
            key=keys.GitLab(key, hook_id=HOOK),
            delivery_id=delivery_id,
            source=gitlab.SOURCE,
            event_name=str(payload["object_kind"]),
            repo=reading.repo_name(self._project.get("path_with_namespace")),
            payload=payload,
            events=gitlab.read(payload),
        )

    async def aclose(self) -> None:
        await self._api.http.aclose()
