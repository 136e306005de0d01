"""Servers that send no webhooks, the pollers that read them, and the places where these can die."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.clocks import ManualClock
from tests.forges import gitlab_place
from tests.hook_world import served
from tests.inbox.recovery_world import FOREVER_US, Crash, Quiet
from tests.sim import github_server
from towline.events import Commented, Event, IssueChanged
from towline.forges.delivery import Delivery
from towline.forges.github.auth import Access
from towline.forges.github.client import github_client
from towline.forges.github.polling import GitHubPolling
from towline.forges.gitlab.client import GitLabApi
from towline.forges.gitlab.polling import GitLabPolling
from towline.forges.polling import Mark, Polled, mark_from
from towline.inbox.dispatch import events_of_stored
from towline.inbox.ingest import Ingest, Receipt
from towline.inbox.model import Stored
from towline.inbox.poll import Pollers, PollReport, PollRules
from towline.inbox.poll_dedup import FirstTold, Owners
from towline.inbox.store import Inbox
from towline.integrations.jira.client import Jira, JiraPolling
from towline_once.coordination.rate_limit import Rate, Rates
from towline_once.coordination.sql import SqlDocuments
from towline_once.db.statement import Database
from towline_once.ports import Note
from towline_sim.github.faults import HttpFault
from towline_sim.gitlab.server import GitLabFault
from towline_sim.jira import JiraFault, JiraSim, JiraWorld

JIRA_TOKEN = "jira-simulated-token"


class Scene(Protocol):
    """A server: things appear there and are talked about."""

    @property
    def clock(self) -> ManualClock:
        """The server's."""
        ...

    @property
    def polled(self) -> Polled: ...

    def appear(self) -> str:
        """A new thing, by its id."""
        ...

    def say(self, thing: str, text: str) -> str:
        """A comment, by the id that its delivery has."""
        ...

    def fail(self, where: str | None) -> None:
        """Lists, comments, everything, or nothing any more."""
        ...


@dataclass
class GitLabScene:
    place: gitlab_place.Place
    polled: GitLabPolling

    @property
    def clock(self) -> ManualClock:
        return self.place.clock

    def appear(self) -> str:
        return str(self.place.world.open_request(self.place.project).iid)

    def say(self, thing: str, text: str) -> str:
        request = self.place.project.requests[int(thing)]
        note = self.place.world.add_note(request, "octocat", text)
        self.place.world.touch(request)
        return f"note:{self.place.project.id}:{thing}:{note.id}"

    def fail(self, where: str | None) -> None:
        paths = {"lists": "merge_requests", "comments": "notes", "everything": ""}
        self.place.sim.faults = [GitLabFault("failing", paths[where])] if where else []


@dataclass
class GitHubScene:
    forge: github_server.Forge
    polled: GitHubPolling

    @property
    def clock(self) -> ManualClock:
        return self.forge.clock

    def appear(self) -> str:
        world, repo = self.forge.world, github_server.REPO
        self.forge.sim.advance()
        branch = f"fix/{len(world.pulls(repo, state='all'))}"
        world.create_ref(
            repo, f"refs/heads/{branch}", world.ref(repo, "refs/heads/main"), "octocat"
        )
        world.write_files(repo, branch, {branch: b"a fix\n"}, "Fix it", "octocat")
        return str(
            world.open_pull(repo, head=branch, base="main", title="Fix it", by="octocat").number
        )

    def say(self, thing: str, text: str) -> str:
        self.forge.sim.advance()
        comment = self.forge.world.comment(github_server.REPO, int(thing), "octocat", text)
        return f"note:{self.forge.world.repo(github_server.REPO).id}:{thing}:{comment.id}"

    def fail(self, where: str | None) -> None:
        root = f"/repos/{github_server.REPO}"
        paths = {"lists": f"{root}/pulls", "comments": f"{root}/issues", "everything": "/"}
        self.forge.sim.faults = [HttpFault(kind="failing", path=paths[where])] if where else []


@dataclass
class JiraScene:
    clock: ManualClock
    world: JiraWorld
    sim: JiraSim
    polled: JiraPolling

    def appear(self) -> str:
        return self.world.add_issue("APP", "Fix it", "towline").key

    def say(self, thing: str, text: str) -> str:
        comment = self.world.comment(self.world.issues[thing], "557058:octocat", text)
        return f"note:{thing}:{comment.id}"

    def fail(self, where: str | None) -> None:
        paths = {"lists": "search", "comments": "/comment", "everything": ""}
        self.sim.faults = [JiraFault("failing", paths[where])] if where else []


@contextlib.asynccontextmanager
async def gitlab_scene() -> AsyncIterator[Scene]:
    async with gitlab_place.gitlab_place() as place:
        api = GitLabApi(f"{place.url}/api/v4", place.clock, gitlab_place.TOKEN, 5.0)
        polled = GitLabPolling(api, gitlab_place.REPO)
        yield GitLabScene(place, polled)
        await polled.aclose()


@contextlib.asynccontextmanager
async def github_scene() -> AsyncIterator[Scene]:
    async with github_server.forge() as forge:
        rest = github_client(forge.url, forge.clock, deadline_seconds=5)
        access = Access(rest, token=github_server.TOKEN, app=None)
        polled = GitHubPolling(access, github_server.REPO)
        yield GitHubScene(forge, polled)
        await polled.aclose()


@contextlib.asynccontextmanager
async def jira_scene() -> AsyncIterator[Scene]:
    clock = ManualClock()
    world = JiraWorld(clock)
    sim = JiraSim(world, token=JIRA_TOKEN)
    async with served(sim) as url:
        client = Jira(url, clock, token=JIRA_TOKEN, deadline_seconds=5)
        polled = JiraPolling(client, "fixes", "project = APP")
        yield JiraScene(clock, world, sim, polled)
        await client.aclose()


SCENES: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Scene]]] = {
    "gitlab": gitlab_scene,
    "github": github_scene,
    "jira": jira_scene,
}


class Fate:
    """How many steps a process has left."""

    left = 10**9

    def step(self) -> None:
        if self.left <= 0:
            raise Crash
        self.left -= 1


class MortalIngest(Ingest):
    """Its process may die before deliveries or the watermark are stored, or after that."""

    fate: Fate

    async def take_all(
        self, deliveries: Sequence[Delivery], note: Note | None
    ) -> list[Receipt] | None:
        self.fate.step()
        receipts = await super().take_all(deliveries, note)
        self.fate.step()
        return receipts


class MortalInbox(Inbox):
    """Its process may die when it has looked for what is known."""

    fate: Fate

    async def known(self, delivery_ids: Sequence[str]) -> set[str]:
        found = await super().known(delivery_ids)
        self.fate.step()
        return found


@dataclass
class PollWorld:
    """A server and our store, with the pollers between them."""

    scene: Scene
    database: Database
    clock: ManualClock
    """Ours, which knows nothing of the server's."""
    rules: PollRules = field(default_factory=PollRules)
    repo: str | None = None
    """The only repository whose deliveries are looked at."""
    fate: Fate = field(default_factory=Fate)
    acted: list[tuple[str, str, str]] = field(default_factory=list)
    """What was acted on: its kind, its id, and the key of the delivery that told of it."""

    def __post_init__(self) -> None:
        self.inbox = MortalInbox(self.database, Rates(Rate(1, 10**9)))
        self.ingest = MortalIngest(self.inbox, Quiet(), self.clock, lambda *_, **__: None, {}, 3)
        self.documents = SqlDocuments(self.database)
        self.ingest.fate = self.inbox.fate = self.fate
        self.pollers = self.new_process()

    def new_process(self) -> Pollers:
        """Nothing but the store is left of what the last one knew."""
        self.pollers = Pollers(
            [self.scene.polled], self.inbox, self.ingest, self.documents, self.clock, self.rules
        )
        return self.pollers

    async def poll(self) -> PollReport:
        return (await self.pollers.poll())[0]

    async def later(self, seconds: float = 60) -> PollReport:
        """Time passes on both sides, and the source is read."""
        self.scene.clock.advance(seconds)
        self.clock.advance(seconds)
        return await self.poll()

    async def stored(self) -> list[Stored]:
        rows = await self.inbox.listing(FOREVER_US, 10_000)
        return [row for row in rows if self.repo in (None, row.repo)]

    async def ids(self, prefix: str = "") -> list[str]:
        found = [row.delivery_id for row in await self.stored()]
        return sorted(one for one in found if one.startswith(prefix))

    async def mark(self) -> Mark:
        document = await self.documents.read(f"poll {self.scene.polled.name}")
        return mark_from(document.body)

    async def act(self) -> None:
        """Every job that there is does its work, as it would after a redelivery, too."""
        owners = Owners(self.database)
        track = FirstTold(self._track, owners)
        for row in sorted(await self.stored(), key=lambda one: (one.received_us, one.key)):
            (whole,) = [one for one in await self.inbox.find(row.delivery_id) if one.key == row.key]
            await track(whole, events_of_stored(whole))

    async def _track(self, stored: Stored, events: Sequence[Event]) -> None:
        for event in events:
            told: Any = None
            if isinstance(event, Commented):
                told = ("comment", event.comment_id, stored.key)
            elif isinstance(event, IssueChanged):
                told = (event.action, f"{event.issue} {event.occurred_at}", stored.key)
            if told is not None and told not in self.acted:
                self.acted.append(told)
