"""Builds the tow of a running service: its forges, its periodic tasks and its jobs."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from towline.app.policy import breaker_limits_of, policy_of
from towline.commands.comments import COMMENT
from towline.commands.service import COMMAND, Bridge
from towline.config import Settings
from towline.forges.base import Forge
from towline.forges.registry import FORGES
from towline.integrations.ci import Ci
from towline.integrations.notify import AppriseNotifier, Notifier
from towline.jobs.model import Bell
from towline.jobs.runner import Handler
from towline.jobs.store import JobStore
from towline.pulls.discover import Discoverer
from towline.pulls.parking_store import Parking
from towline.pulls.policy import TowPolicy
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline.reconciler.sweep import Reconciler
from towline.remediation.breakers import GLOBAL, Breakers
from towline.remediation.escalation import ESCALATE, NOTIFY, Escalations
from towline.remediation.service import Pause, Remediator
from towline.remediation.triggers import Poker
from towline.upkeep.periodic import Chore
from towline.upkeep.retention import Pruning, plain
from towline_once.coordination.breaker_registry import BreakerBoard
from towline_once.coordination.circuit_breaker import BreakerService
from towline_once.coordination.sql import SqlDocuments, SqlRates
from towline_once.db.statement import Database
from towline_once.errors import Rejected
from towline_once.metrics import Audit
from towline_once.ports import Clock

if TYPE_CHECKING:  # they load an HTTP client, which a worker without a forge has no use for
    from towline.forges.github.auth import GitHubApp
    from towline.forges.github.delivery_log import GitHubHookLog
    from towline.integrations.http_trigger import HttpPoster

_PROBE_US = 300_000_000


class Closing(Protocol):
    async def aclose(self) -> None: ...


@dataclass(frozen=True)
class Outside:
    """What a service reaches beyond its stores; a test or a simulation brings its own."""

    forges: Mapping[str, Forge] = field(default_factory=dict)
    ci: Ci | None = None
    http: HttpPoster | None = None
    pause: Pause = asyncio.sleep
    """How time passes between two looks."""
    notifier: Notifier | None = None
    """Notifies people; None takes the notifier that the settings name."""

    async def aclose(self) -> None:
        parts: list[Closing] = [*self.forges.values()]
        parts += [part for part in (self.ci, self.http) if part is not None]
        for part in parts:
            await part.aclose()


def outside_of(settings: Settings, clock: Clock, app: GitHubApp | None) -> Outside:
    """The forges that there are credentials for; others are only heard."""
    forges: dict[str, Forge] = {}
    jenkins = settings.jenkins
    for name, kind in FORGES.items():
        own = getattr(settings, name)
        its_app = app if kind.has_apps else None
        if own.token or its_app is not None:
            connect = importlib.import_module(kind.module).connect
            forges[name] = connect(own, clock, its_app)
    ci: Ci | None = None
    if jenkins.url:
        if not (jenkins.user and jenkins.token):
            raise Rejected("jenkins.url needs jenkins.user and jenkins.token")
        from towline.integrations.jenkins.ci import JenkinsCi

        ci = JenkinsCi(jenkins.url, clock, user=jenkins.user, token=jenkins.token)
    return Outside(forges, ci, _poster(settings.triggers.allowed_hosts, clock))


def _poster(hosts: Sequence[str], clock: Clock) -> HttpPoster | None:
    if not hosts:
        return None
    from towline.integrations.http_trigger import HttpPoster

    return HttpPoster(hosts, clock)


class TowParts:
    """Everything that tows, over one database."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        jobs: JobStore,
        bell: Bell,
        clock: Clock,
        audit: Audit,
        outside: Outside,
    ) -> None:
        self.policy: TowPolicy = policy_of(settings)
        self.outside = outside
        self._settings = settings
        self.pulls = PullStore(database, bell)
        documents = SqlDocuments(database)
        limits = breaker_limits_of(settings)

        def breaker(name: str) -> BreakerService:
            return BreakerService(documents, clock, name, limits, _PROBE_US, audit)

        self.board = BreakerBoard(documents, breaker, always=[GLOBAL])
        breakers = Breakers(self.board.open, jobs)
        forges = outside.forges
        poker = Poker(forges, outside.ci, outside.http, self.policy.own_logins)
        remediator = Remediator(self.pulls, forges, poker, self.policy, clock, pause=outside.pause)
        self.reconciler = Reconciler(
            self.pulls, forges, remediator, breakers, self.policy, clock, pause=outside.pause
        )
        self.bridge = Bridge(
            self.pulls, jobs, forges, remediator, SqlRates(database), self.policy, clock, bell
        )
        self.parking = Parking(database)
        self.tracker = Tracker(self.pulls, self.parking, self.policy.context, self.bridge.orders)
        self._discoverer = Discoverer(
            self.pulls,
            forges,
            self.tracker.observe,
            _repos_to_look_at(settings, forges),
            self.tracker.correct,
        )
        urls = settings.notify.urls
        notifier = outside.notifier or (AppriseNotifier(urls) if urls else None)
        self._escalations = Escalations(self.pulls, forges, notifier)

    def handlers(self) -> dict[str, Handler]:
        return {
            COMMAND: self.bridge.handle,
            COMMENT: self.bridge.handle_comment,
            ESCALATE: self._escalations.escalate,
            NOTIFY: self._escalations.notify,
        }

    def chores(self) -> list[Chore]:
        """Sweeps need a forge to look at; forgetting does not."""
        reopenings = plain(self.pulls.forget_reopened)
        chores = [
            Chore("forget ended pull requests", 60.0, Pruning({"pulls": self.pulls.prune}).run),
            Chore("forget parked events", 60.0, Pruning({"parked": self.parking.prune}).run),
            Chore("forget reopenings", 3600.0, Pruning({"reopenings": reopenings}).run),
            Chore("link replacements", 60.0, self._discoverer.link),
        ]
        if self.outside.forges:
            times = self._settings.reconciler
            chores += [
                Chore("reconcile", times.every_seconds, self.reconciler.sweep),
                Chore("discover", times.discover_seconds, self._discoverer.discover),
            ]
        return chores


def _repos_to_look_at(settings: Settings, forges: Mapping[str, Forge]) -> dict[str, list[str]]:
    """Settings do not say at which forge a repository is: at the first that there is."""
    name = next((name for name in FORGES if name in forges), next(iter(FORGES)))
    return {name: list(settings.tow.repos)}


def github_app_of(settings: Settings) -> GitHubApp | None:
    github = settings.github
    if not (github.app_id or github.app_key_file):
        return None
    if not (github.app_id and github.app_key_file):
        raise Rejected("github.app_id and github.app_key_file are set both or not at all")
    from towline.forges.github.auth import GitHubApp

    return GitHubApp(github.app_id, github.app_key_file)


def hook_log_of(settings: Settings, clock: Clock, app: GitHubApp | None) -> GitHubHookLog | None:
    """The delivery log, where there is a hook to watch and something to ask for it with."""
    github = settings.github
    if github.hooks and not github.token:
        raise Rejected("github.hooks needs github.token (TOWLINE_GITHUB__TOKEN) to read their log")
    if app is None and not github.hooks:
        return None
    from towline.forges.github.delivery_log import GitHubHookLog

    return GitHubHookLog(github.api_url, clock, token=github.token, app=app)
