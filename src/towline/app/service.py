"""The running service: builds every part from the settings, opens them, and closes them in order.

`towline serve` and `towline worker` run it. Closing finishes the jobs in hand or gives them back,
and passes the leader's lease on. All adapters are named here and in the other modules of this room,
and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from towline.app.files import SecretSource, database_file, given_files, own_files
from towline.app.fix import FixService
from towline.app.policy import fix_rules_of
from towline.app.polling import first_told, pollers_of
from towline.app.tow import Outside, TowParts, github_app_of, hook_log_of, outside_of
from towline.commands.service import Bridge
from towline.config import Settings
from towline.dashboard.session import Sessions
from towline.dashboard.session_store import SqlSessions
from towline.dashboard.stream_shutdown import Farewell
from towline.db import database_for
from towline.fix.starter import StartReader
from towline.forges.delivery_log import app_hook, repo_hook
from towline.http.auth import Keyring
from towline.http.host_check import Hosts
from towline.http.key_attempts import Proxies
from towline.http.key_store import SqlApiKeys
from towline.http.readiness import Readiness
from towline.http.repeatable import Ledger, RepeatableWrites
from towline.http.secret_check import warn_of_other_secrets
from towline.inbox.dispatch import DeliveryHandler, in_turn
from towline.inbox.http import HookLimits, Hooks
from towline.inbox.ingest import DELIVERY, Ingest, Sender
from towline.inbox.lost_deliveries import HookHours, Recovery
from towline.inbox.retention import Tidying
from towline.inbox.schedules import Schedules, ScheduleStore
from towline.inbox.sources import SOURCES
from towline.inbox.store import Inbox
from towline.jobs.embedded import Crowd, EmbeddedWorker, ShoutingBell
from towline.jobs.model import Backoff, Bell
from towline.jobs.runner import Crew, Handler, WorkRules
from towline.jobs.store import JobStore
from towline.observability import tracing
from towline.observability.audit import AuditFile, trouble_with
from towline.pulls.store import PullStore
from towline.reconciler.sweep import Reconciler
from towline.submit.rules import Keep
from towline.submit.service import Submit, SubmitPolicy
from towline.submit.store import RequestStore
from towline.upkeep.periodic import Chore, Upkeep
from towline.upkeep.reaper import Reaper
from towline.upkeep.retention import Pruning, plain
from towline_once.backends import Backend, backend_for, backend_over
from towline_once.clock import SystemClock
from towline_once.coordination.locks import LockService
from towline_once.coordination.rate_limit import Rates, per_minute
from towline_once.coordination.sql import SqlDocuments, SqlRates, SqlSeen
from towline_once.db.statement import Database
from towline_once.errors import Rejected
from towline_once.keys import REDELIVERY_SECONDS, check_horizons
from towline_once.metrics import Audit, audit_to_log
from towline_once.ports import Clock, SeenStore
from towline_once.private_files import (
    close_to_others,
    open_to_anybody,
    open_to_others,
    without_followers,
)

if TYPE_CHECKING:
    from towline.forges.github.delivery_log import GitHubHookLog
    from towline.jobs.celery import CeleryBell
    from towline_once.db.redis.client import Redis

_log = logging.getLogger("towline.service")
_LEADER_TTL_SECONDS = 15.0
_LEADER_WAIT_SECONDS = 5.0
"""Less than half of the lease: who was lost together with the leader, and could not be asked,
has no place in the queue any more when its lease ends."""


_READY_MARK = "towline:readiness"
_READY_MARK_US = 3_600_000_000
"""The one row that all probes of all processes write."""


class Worker(Protocol):
    async def run(self) -> None: ...

    async def stop(self, drain_seconds: float) -> None: ...


class Service:
    """Everything that one process of Towline has, whether it serves, works or both."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        visitors_clock: Clock | None = None,
        handlers: Mapping[str, Handler] | None = None,
        outside: Outside | None = None,
    ) -> None:
        _check(settings)
        if settings.traces.enabled:
            tracing.configure(settings.traces.endpoint)
        self.settings = settings
        self.clock = clock or SystemClock()
        self.audit = _audit(settings)
        self.database = database_for(
            settings.database_url, self.clock, settings.store_timeout_seconds
        )
        self._state = self._state_backend()
        self._own_bell = ShoutingBell(self.database.mailbox)
        self._broker = _broker(settings)
        self.bell: Bell = self._broker or self._own_bell
        self.jobs = JobStore(self.database, self.bell)
        rates = _rates_of(settings)
        self.inbox = Inbox(self.database, rates)
        self.ingest = Ingest(
            self.inbox, self.bell, self.clock, self.audit, _senders(settings),
            settings.pipeline.max_attempts, StartReader(fix_rules_of(settings)),
        )  # fmt: skip
        app = github_app_of(settings)
        self.tow = TowParts(
            settings,
            self.database,
            self.jobs,
            self.bell,
            self.clock,
            self.audit,
            outside or outside_of(settings, self.clock, app),
        )
        self._locks = LockService(self._state.leases, self._state.mailbox, self.clock)
        self.fix = FixService(
            settings, self.database, self.jobs, self._locks, self.clock, self.tow.outside, rates
        )
        heard_by = in_turn(self.tow.tracker, *self.fix.listeners)
        self._first = first_told(heard_by, self.database, settings)
        self._pollers = pollers_of(
            settings, self.database, self.inbox, self.ingest, self.clock, app
        )
        known = self._handlers() | dict(handlers or {})
        self.crew = Crew(self.jobs, known, self.clock, _rules(settings))
        self.submit = _submit(settings, self.database, self.jobs, self.clock, self.audit)
        self.secret = SecretSource(settings)
        proxies = Proxies(settings.serve.trusted_proxies)
        self.keyring = Keyring(
            SqlApiKeys(self.database), self.clock, settings.api_keys, self.secret, proxies
        )
        self.sessions = Sessions(
            self.keyring, SqlSessions(self.database), visitors_clock or self.clock, self.secret
        )
        named = {name: schedule.cron for name, schedule in settings.schedules.items()}
        wanted = self.fix.schedules() | named
        self._schedules = Schedules(ScheduleStore(self.database), self.ingest, self.clock, wanted)
        self._hook_log = hook_log_of(settings, self.clock, app)
        self.recovery = self._recovery(self._hook_log) if self._hook_log is not None else None
        kept = settings.idempotency
        self._ledger = Ledger(
            backend_over(self.database, self.clock),
            _us(kept.ttl_sec), _us(kept.lock_ttl_sec), kept.store_max_items, self.audit,
        )  # fmt: skip
        self.writes = RepeatableWrites(self._ledger, self.keyring)
        self.hooks = Hooks(self.ingest, _hook_limits(settings))
        self.ready = self._readiness()
        self.farewell = Farewell()
        self._worker: Worker | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def _handlers(self) -> dict[str, Handler]:
        deliver = DeliveryHandler(self.inbox, self._first)
        return {DELIVERY: deliver, **self.tow.handlers(), **self.fix.handlers()}

    def _state_backend(self) -> Backend:
        if self.settings.state_backend == "redis":
            return backend_for(_redis(self.settings, self.clock), self.clock)
        if self.settings.state_backend == "memory":
            return backend_for("memory://", self.clock)
        return backend_over(self.database, self.clock)

    def _recovery(self, log: GitHubHookLog) -> Recovery:
        github = self.settings.github
        hooks = [repo_hook(text) for text in github.hooks]
        if github.app_id:
            hooks.append(app_hook(github.app_id))
        return Recovery(
            log,
            self.inbox,
            self.ingest,
            backend_over(self.database, self.clock).documents,
            HookHours(self.database),
            hooks,
            audit=self.audit,
        )

    @property
    def pulls(self) -> PullStore:
        return self.tow.pulls

    @property
    def bridge(self) -> Bridge:
        return self.tow.bridge

    @property
    def reconciler(self) -> Reconciler:
        return self.tow.reconciler

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Reach the stores, and bring the tables up to date."""
        await asyncio.to_thread(_close_files, self.settings)
        await self.database.connect()
        await self._state.connect()
        _calm_the_collector()

    def start(self, *, serving: bool = False) -> None:
        """Stand for election, and work; a server leaves that to Celery's workers if it has them."""
        if self._broker is None or not serving:
            self._worker = self._make_worker()
            self._keep(self._worker.run())
            self._keep(self.fix.look_at_machine())
        self._keep(self._upkeep().run())

    def _make_worker(self) -> Worker:
        hands = self.settings.worker.concurrency
        if self._broker is None:
            return EmbeddedWorker(
                self.jobs,
                self.crew,
                self._own_bell,
                self.clock,
                hands,
                Crowd(lambda: self.hooks.entered, self.clock),
            )
        from towline.jobs.celery_worker import CeleryWorker

        url = self.settings.redis_url or ""
        return CeleryWorker(url, self.jobs, self.crew, self._broker, self.clock, hands)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def close(self) -> None:
        """Finish what is in hand, give back the rest, and let the next leader in."""
        if self._worker is not None:
            await self._worker.stop(self.settings.worker.drain_seconds)
        await self.writes.aclose()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._broker is not None:
            await asyncio.to_thread(self._broker.close)
        if self._hook_log is not None:
            await self._hook_log.aclose()
        await self._pollers.aclose()
        await self.fix.aclose()
        await self.tow.outside.aclose()
        await self._state.aclose()
        await self._ledger.aclose()
        await self.database.aclose()

    def failures(self) -> list[BaseException]:
        """What ended a part of the service that should never end."""
        ended = (task.exception() for task in self._tasks if task.done() and not task.cancelled())
        return [error for error in ended if error is not None]

    # ------------------------------------------------------------------ parts

    def _readiness(self) -> Readiness:
        """Each part is written to: what answers a read may refuse every write."""
        parts = {"database": self._marker(SqlSeen(self.database))}
        if self.settings.state_backend == "redis":
            parts["state"] = self._marker(self._state.seen)
        if (broker := self._broker) is not None:
            parts["broker"] = lambda: asyncio.to_thread(broker.check)
        return Readiness(parts, self.clock)

    @staticmethod
    def _marker(seen: SeenStore) -> Callable[[], Awaitable[None]]:
        return lambda: seen.mark(_READY_MARK, _READY_MARK_US)

    def hosts(self) -> Hosts:
        """The names that this process answers to."""
        serve = self.settings.serve
        signed = [name for name, one in _senders(self.settings).items() if one.needs_signature]
        listening = (serve.host, serve.control_host, self.settings.worker.metrics_host)
        return Hosts(serve.allowed_hosts, listening, signed)

    async def warn_of_other_secrets(self) -> None:
        """One line where this process's secret is not that of the database's keys."""
        keys, documents = SqlApiKeys(self.database), SqlDocuments(self.database)
        await warn_of_other_secrets(keys, documents, self.secret())

    def _upkeep(self) -> Upkeep:
        settings = self.settings
        locks, broker = self._locks, self._broker
        reaper = Reaper(self.jobs, self.bell, (lambda: broker.room) if broker else lambda: 0)
        tidying = Tidying(
            self.inbox,
            self.jobs,
            _us(settings.ingest.keep_seconds),
            _us(settings.worker.keep_done_seconds),
            _us(settings.worker.keep_dead_seconds),
        )
        meters = plain(SqlRates(self.database).sweep)
        leases = plain(self._state.leases.sweep)
        writes = plain(self._ledger.sweep)
        old = {"meters": meters, "leases": leases, "sessions": plain(self.sessions.sweep)}
        chores = [
            Chore("reap", 1.0, reaper.reap),
            Chore("measure", 5.0, reaper.measure),
            Chore("schedules", 1.0, self._schedules.tick),
            Chore("tidy", 30.0, tidying.tidy),
            Chore("tidy requests", 30.0, self.submit.cleanup),
            Chore("tidy repeatable writes", 10.0, Pruning({"writes": writes}).run),
            Chore("tidy meters", 600.0, Pruning(old).run),
            *self.tow.chores(),
            *self.fix.chores(),
            *self._first.chores(),
            *self._pollers.chores(),
        ]
        if broker is not None:
            chores.append(Chore("republish", 1.0, reaper.republish))
        if self.recovery is not None:
            chores.append(Chore("recover", settings.github.recovery_seconds, self.recovery.sweep))
        return Upkeep(
            lambda: locks.acquire("towline:leader", _LEADER_TTL_SECONDS, _LEADER_WAIT_SECONDS),
            chores,
        )


def _close_files(settings: Settings) -> None:
    """Files of earlier versions were open to others under the usual umask."""
    database = database_file(settings)
    changed = close_to_others(database) if database is not None else []
    for one in without_followers(changed):
        _log.warning("%s; it is closed to others now", one.told)
    left = without_followers(open_to_others(own_files(settings)))
    for one in [*left, *open_to_anybody(given_files(settings))]:
        _log.warning("%s; close it: %s", one.told, one.fix)


def _calm_the_collector() -> None:
    """What lives as long as the process is not searched again; deliveries make no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _check(settings: Settings) -> None:
    """Refuse at once what would only hurt later."""
    heard = [
        name
        for name, sender in _senders(settings).items()
        if name in REDELIVERY_SECONDS and (sender.secrets or sender.allow_unsigned)
    ]
    check_horizons(heard, settings.ingest.keep_seconds, "ingest.keep_seconds")
    kept, worker = settings.idempotency, settings.worker
    for name, seconds, least in (
        ("worker.keep_done_seconds", worker.keep_done_seconds, kept.ttl_sec),
        ("worker.keep_dead_seconds", worker.keep_dead_seconds, kept.failed_ttl_sec),
    ):
        if seconds < least:
            raise Rejected(
                f"{name} of {seconds:g} s is shorter than the {least:g} s for which a request "
                "answers for its key: a repeated one would act twice"
            )
    if settings.redis_url and settings.redis_host:
        raise Rejected(
            "redis_url (TOWLINE_REDIS_URL) and redis_host (TOWLINE_REDIS_HOST) each name a Redis; "
            "set redis_host for Microsoft Entra ID, else redis_url, and not both"
        )
    if settings.azure_client_id and not settings.redis_host:
        raise Rejected(
            "azure_client_id (TOWLINE_AZURE_CLIENT_ID) needs redis_host (TOWLINE_REDIS_HOST)"
        )
    if settings.engine == "celery" and settings.redis_host:
        raise Rejected(
            "engine = celery does not work with redis_host: Celery's broker takes a URL and no "
            "Microsoft Entra ID; set redis_url (TOWLINE_REDIS_URL) instead, or engine = embedded"
        )
    if settings.engine == "celery" and not settings.redis_url:
        raise Rejected("engine = celery needs redis_url (TOWLINE_REDIS_URL)")
    if settings.state_backend == "redis" and not (settings.redis_url or settings.redis_host):
        raise Rejected(
            "state_backend = redis needs redis_url (TOWLINE_REDIS_URL), or redis_host "
            "(TOWLINE_REDIS_HOST) with Microsoft Entra ID"
        )


def _redis(settings: Settings, clock: Clock) -> str | Redis:
    if settings.redis_host is None:
        return settings.redis_url or ""
    from towline_once.db.redis.entra import connect_redis

    return connect_redis(
        settings.redis_host,
        settings.redis_port,
        azure_client_id=settings.azure_client_id,
        clock=clock,
    )


def _rates_of(settings: Settings) -> Rates:
    ingest = settings.ingest
    return per_minute(
        ingest.repo_rate_per_minute, ingest.org_rate_per_minute, ingest.repo_flood_per_minute
    )


def _hook_limits(settings: Settings) -> HookLimits:
    ingest = settings.ingest
    return HookLimits(ingest.max_body_bytes, ingest.max_concurrency)


def _senders(settings: Settings) -> dict[str, Sender]:
    return {
        name: Sender(settings.source(name).webhook_secrets, settings.source(name).allow_unsigned)
        for name in SOURCES
    }


def _audit(settings: Settings) -> Audit:
    audit = settings.audit
    if audit.file is None:
        return audit_to_log
    trouble = trouble_with(audit.file)
    if trouble is not None:
        raise Rejected(f"audit.file (TOWLINE_AUDIT__FILE): {trouble}")
    return AuditFile(audit.file, audit.max_bytes, audit.keep_files)


def _broker(settings: Settings) -> CeleryBell | None:
    if settings.engine != "celery":
        return None
    from towline.jobs.celery import CeleryBell

    return CeleryBell(settings.redis_url or "")


def _submit(
    settings: Settings, database: Database, jobs: JobStore, clock: Clock, audit: Audit
) -> Submit:
    kept, mesh, pipeline = settings.idempotency, settings.mesh, settings.pipeline
    requests = RequestStore(
        database, Keep(_us(kept.ttl_sec), _us(kept.failed_ttl_sec)), kept.max_cached_bytes
    )
    policy = SubmitPolicy(
        dedup=kept.enabled,
        max_items=kept.store_max_items,
        max_queued=mesh.max_queued,
        max_inflight=mesh.max_inflight,
        longest_lease_us=_us(mesh.max_lease_seconds),
        max_attempts=pipeline.max_attempts,
        backoff=_backoff(settings),
        hmac_key=mesh.hmac_key.encode() if mesh.hmac_key else None,
    )
    return Submit(requests, jobs, clock, policy, audit)


def _backoff(settings: Settings) -> Backoff:
    pipeline = settings.pipeline
    return Backoff(_us(pipeline.base_backoff_seconds), _us(pipeline.max_backoff_seconds))


def _rules(settings: Settings) -> WorkRules:
    pipeline, worker = settings.pipeline, settings.worker
    return WorkRules(
        owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
        lease_seconds=worker.lease_seconds,
        timeout_seconds=worker.job_timeout_seconds,
        backoff=_backoff(settings),
        repo_limit=pipeline.repo_concurrency,
    )


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
