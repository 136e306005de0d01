"""The breakers of remediation: one for all, one for each repository, one for each check.

An action asks all that it concerns, and tells each of them how it went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from towline.jobs.model import NewJob
from towline.jobs.store import JobStore
from towline.remediation.escalation import notice_job
from towline.remediation.escalation_text import breaker_notice
from towline_once.coordination.breaker_registry import ListedBreaker
from towline_once.coordination.circuit_breaker import BreakerService, Permit, Report, State

GLOBAL = "towline:breaker:global"
Breaker: TypeAlias = BreakerService | ListedBreaker


def breaker_of_repo(repo: str) -> str:
    return f"towline:breaker:repo:{repo}"


def breaker_of_check(check: str) -> str:
    return f"towline:breaker:check:{check}"


class Leave:
    """Leave of all breakers that an action concerns; they are told together."""

    def __init__(self, permits: Sequence[tuple[str, Permit]]) -> None:
        self._permits = permits

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._permits]

    @property
    def is_probe(self) -> bool:
        return any(permit.is_probe for _, permit in self._permits)

    async def succeeded(self) -> None:
        for _, permit in self._permits:
            await permit.succeeded()

    async def failed(self) -> None:
        for _, permit in self._permits:
            await permit.failed()

    async def ignored(self) -> None:
        for _, permit in self._permits:
            await permit.ignored()


class Breakers:
    """`open_one` makes the breaker of a name; they are kept, as there are few."""

    def __init__(self, open_one: Callable[[str], Breaker], jobs: JobStore) -> None:
        self._open_one = open_one
        self._jobs = jobs
        self._kept: dict[str, Breaker] = {}

    def named(self, name: str) -> Breaker:
        if name not in self._kept:
            self._kept[name] = self._open_one(name)
        return self._kept[name]

    async def state(self) -> State:
        return await self.named(GLOBAL).refresh()

    async def ask(self, repo: str, checks: Sequence[str] = ()) -> tuple[Leave | None, str]:
        """Leave to act, or the name of the breaker that keeps from it."""
        wanted = [GLOBAL, breaker_of_repo(repo), *map(breaker_of_check, checks)]
        permits: list[tuple[str, Permit]] = []
        for name in wanted:
            permit = await self.named(name).admit()
            if permit is None:
                await Leave(permits).ignored()
                return None, name
            permits.append((name, permit))
        return Leave(permits), ""

    async def tell_outage(self, repos: Sequence[str]) -> None:
        """Each of these could not be looked at: a failure of an action that was not even tried."""
        for _ in repos:
            permit = await self.named(GLOBAL).admit()
            if permit is None:
                return
            await permit.failed()

    async def announce(self) -> list[str]:
        """One job for each opening of a breaker, however often this is called; those open now.

        While the one for all is open, people know: the others are not announced as well.
        """
        reports = [await self._kept[name].report() for name in self._kept]
        opened = [report for report in reports if report.state != "closed"]
        for report in opened:
            if report.name == GLOBAL or GLOBAL not in [one.name for one in opened]:
                await self._jobs.enqueue(_notice_job(report))
        return [report.name for report in opened]


def _notice_job(report: Report) -> NewJob:
    notice = breaker_notice(report.name, report.failure_rate)
    return notice_job(notice, report.opening_us, f"{report.name} {report.opening_us}")
