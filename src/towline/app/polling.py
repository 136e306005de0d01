"""The pollers of a running service, and the place where they meet the webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towline.config import Settings
from towline.forges.polling import Polled
from towline.inbox.dispatch import Track
from towline.inbox.ingest import Ingest
from towline.inbox.poll import Pollers, PollRules
from towline.inbox.poll_dedup import FirstTold, Owners
from towline.inbox.store import Inbox
from towline_once.coordination.sql import SqlDocuments
from towline_once.db.statement import Database
from towline_once.ports import Clock

if TYPE_CHECKING:
    from towline.forges.github.auth import GitHubApp

_DEADLINE_SECONDS = 15.0


def first_told(track: Track, database: Database, settings: Settings) -> FirstTold:
    """What came by a webhook and was polled as well is acted on once."""
    return FirstTold(track, Owners(database), settings.ingest.keep_seconds)


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
        from towline.forges.github.auth import Access
        from towline.forges.github.client import github_client
        from towline.forges.github.polling import GitHubPolling

        rest = github_client(settings.github.api_url, clock, deadline_seconds=_DEADLINE_SECONDS)
        token = None if app is not None else settings.github.token
        access = Access(rest, token=token, app=app)
        places += [GitHubPolling(access, repo) for repo in polling.github]
    if polling.gitlab:
        from towline.forges.gitlab.client import GitLabApi
        from towline.forges.gitlab.polling import GitLabPolling

        gitlab = settings.gitlab
        api = GitLabApi(gitlab.api_url, clock, gitlab.token or "", _DEADLINE_SECONDS)
        places += [GitLabPolling(api, repo) for repo in polling.gitlab]
    if polling.jira:
        from towline.integrations.jira.client import Jira, JiraPolling

        jira = settings.jira
        client = Jira(jira.url or "", clock, token=jira.token or "", user=jira.user)
        places += [JiraPolling(client, title, one.jql) for title, one in polling.jira.items()]
    return Pollers(places, inbox, ingest, SqlDocuments(database), clock, rules)
