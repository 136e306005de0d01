"""Builds the fix pipeline of a running service: its runs, its tools and its jobs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from towline.app.policy import command_of, fix_rules_of
from towline.app.tow import Outside
from towline.config import DEFAULT_FILE, Settings, variables
from towline.config.fix import FixSettings
from towline.fix.audit_schedule import AUDIT, AuditHandler, AuditStarter, schedules_of
from towline.fix.checks import Safety, Scans, Validation
from towline.fix.fixers import load_fixers
from towline.fix.fixers.config import AgentConfig, FixerConfig, LlmConfig
from towline.fix.fixers.pip_audit import PipAudit
from towline.fix.pipeline import FixHandler, FixParts
from towline.fix.plan import Patcher, Planner
from towline.fix.publish import Publishing
from towline.fix.starter import FIX, FixStarter
from towline.fix.store import RunStore
from towline.git.repository import GitOptions, GitRepositories
from towline.git.worktree import Author
from towline.inbox.dispatch import Track
from towline.jobs.model import Claimed
from towline.jobs.runner import Handler
from towline.jobs.store import JobStore
from towline.sandbox.choice import MachineSandbox
from towline.upkeep.periodic import Chore
from towline.upkeep.retention import Pruning
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import Rates
from towline_once.db.sqlite import path_of
from towline_once.db.statement import Database
from towline_once.errors import Definitive, NotIsolated
from towline_once.ports import Clock

_AT_A_TIME = 20
_REVIVE_SECONDS = 60.0
_KEEP_PLACES_US = 86_400_000_000
"""For so long a failure that is reported again takes no second place."""
_LONGER_THAN_THE_DEAD = 15.0
_log = logging.getLogger("towline.fix")


class FixService:
    """Runs, over one database. Its tools are made at the first run: they touch disk and kernel."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        jobs: JobStore,
        locks: LockService,
        clock: Clock,
        outside: Outside,
        rates: Rates,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._locks = locks
        self._clock = clock
        self._outside = outside
        self._rules = fix_rules_of(settings)
        self.store = RunStore(database)
        self._starter = FixStarter(self.store, self._rules, clock, rates)
        self._audits = AuditStarter(jobs, self._rules, settings.pipeline.max_attempts)
        self._sandbox = MachineSandbox(settings.fix.sandbox, own_places(settings))
        self._repositories: GitRepositories | None = None
        self._handler: FixHandler | None = None
        self._auditor: AuditHandler | None = None

    @property
    def listeners(self) -> tuple[Track, ...]:
        """What is told of each delivery; each bears to be told twice."""
        return self._starter, self._audits

    def schedules(self) -> dict[str, str]:
        """Cron expressions of audits, by name."""
        return schedules_of(self._rules)

    def handlers(self) -> dict[str, Handler]:
        return {FIX: self._fix, AUDIT: self._audit}

    def chores(self) -> list[Chore]:
        return [
            Chore("forget old runs", 60.0, self._pruning().run),
            Chore("revive runs", _REVIVE_SECONDS, self._revive),
        ]

    async def look_at_machine(self) -> None:
        """Say at the start, and not only in the first run, that fixes are refused here."""
        if not self._rules.repos:
            return
        try:
            await self._sandbox.check()
        except NotIsolated as refusal:
            _log.warning("fixes_refused", extra={"reason": str(refusal)})
        if (warning := self._sandbox.warning) is not None:
            _log.warning("fixes_not_isolated", extra={"reason": warning})

    def troubles(self) -> list[str]:
        """What the health page shows of this process."""
        trouble = self._sandbox.trouble if self._rules.repos else None
        return [] if trouble is None else [trouble]

    async def _fix(self, job: Claimed) -> object:
        return await (await self._made())(job)

    async def _audit(self, job: Claimed) -> object:
        await self._made()
        if self._auditor is None:
            raise Definitive("there is nothing to audit with")
        return await self._auditor(job)

    async def _revive(self) -> None:
        if self._rules.repos:
            await (await self._made()).revive()

    def _pruning(self) -> Pruning:
        keep_us = int(self._settings.fix.keep_seconds * 1e6)
        tables = {
            "runs": lambda most: self.store.prune(most, keep_us),
            "places of runs": lambda most: self.store.forget_places(most, _KEEP_PLACES_US),
        }
        return Pruning(tables, _AT_A_TIME)

    async def _made(self) -> FixHandler:
        if self._handler is None:
            parts = self._parts()
            self._auditor = self._audit_handler(parts)
            self._handler = FixHandler(parts, self._starter, self._rules)
        return self._handler

    def _audit_handler(self, parts: FixParts) -> AuditHandler:
        return AuditHandler(
            PipAudit(fixer_config(self._settings.fix).audit),
            self._starter,
            self._rules,
            parts.repositories,
            self._outside.forges,
            parts.sandbox,
        )

    def _parts(self) -> FixParts:
        fix, forges = self._settings.fix, self._outside.forges
        author = Author(fix.author_name, fix.author_email)
        lease = self._settings.worker.lease_seconds
        options = GitOptions(
            author=author, lock_seconds=lease, lock_wait_seconds=lease + _LONGER_THAN_THE_DEAD
        )
        self._repositories = repositories = GitRepositories(
            fix.folder, forges, self._locks, options
        )
        wanted = [name for policy in self._rules.repos.values() for name in policy.fixers]
        fixers = load_fixers(wanted, fixer_config(fix))
        planner = Planner(
            self.store, forges, forges, fixers, self._locks,
            ci=self._outside.ci, permission=fix.permission,
        )  # fmt: skip
        return FixParts(
            runs=self.store,
            jobs=self._jobs,
            repositories=repositories,
            sandbox=self._sandbox,
            locks=self._locks,
            clock=self._clock,
            stages={
                "PLAN": planner,
                "PATCH": Patcher(fixers),
                "SAFETY": Safety(),
                "SCANS": Scans(),
                "VALIDATION": Validation(),
            },
            publishing=Publishing(
                self.store,
                forges,
                forges,
                repositories,
                self._locks,
                self._clock,
                propose_seconds=lease,
            ),
        )

    async def aclose(self) -> None:
        if self._repositories is not None:
            await self._repositories.aclose()


def own_places(settings: Settings) -> list[Path]:
    """What no command of a repository may read, wherever it lies."""
    places = [Path(DEFAULT_FILE), settings.fix.folder]
    url = settings.database_url
    if urlsplit(url).scheme == "sqlite" and (database := path_of(url)) != ":memory:":
        places.append(Path(database))
    named = (settings.audit.file, settings.github.app_key_file)
    return [*places, *(one for one in named if one is not None)]


def fixer_config(fix: FixSettings) -> FixerConfig:
    agent, llm = fix.agent, fix.llm
    config = FixerConfig()
    return replace(
        config,
        agent=None
        if agent is None
        else AgentConfig(
            command=command_of(agent), environment=variables(agent.environment, "fix.agent")
        ),
        llm=None
        if llm.model is None
        else LlmConfig(
            model=llm.model,
            provider=llm.provider,
            url=llm.url,
            api_key=llm.api_key or "",
            max_tokens=llm.max_tokens,
        ),
        audit=replace(config.audit, network=fix.audit_network),
    )
