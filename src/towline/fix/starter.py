"""Makes a run and its job of what asks for a fix, together and once.

`inbox` asks what a delivery starts while it stores it, so that the rate limit is taken in the same
transaction. The run itself is made later, by the delivery's job.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from towline.events import Event
from towline.fix.metrics import STARTED
from towline.fix.model import Errand, FixRules, RunRecord, branch_of
from towline.fix.requests import Started, is_counted, replacing, starts_of
from towline.fix.store import RunStore
from towline.forges.delivery import Delivery
from towline.inbox.model import Stored
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, NewJob
from towline_once.coordination.rate_limit import Rates, Start
from towline_once.ports import Clock

FIX: Final = "fix"
_PAGE: Final = 100
_MOST_PAGES: Final = 20
_log = logging.getLogger("towline.fix")


class StartReader:
    """Tells the inbox which fix runs a delivery asks for, before the delivery is stored.

    Only those that the rate counts: each takes its place as the delivery comes in."""

    def __init__(self, rules: FixRules) -> None:
        self._rules = rules

    def __call__(self, delivery: Delivery) -> tuple[Start, ...]:
        return tuple(
            Start(started.run_key, started.errand.repo)
            for _, started in starts_of(delivery.events, self._rules)
            if is_counted(started)
        )


class FixStarter:
    """Gets each delivery as the tracker does; the same one again does no harm."""

    def __init__(
        self, runs: RunStore, rules: FixRules, clock: Clock, rates: Rates | None = None
    ) -> None:
        """`rates` holds for runs that no delivery asks for, such as those of an audit."""
        self._runs = runs
        self._rules = rules
        self._clock = clock
        self._rates = rates

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        for name, started in starts_of(events, self._rules):
            await self.start(started, f"{stored.key}:{name}", stored.delivery_id)

    async def audited(self, started: Started, event_id: str) -> tuple[RunRecord, bool]:
        """As `start`, for a run that takes its place now: an audit found it, and no delivery."""
        return await self.start(started, event_id, rates=self._rates)

    async def start(
        self,
        started: Started,
        event_id: str,
        delivery_id: str | None = None,
        rates: Rates | None = None,
    ) -> tuple[RunRecord, bool]:
        """The run for this, and whether it is new; its job has the run's turn."""
        run_key, errand = started
        policy = self._rules.repos.get(errand.repo)
        most = policy.max_attempts if policy is not None else 3
        job = run_job(run_key, errand.repo, self._clock.now_us(), most)
        run, created = await self._runs.get_or_create(
            run_key, event_id, errand, branch_of(errand, run_key), job, rates
        )
        if created:
            STARTED.labels(errand.cause).inc()
        said = about(run) | {"delivery_id": delivery_id}
        _log.info("run_started" if created else "run_known", extra=said)
        return run, created

    async def replace(self, params: Mapping[str, Any], event_id: str) -> dict[str, object] | None:
        """What close-and-reopen asks for, as a run; None if it cannot be read."""
        started = replacing(params)
        if started is None:
            return None
        if (first := await self._opener_of(started.errand)) is not None:
            errand = dataclasses.replace(first.errand, replaces=started.errand.replaces)
            started = started._replace(errand=errand)
        run, created = await self.start(started, event_id)
        return {"status": "started" if created else "known", "run_key": run.run_key}

    async def _opener_of(self, errand: Errand) -> RunRecord | None:
        """The run that opened what is replaced: it knows the advisory, or the check that failed."""
        before = ""
        for _ in range(_MOST_PAGES):
            page = await self._runs.listing(errand.repo, "done", before, _PAGE)
            for run in page:
                onto_others = "number" in run.errand.more
                if run.last_pr_number == errand.replaces and not onto_others:
                    return run if run.errand.forge == errand.forge else None
            if len(page) < _PAGE:
                break
            before = page[-1].run_id
        return None


def run_job(
    run_key: str, repo: str, now_us: int, max_attempts: int, *, salt: str = "", delay_us: int = 0
) -> NewJob:
    """The job of a run; the same `salt` and time make the same job."""
    dice = hashlib.sha256(f"fix {run_key} {salt}".encode()).digest()
    return NewJob(
        id=job_id(now_us, dice),
        queue=OWN_QUEUE,
        kind=FIX,
        params=orjson.dumps({"run_key": run_key}).decode(),
        repo=repo,
        delay_us=delay_us,
        max_attempts=max_attempts,
    )


def about(run: RunRecord) -> dict[str, object]:
    """What each line of the log says of a run."""
    return {
        "run_key": run.run_key,
        "event_id": run.event_id,
        "run_id": run.run_id,
        "repo": run.errand.repo,
        "attempt_count": run.attempt_count,
    }
