"""The pollers of a running service, and the place where they meet the webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towline.coordination.sql import SqlDocuments
from towline.flow.deliver import Track
from towline.flow.ingest import Ingest
from towline.flow.poll import Pollers, PollRules
from towline.flow.poll_meeting import FirstTold
from towline.ports.clock import Clock
from towline.ports.inbox import Inbox
from towline.ports.polling import Polled
from towline.settings import Settings
from towline.store.sql import Database
from towline.store.watermarks import SqlOwners

if TYPE_CHECKING:
    from towline.forges.github_app import GitHubApp

_DEADLINE_SECONDS = 15.0


def first_told(track: Track, database: Database, settings: Settings) -> FirstTold:
    """What came by a webhook and was polled as well is acted on once."""
    return FirstTold(track, SqlOwners(database), settings.ingest.keep_seconds)


def pollers_of(
    settings: Settings,
    database: Database,
    inbox: Inbox,
    ingest: Ingest,
    clock: Clock,
    app: GitHubApp | None,
) -> Pollers:
    """One client for each server, so that a pause it asks for holds for all that is read there."""
    polling = settings.polling
    rules = PollRules(polling.every_seconds, polling.overlap_seconds, polling.max_pages)
    places: list[Polled] = []
    if polling.github:
        from towline.forges.github_access import Access
        from towline.forges.github_polling import GitHubPolling
        from towline.forges.github_rest import github_client

        rest = github_client(settings.github.api_url, clock, deadline_seconds=_DEADLINE_SECONDS)
        token = None if app is not None else settings.github.token
        access = Access(rest, token=token, app=app)
        places += [GitHubPolling(access, repo) for repo in polling.github]
    if polling.gitlab:
        from towline.forges.gitlab_api import GitLabApi
        from towline.forges.gitlab_polling import GitLabPolling

        gitlab = settings.gitlab
        api = GitLabApi(gitlab.api_url, clock, gitlab.token or "", _DEADLINE_SECONDS)
        places += [GitLabPolling(api, repo) for repo in polling.gitlab]
    if polling.jira:
        from towline.forges.jira import Jira, JiraPolling

        jira = settings.jira
        client = Jira(jira.url or "", clock, token=jira.token or "", user=jira.user)
        places += [JiraPolling(client, title, one.jql) for title, one in polling.jira.items()]
    return Pollers(places, inbox, ingest, SqlDocuments(database), clock, rules)
