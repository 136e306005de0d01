"""GitLab as a forge: a reader, a writer and a publisher over one client."""

from __future__ import annotations

from collections.abc import Sequence

from towline.forges.base import Server
from towline.forges.gitlab.client import GitLabApi
from towline.forges.gitlab.polling import GitLabPolling
from towline.forges.gitlab.publish import GitLabPublisher
from towline.forges.gitlab.snapshots import GitLabReader
from towline.forges.gitlab.writes import GitLabWriter
from towline.forges.polling import POLL_DEADLINE_SECONDS, Polled
from towline_once.ports import Clock


class GitLabForge(GitLabReader, GitLabWriter, GitLabPublisher):
    """Each request has its deadline, and a call, which may need several, ends by four of them."""

    name = "gitlab"

    def __init__(
        self, api_url: str, clock: Clock, *, token: str, deadline_seconds: float = 15.0
    ) -> None:
        api = GitLabApi(api_url, clock, token, deadline_seconds)
        GitLabReader.__init__(self, api, clock)
        GitLabWriter.__init__(self, api, self)
        GitLabPublisher.__init__(self, api)

    async def aclose(self) -> None:
        await self._api.http.aclose()


def connect(settings: Server, clock: Clock, app: None) -> GitLabForge:
    """GitLab has no Apps."""
    return GitLabForge(settings.api_url, clock, token=settings.token or "")


def polled(settings: Server, repos: Sequence[str], clock: Clock, app: None) -> list[Polled]:
    """These projects, over one client: a pause that it is asked for holds for all of them."""
    api = GitLabApi(settings.api_url, clock, settings.token or "", POLL_DEADLINE_SECONDS)
    return [GitLabPolling(api, repo) for repo in repos]
