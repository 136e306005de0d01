"""Audits by schedule: each advisory starts one run, whoever finds it and however often."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.fix.workshop import Tree
from towline.fix.audit_schedule import AUDIT, AuditHandler, AuditStarter, schedules_of
from towline.fix.fixers.pip_audit import PipAudit
from towline.fix.fixers.pip_audit_report import advisories_in
from towline.fix.model import Command, FixPolicy, FixRules
from towline.fix.requests import errand_of
from towline.fix.starter import FixStarter
from towline.fix.store import RunStore
from towline.forges.github import webhooks as github
from towline.inbox.dispatch import DeliveryHandler
from towline.inbox.ingest import DELIVERY, Ingest
from towline.inbox.schedules import Schedules, ScheduleStore
from towline.inbox.store import Inbox
from towline.jobs.model import OWN_QUEUE, Backoff, JobRecord, Wish
from towline.jobs.runner import Crew, WorkRules
from towline.jobs.store import JobStore
from towline.sandbox.choice import MachineSandbox
from towline_once.coordination.rate_limit import per_minute
from towline_once.db.statement import Database
from towline_once.metrics import audit_to_log

REPO = "octo-org/app"
DAY = 86_400
RULES = FixRules(repos={REPO: FixPolicy(audit="0 3 * * *"), "octo-org/lib": FixPolicy()})
TWO = [
    {"id": "PYSEC-1", "aliases": ["GHSA-1", "CVE-2024-1"], "fix_versions": ["2.11.3", "2.5"]},
    {"id": "PYSEC-2", "aliases": [], "fix_versions": ["3.0", "2.0"]},
    {"id": "PYSEC-3", "aliases": [], "fix_versions": []},
]
REPORT = {
    "dependencies": [
        {"name": "jinja2", "version": "2.4", "vulns": TWO},
        {"name": "odd", "version": "not a version", "vulns": [{"id": "X", "fix_versions": ["1"]}]},
        {"name": "flask", "version": "1.0", "vulns": []},
    ]
}
CODE = """
import json, sys
pins = sorted(line.strip() for line in open("requirements.txt"))
assert pins == ["flask==1.0", "jinja2==2.4"], pins
open("audit.json", "w").write({report!r})
sys.exit({status})
"""


class Silence:
    def ring(self, job_ids: object = ()) -> None:
        return None


class OneTree:
    """The repository, wherever it is asked for, and its forge."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.opened: list[tuple[str, str, str]] = []

    async def default_branch(self, repo: str) -> str:
        return "trunk"

    @asynccontextmanager
    async def open(self, forge: str, repo: str, ref: str) -> AsyncIterator[Tree]:
        self.opened.append((forge, repo, ref))
        yield self.tree


class Audited:
    """Schedules, inbox, jobs and runs over one database, and a pip-audit that says `report`."""

    def __init__(self, database: Database, clock: ManualClock, tree: Tree) -> None:
        self.clock, self.place = clock, OneTree(tree)
        self.jobs, self.runs = JobStore(database), RunStore(database)
        inbox = Inbox(database, per_minute(30))
        ingest = Ingest(inbox, Silence(), clock, audit_to_log, {}, 3)
        self.schedules = Schedules(ScheduleStore(database), ingest, clock, schedules_of(RULES))
        self.starter = FixStarter(self.runs, RULES, clock)
        self._deliver = DeliveryHandler(inbox, AuditStarter(self.jobs, RULES))

    async def next_tick(self, report: object = REPORT, status: int = 1) -> JobRecord:
        """A day passes; the audit's job when everything that is due is done."""
        await self.schedules.tick()
        self.clock.advance(DAY)
        await self.schedules.tick()
        await self.schedules.tick()
        return await self.work(report, status)

    async def work(self, report: object = REPORT, status: int = 1) -> JobRecord:
        text = report if isinstance(report, str) else json.dumps(report)
        code = CODE.format(report=text, status=status)
        command = Command(name="pip-audit", argv=(sys.executable, "-c", code), seconds=60)
        place: Any = self.place
        handler = AuditHandler(
            PipAudit(command), self.starter, RULES, place, {"github": place}, MachineSandbox()
        )
        rules = WorkRules("test", 60.0, 600.0, Backoff(30_000_000, 600_000_000), 9)
        crew = Crew(self.jobs, {DELIVERY: self._deliver, AUDIT: handler}, self.clock, rules)
        audits = []
        for _ in range(2):
            for job in await self.jobs.claim(Wish([OWN_QUEUE], "test", 50, 60_000_000, 50)):
                if job.kind == "fix":
                    continue
                await crew.run(job, self.clock.monotonic())
                found = await self.jobs.read(job.id)
                assert found is not None
                audits += [found] if job.kind == AUDIT else []
        (audit,) = audits
        return audit

    async def errands(self) -> list[tuple[str, str, str | None, str]]:
        runs = await self.runs.listing(REPO, None, "", 50)
        told = [run.errand for run in runs]
        return sorted(
            (one.advisory.id, one.advisory.package, one.advisory.fixed, one.base_ref)
            for one in told
            if one.advisory is not None
        )


@pytest.fixture
def audited(database: Database, clock: ManualClock, tmp_path: Path) -> Audited:
    files = {"requirements.txt": "flask==1.0\njinja2==2.4\n"}
    return Audited(database, clock, Tree(tmp_path / "tree", files))


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("towline_audits_total", {"outcome": outcome}) or 0.0


async def test_each_advisory_starts_one_run(audited: Audited) -> None:
    """From the default branch; those without a version to raise it to start none."""
    before = counted("found")
    job = await audited.next_tick()
    assert (job.state, job.repo) == ("done", REPO)
    expected = [("CVE-2024-1", "jinja2", "2.5", "trunk"), ("PYSEC-2", "jinja2", "3.0", "trunk")]
    assert await audited.errands() == expected
    assert audited.place.opened == [("github", REPO, "trunk")]
    assert counted("found") == before + 1
    again = await audited.next_tick()
    assert json.loads(again.result or "")["started"] == []
    assert await audited.errands() == expected


async def test_an_alert_for_the_same_is_the_same_run(audited: Audited) -> None:
    """Whether the forge tells of it or the audit finds it."""
    await audited.next_tick()
    alert: dict[str, Any] = {
        "action": "created",
        "alert": {
            "security_advisory": {"cve_id": "CVE-2024-1"},
            "security_vulnerability": {
                "package": {"ecosystem": "pip", "name": "jinja2"},
                "first_patched_version": {"identifier": "2.5"},
            },
        },
        "repository": {"full_name": REPO, "default_branch": "trunk"},
    }
    (event,) = github.read("dependabot_alert", alert)
    started = errand_of(event, RULES)
    assert started is not None
    _, created = await audited.starter.start(started, "github:d1:advisory")
    assert not created


@pytest.mark.parametrize(
    ("report", "status"), [("no json", 1), ({"dependencies": 7}, 0), (REPORT, 2)]
)
async def test_an_audit_that_fails_is_tried_again(
    audited: Audited, report: object, status: int
) -> None:
    """It starts nothing, is counted, and goes well the next time."""
    before = counted("failed")
    job = await audited.next_tick(report, status)
    assert (job.state, counted("failed")) == ("queued", before + 1)
    assert await audited.errands() == []
    audited.clock.advance(60)
    assert (await audited.work()).state == "done"
    assert len(await audited.errands()) == 2


async def test_nothing_against_the_pins(audited: Audited) -> None:
    """A clean audit is counted as one, and so is a repository without pins."""
    before = counted("clean")
    assert (await audited.next_tick({"dependencies": []}, 0)).state == "done"
    (audited.place.tree.folder / "requirements.txt").write_text("flask>=1\n")
    assert (await audited.next_tick("never run", 3)).state == "done"
    assert (await audited.errands(), counted("clean")) == ([], before + 2)


def test_only_those_with_an_expression_are_audited() -> None:
    """By the name that their schedule has."""
    assert schedules_of(RULES) == {f"audit {REPO}": "0 3 * * *"}


def test_the_same_vulnerability_under_two_names() -> None:
    """A CVE is what others call it; what has no name is left out."""
    known = {"id": "", "aliases": [7], "fix_versions": ["9"]}
    report = {"dependencies": [{"name": "x", "version": "1", "vulns": [*TWO, known, 7]}, 7]}
    assert [one.id for one in advisories_in(json.dumps(report))] == ["CVE-2024-1", "PYSEC-2"]
