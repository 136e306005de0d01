"""GitHub as a forge: a reader, a writer and a publisher over one client and its credentials.

It reads by GraphQL (`reader`), falls back to REST (`rest_reader`), writes by REST
(`writes`) and opens pull requests (`publish`). What GitHub says is read by the
functions that read webhooks (`snapshot`). All calls share one client (`client`), and
with it GitHub's limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from towline.forges.base import Server
from towline.forges.client import Calls
from towline.forges.github.auth import Access, GitHubApp
from towline.forges.github.client import github_client
from towline.forges.github.polling import GitHubPolling
from towline.forges.github.publish import GitHubPublisher
from towline.forges.github.rate_limit import Limits, Pace, Sleep
from towline.forges.github.reader import BATCH, NAME, GitHubReader
from towline.forges.github.writes import GitHubWriter, MergeMethod
from towline.forges.polling import POLL_DEADLINE_SECONDS, Polled
from towline_once.ports import Clock

__all__ = ["Calls", "GitHubForge", "Limits"]


class GitHubForge(GitHubReader, GitHubWriter, GitHubPublisher):
    """With a token or as an App; `calls` counts what it has cost so far.

    `login` is whose token it is, for those that may not ask GitHub. `mergeable_waits` are the
    delays after which a look asks again for what GitHub has not worked out. `sleep` makes them,
    and the ones between writes.
    """

    name = NAME

    def __init__(
        self,
        api_url: str,
        clock: Clock,
        *,
        token: str | None = None,
        app: GitHubApp | None = None,
        login: str | None = None,
        deadline_seconds: float = 15.0,
        graphql: bool = True,
        batch: int = BATCH,
        mergeable_waits: Sequence[float] = (),
        merge_method: MergeMethod | None = None,
        follow_logs: bool = True,
        limits: Limits | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        pace = Pace(clock, sleep=sleep, longest_wait=deadline_seconds, limits=limits)
        client = github_client(api_url, clock, deadline_seconds=deadline_seconds, pace=pace)
        access = Access(client, token=token, app=app, login=login)
        GitHubReader.__init__(
            self,
            access,
            clock,
            sleep,
            graphql=graphql,
            batch=batch,
            mergeable_waits=mergeable_waits,
            follow_logs=follow_logs,
        )
        GitHubWriter.__init__(self, access, self.rest, merge_method=merge_method)
        GitHubPublisher.__init__(self, access)

    @property
    def calls(self) -> Calls:
        return self._access.rest.calls

    async def aclose(self) -> None:
        await self._logs.aclose()
        await self._access.rest.aclose()


def connect(settings: Server, clock: Clock, app: GitHubApp | None) -> GitHubForge:
    return GitHubForge(settings.api_url, clock, token=settings.token, app=app)


def polled(
    settings: Server, repos: Sequence[str], clock: Clock, app: GitHubApp | None
) -> list[Polled]:
    """These repositories, over one client: a pause that it is asked for holds for all of them."""
    client = github_client(settings.api_url, clock, deadline_seconds=POLL_DEADLINE_SECONDS)
    access = Access(client, token=None if app is not None else settings.token, app=app)
    return [GitHubPolling(access, repo) for repo in repos]
