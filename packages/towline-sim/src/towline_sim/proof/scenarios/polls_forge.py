"""A forge of a play: pull requests that change and are talked about, and a log of its webhooks.

Its clock is not ours. Its lists move while they are read, and show some changes late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from towline.forges.delivery import Delivery
from towline.forges.delivery_log import (
    Entry,
    ForgeRefused,
    ForgeUnavailable,
    Hook,
    LogPage,
    Recorded,
    repo_hook,
)
from towline.forges.github import webhooks as github
from towline.forges.payload import Object
from towline.forges.polling import GRAIN_US, Page, Thing
from towline_once import keys
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import Node
from towline_sim.proof.store import START_US
from towline_sim.proof.wire import Wire

REPO: Final = "octo-org/app"
HOOK: Final = repo_hook(f"{REPO}:17")
PER_PAGE: Final = 3
SHOWN_LATE_SECONDS: Final = 3.0


@dataclass
class Comment:
    id: int
    pull: int
    at_us: int
    shown_us: int
    """When it can be seen, by the forge's clock."""
    guid: str


@dataclass
class Pull:
    number: int
    at_us: int
    shown_us: int
    version: int = 1


@dataclass
class Forge:
    """What is there, and what the hook's log says."""

    stage: Stage
    skew_us: int
    crowded: bool = False
    """Long lists, slowly read."""
    pulls: dict[int, Pull] = field(default_factory=dict)
    comments: list[Comment] = field(default_factory=list)
    log: list[tuple[Entry, dict[str, Any]]] = field(default_factory=list)

    def now_us(self) -> int:
        return START_US + round(self.stage.loop.time() * 1e6) + self.skew_us

    async def change(self, number: int) -> None:
        """A pull request changes; sometimes that shows a little later."""
        at_us = self.now_us()
        await self._be_late()
        pull = self.pulls.setdefault(number, Pull(number, at_us, at_us, 0))
        pull.at_us = max(pull.at_us, at_us)
        pull.shown_us, pull.version = self.now_us(), pull.version + 1

    async def talk(self, number: int) -> Comment:
        at_us = self.now_us()
        await self._be_late()
        serial = len(self.comments) + 1
        said = Comment(serial, number, at_us, self.now_us(), f"guid-{serial}")
        self.comments.append(said)
        pull = self.pulls.setdefault(number, Pull(number, at_us, self.now_us()))
        if at_us > pull.at_us:
            pull.at_us, pull.shown_us = at_us, self.now_us()
        return said

    async def _be_late(self) -> None:
        if self.stage.dice.random() < 0.3:
            await asyncio.sleep(self.stage.dice.uniform(0.0, SHOWN_LATE_SECONDS))

    def note(self, said: Comment, status: int) -> None:
        entry = Entry(len(self.log) + 1, said.guid, self.now_us(), False, status, "issue_comment")
        self.log.append((entry, comment_payload(said)))


def comment_payload(said: Comment) -> dict[str, Any]:
    return {
        "action": "created",
        "issue": {"number": said.pull, "pull_request": {"number": said.pull}},
        "comment": {"id": said.id, "body": "/rebuild", "user": {"login": "octocat"}},
        "repository": {"id": 1, "full_name": REPO},
        "sender": {"login": "octocat"},
    }


def comment_key(said: Comment) -> str:
    return str(keys.GitHub(f"note:1:{said.pull}:{said.id}", hook_id="poll"))


def pull_key(number: int, at_us: int) -> str:
    return str(keys.GitHub(f"review:1:{number}:none@{at_us}", hook_id="poll"))


class SimPolled:
    """The forge's list, as a node reads it."""

    grain_us = GRAIN_US
    name = "sim app"

    def __init__(self, forge: Forge, wire: Wire, *, newest_first: bool) -> None:
        self.newest_first = newest_first
        self._forge = forge
        self._wire = wire

    async def now_us(self) -> int:
        return await self._wire.call("time", lambda: self._forge.now_us() // GRAIN_US * GRAIN_US)

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        if self._forge.crowded:
            await asyncio.sleep(self._forge.stage.dice.uniform(0.2, 1.0))
        return await self._wire.call("page", lambda: self._page(since_us, int(cursor or "0")))

    def _page(self, since_us: int, start: int) -> Page:
        pulls = sorted(self._forge.pulls.values(), key=lambda one: (one.at_us, one.number))
        if self.newest_first:
            pulls.reverse()
        else:
            since_us = since_us // GRAIN_US * GRAIN_US
            pulls = [one for one in pulls if one.at_us >= since_us]
        shown = pulls[start : start + PER_PAGE]
        more = start + PER_PAGE < len(pulls)
        return Page([_thing(one) for one in shown], str(start + PER_PAGE) if more else None)

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        def there() -> list[Delivery]:
            return [
                _told(comment_key(one), "issue_comment", comment_payload(one))
                for one in self._forge.comments
                if str(one.pull) == thing.id and one.at_us >= since_us
            ]

        return await self._wire.call("said", there)

    async def aclose(self) -> None:
        return None


def _thing(pull: Pull) -> Thing:
    payload: dict[str, Any] = {
        "action": "ready_for_review",
        "number": pull.number,
        "pull_request": {"number": pull.number, "state": "open", "title": f"v{pull.version}"},
        "repository": {"id": 1, "full_name": REPO},
    }
    key = pull_key(pull.number, pull.at_us)
    return Thing(str(pull.number), pull.at_us, _told(key, "pull_request", payload))


def _told(key: str, event: str, payload: Object) -> Delivery:
    parsed = keys.parse(key)
    if not isinstance(parsed, keys.GitHub):
        raise TypeError(key)
    return Delivery(
        key=parsed,
        delivery_id=parsed.delivery_id.split("@")[0],
        source=github.SOURCE,
        event_name=event,
        repo=REPO,
        payload=payload,
        events=github.read(event, payload),
    )


class SimHookLog:
    def __init__(self, forge: Forge, wire: Wire) -> None:
        self._forge = forge
        self._wire = wire

    async def page(self, hook: Hook, cursor: str | None = None) -> LogPage:
        def there() -> LogPage:
            entries = [entry for entry, _ in reversed(self._forge.log)]
            if cursor is not None:
                entries = [one for one in entries if one.id < int(cursor)]
            shown = entries[:PER_PAGE]
            more = str(shown[-1].id) if len(entries) > PER_PAGE else None
            return LogPage(shown, more, self._forge.now_us())

        return await self._wire.call("log", there)

    async def read(self, hook: Hook, entry_id: int) -> Recorded:
        def there() -> Recorded:
            if not 1 <= entry_id <= len(self._forge.log):
                raise ForgeRefused("there is no such delivery")
            entry, payload = self._forge.log[entry_id - 1]
            return Recorded(entry.guid, {}, payload)

        return await self._wire.call("delivery", there)


def wire_to(stage: Stage, node: Node) -> Wire:
    return stage.wire(node, stage.parts["forge"], unavailable=ForgeUnavailable)
