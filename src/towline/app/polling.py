"""The pollers of a running service, and the place where they meet the webhooks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from towline.config import Settings
from towline.forges.polling import Polled
from towline.forges.registry import FORGES
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
    for name, kind in FORGES.items():
        if repos := getattr(polling, name):
            its_app = app if kind.has_apps else None
            module = importlib.import_module(kind.module)
            places += module.polled(getattr(settings, name), repos, clock, its_app)
    if polling.jira:
        from towline.integrations.jira.client import Jira, JiraPolling

        jira = settings.jira
        client = Jira(jira.url or "", clock, token=jira.token or "", user=jira.user)
        places += [JiraPolling(client, title, one.jql) for title, one in polling.jira.items()]
    return Pollers(places, inbox, ingest, SqlDocuments(database), clock, rules)
